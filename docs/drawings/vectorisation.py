"""Figure and table of docs/book/vectorisation.md, from benchmarks/results/vectorisation.json."""

import json
import re

import matplotlib.pyplot as plt

from examples.vectorisation import COLUMNS, plot, table

from .style import BOOK, ROOT, save_svg


def draw() -> None:
    BOOK.mkdir(parents=True, exist_ok=True)
    record = json.loads((ROOT / "benchmarks/results/vectorisation.json").read_text())
    figure = plot(record)
    save_svg(figure, BOOK / "vectorisation.svg")
    plt.close(figure)
    lines = [list(COLUMNS), ["---"] * 2 + ["---:"] * (len(COLUMNS) - 2), *table(record["rows"])]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    machine = f"Measured on {record['machine']['where']} with torch {record['machine']['torch']}:"
    page = ROOT / "docs/book/vectorisation.md"
    text, found = re.subn(
        r"^Measured on .*?(?=\n\n[^|])", f"{machine}\n\n{shown}", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert found == 1, "the page must have a line 'Measured on ...' followed by a table"
    page.write_text(text)

"""The picture of examples/vectorisation.py, from what it measured: benchmarks/results/vectorisation.json."""

import json
import sys

import matplotlib.pyplot as plt
from style import BOOK, ROOT, save_svg

sys.path.insert(0, str(ROOT))
from examples.vectorisation import plot


def draw() -> None:
    BOOK.mkdir(parents=True, exist_ok=True)
    record = json.loads((ROOT / "benchmarks/results/vectorisation.json").read_text())
    figure = plot(record)
    save_svg(figure, BOOK / "vectorisation.svg")
    plt.close(figure)

"""The tables of docs/reliability.md, from reliability/results: `make figures ONLY=reliability` writes them."""

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def place(facts: dict[str, Any]) -> str:
    where = facts.get("gpu") or f"{facts['threads']} CPU threads"
    return f"{where}, torch {facts['torch']}, Python {facts['python']}, {facts['date']}"


def table(titles: list[str], rows: list[list[Any]]) -> str:
    """Numbers to the right, words to the left."""
    numeric = [all(isinstance(row[column], (int, float)) for row in rows) for column in range(len(titles))]
    lines = [titles, ["---:" if number else "---" for number in numeric]]
    lines += [[f"{cell:,}" if isinstance(cell, (int, float)) else str(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sizes() -> str:
    parts = []
    for name in ("sizes_cpu", "sizes_gpu"):
        record = load(name)
        counts = sorted({row["size"] for row in record["rows"]})
        rows = []
        for operator in dict.fromkeys(row["name"] for row in record["rows"]):
            found = {row["size"]: row for row in record["rows"] if row["name"] == operator}
            cells = [f"{found[n]['ms']:,.3g} ms, {found[n]['peak_MiB']:,.0f} MiB" if n in found else "" for n in counts]
            rows.append([f"`{operator}`", *cells])
        parts.append(f"{place(record['machine'])}:\n\n" + table(["", *(f"{n:,}" for n in counts)], rows))
    return "\n\n".join(parts)


def gpu_sanitizer() -> str:
    record = load("gpu_sanitizer")
    rows = [
        [run["tool"], run["kernels"], run["calls"], "; ".join(run["summaries"]), run["planted_error"]]
        for run in record["tools"]
    ]
    said = f"compute-sanitizer {record['version'].split()[0]}; {place(record['machine'])}:\n\n"
    return said + table(["tool", "kernels", "calls", "it said", "of a planted error it said"], rows)


def gpu_contention() -> str:
    record = load("gpu_contention")
    rows = [[run["scene"].replace("_", " "), run["calls"], run["state"]] for run in record["scenes"]]
    said = f"{place(record['machine'])}; a watchdog of {record['watchdog_s']} s:\n\n"
    return said + table(["sampling", "calls", "results"], rows)


SECTIONS = {maker.__name__: maker for maker in (sizes, gpu_sanitizer, gpu_contention)}


def anew() -> str:
    """The page with every table made from the committed results."""
    pattern = re.compile(r"(<!-- counted (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]]()}\n{found[3]}", PAGE.read_text())

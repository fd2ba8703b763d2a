"""Generates the tables of docs/benchmarks.md and docs/operators from benchmarks/results.

`make figures ONLY=speed` writes them into the pages.
"""

import re
from pathlib import Path
from typing import Any

from benchmarks import record
from pointgrad.bench import table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
OPERATOR_PAGES = sorted((PAGE.parent / "operators").glob("*.md"))
APART = {"compat": "call of another library", "overhead": "call on a few rows"}  # families with a table of their own


def load(name: str) -> dict[str, Any]:
    """A committed result."""
    return record.read(RESULTS / f"{name}.json")


def markdown(titles: list[str], lines: list[list[str]], text_columns: tuple[str, ...]) -> str:
    """A Markdown table whose columns are aligned to the right, except `text_columns`."""
    rule = ["---" if title in text_columns else "---:" for title in titles]
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, rule, *lines))


def results_table(result: dict[str, Any]) -> str:
    """Tables of the operators, of the calls through `pointgrad.compat`, and of what a call costs."""
    parts: dict[str, list[dict[str, Any]]] = {title: [] for title in ("operator", *APART.values())}
    for row in result["rows"]:
        parts[APART.get(row["family"], "operator")].append(row)
    return "\n\n".join(_times({**result, "rows": rows}, title, ("limit",)) for title, rows in parts.items() if rows)


def _times(result: dict[str, Any], title: str, dropped: tuple[str, ...]) -> str:
    """A table without some columns, whose first column gets a title."""
    titles, lines = table.cells(result)
    kept = [column for column, name in enumerate(titles) if name not in dropped]
    titles = [title, *(titles[column] for column in kept[1:])]
    return markdown(titles, [[line[column] for column in kept] for line in lines], (title, "peers"))


def series(result: dict[str, Any]) -> dict[str, dict[str, dict[int, float]]]:
    """Milliseconds by series, implementation and number of points."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in result["rows"]:
        if row["state"] != "timed":
            continue
        lines = found.setdefault(row["series"], {})
        shown = {"ours": row["implementations"]["ours"]}
        shown |= {name: each for kind in ("plain", "peer") for name, each in table.fastest(row, kind).items()}
        for name, each in shown.items():
            lines.setdefault(name, {})[row["size"]] = each["ms"]["median"]
    return found


def published_table() -> str:
    """Times that other projects published, next to our measured ones."""
    published, ours = load("published"), {row["name"]: row for row in load("gpu")["rows"]}
    names = list(dict.fromkeys(name for row in published["rows"] for name in row["ms"]))
    titles = ["work", "ours, measured", *(f"{name}, {published['note']}" for name in names)]
    lines = []
    for row in published["rows"]:
        mine = ours.get(row["name"], {}).get("implementations", {}).get("ours", {}).get("ms")
        shown = [f"{table.ms(row['ms'][name])} ms" if name in row["ms"] else "" for name in names]
        lines.append([row["name"], f"{table.ms(mine['median'])} ms" if mine else "", *shown])
    return f"{markdown(titles, lines, ('work',))}\n\nSource: {published['source']}."


def scaling_table(result: dict[str, Any]) -> str:
    """One table per series: implementations against numbers of points."""
    tables = []
    for work, implementations in series(result).items():
        sizes = sorted({size for times in implementations.values() for size in times})
        lines = [
            [name, *(table.ms(times[size]) if size in times else "" for size in sizes)]
            for name, times in implementations.items()
        ]
        tables.append(markdown([work, *(f"{size:,}" for size in sizes)], lines, (work,)))
    return "\n\n".join(tables)


def description(result: dict[str, Any]) -> str:
    """Machine, versions and date of a result."""
    facts = result["machine"]
    peers = [f"{name} {each['version']}" for name, each in result["peers"].items() if each["version"]]
    processor = facts.get("gpu") or f"{facts['cpu']}, {facts['threads']} threads"
    text = f"{processor}; torch {facts['torch']}, Python {facts['python']}, {facts['date']}."
    copy = f" A copy moves {result['GB_per_s']:.0f} GB/s." if result["GB_per_s"] else ""
    return text + copy + (f" Peers: {', '.join(peers)}." if peers else "")


def section(name: str) -> str:
    """The text between the markers `<!-- results NAME -->` and `<!-- end -->`."""
    if name == "published":
        return published_table()
    result = load(name)
    body = scaling_table(result) if name.startswith("scaling") else results_table(result)
    return f"{description(result)}\n\n{body}"


def operator_times(prefixes: str) -> str:
    """The text between `<!-- measured PREFIXES -->` and `<!-- end -->`: a table for each device.

    Args:
        prefixes: Beginnings of the names of the rows to show, separated by "; ".
    """
    tables = []
    for name in ("gpu", "cpu"):
        result = load(name)
        result["rows"] = [row for row in result["rows"] if row["name"].startswith(tuple(prefixes.split("; ")))]
        facts = result["machine"]
        processor = facts.get("gpu") or f"{facts['threads']} CPU cores"
        tables.append(_times(result, f"{processor}, {facts['date']}", ("p10-p90", "limit")))
    return "\n" + "\n\n".join(tables) + "\n"  # Markdown needs an empty line between a comment and a table


def updated(path: Path = PAGE) -> str:
    """The text of a page, with every table generated from the committed results."""
    pattern = re.compile(r"(<!-- (results|measured) (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
    makers = {"results": section, "measured": operator_times}
    return pattern.sub(lambda found: f"{found[1]}{makers[found[2]](found[3])}\n{found[4]}", path.read_text())

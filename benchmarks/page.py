"""The tables of docs/benchmarks.md, and of times in docs/operators, from benchmarks/results: `make figures ONLY=speed`
writes them."""

import json
import re
from pathlib import Path
from typing import Any

from pointgrad.bench import table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
OPERATOR_PAGES = sorted((PAGE.parent / "operators").glob("*.md"))


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def series(record: dict) -> dict[str, dict[str, dict[int, float]]]:
    """Work, contestant, number of points: milliseconds."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for result in record["rows"]:
        if result["state"] != "timed":
            continue
        lines = found.setdefault(result["series"], {})
        shown = {"ours": result["contestants"]["ours"]}
        shown |= {name: each for kind in ("plain", "peer") for name, each in table.fastest(result, kind).items()}
        for name, each in shown.items():
            lines.setdefault(name, {})[result["size"]] = each["ms"]["median"]
    return found


def published_table() -> str:
    """The figures of others from elsewhere, beside ours of the committed run."""
    older, ours = load("published"), {result["name"]: result for result in load("gpu")["rows"]}
    names = list(dict.fromkeys(name for row in older["rows"] for name in row["ms"]))
    lines = [
        ["work", "ours, measured", *(f"{name}, {older['note']}" for name in names)],
        ["---", *["---:"] * (len(names) + 1)],
    ]
    for row in older["rows"]:
        mine = ours.get(row["name"], {}).get("contestants", {}).get("ours", {}).get("ms")
        shown = [f"{table.ms(row['ms'][name])} ms" if name in row["ms"] else "" for name in names]
        lines.append([row["name"], f"{table.ms(mine['median'])} ms" if mine else "", *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\nSource: {older['source']}."


def scaling_table(record: dict) -> str:
    lines = []
    for work, contestants in series(record).items():
        sizes = sorted({size for times in contestants.values() for size in times})
        lines.append([work, *(f"{size:,}" for size in sizes)])
        lines.append(["---", *["---:"] * len(sizes)])
        lines += [
            [name, *(table.ms(times[s]) if s in times else "" for s in sizes)] for name, times in contestants.items()
        ]
        lines.append([])
    return "\n".join(f"| {' | '.join(line)} |" if line else "" for line in lines).strip()


def described(record: dict) -> str:
    facts = record["machine"]
    peers = [f"{name} {each['version']}" for name, each in record["peers"].items() if each["version"]]
    place = facts.get("gpu") or f"{facts['cpu']}, {facts['threads']} threads"
    said = f"{place}; torch {facts['torch']}, Python {facts['python']}, {facts['date']}."
    copy = f" A copy moves {record['GB_per_s']:.0f} GB/s." if record["GB_per_s"] else ""
    return said + copy + (f" Peers: {', '.join(peers)}." if peers else "")


def section(name: str) -> str:
    """What stands between the markers of a name, from the committed results."""
    if name == "published":
        return published_table()
    record = load(name)
    body = scaling_table(record) if name.startswith("scaling") else table.markdown(record)
    return f"{described(record)}\n\n{body}"


def measured(beginnings: str) -> str:
    """Rows of both devices whose names begin with one of these, separated by semicolons: the times of a family."""
    tables = []
    for name in ("gpu", "cpu"):
        record = load(name)
        record["rows"] = [row for row in record["rows"] if row["name"].startswith(tuple(beginnings.split("; ")))]
        titles, lines = table.cells(record)
        kept = [place for place, title in enumerate(titles) if title not in ("p10-p90", "limit", "asked")]
        facts = record["machine"]
        place = facts.get("gpu") or f"{facts['threads']} CPU cores"
        heads = [f"{place}, {facts['date']}", *(titles[one] for one in kept[1:])]
        rules = ["---" if titles[one] in table.WORDS else "---:" for one in kept]
        made = [heads, rules, *([line[one] for one in kept] for line in lines)]
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in made))
    return "\n" + "\n\n".join(tables) + "\n"  # Markdown wants an empty line between a comment and a table


def anew(path: Path = PAGE) -> str:
    """A page with every table made from the committed results."""
    pattern = re.compile(r"(<!-- (results|measured) (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
    makers = {"results": section, "measured": measured}
    return pattern.sub(lambda found: f"{found[1]}{makers[found[2]](found[3])}\n{found[4]}", path.read_text())

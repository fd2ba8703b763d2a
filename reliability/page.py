"""The tables of docs/reliability.md, from reliability/results: `make figures ONLY=counts` writes them."""

import json
import re
from collections import Counter
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


def numbers() -> str:
    rows = []
    for name, run in load("properties")["runs"].items():
        rows.append([f"laws, {name}", run["laws"], f"{run['inputs']:,} inputs", f"{run['failed']} failed"])
    for name in ("precision", "precision_gpu"):
        record = load(name)
        worst = f"worst {record['worst_ratio']:.2f} times PyTorch's error, {record['over']} over 2"
        compared = f"{record['judged']} comparisons in 16 bits"
        rows.append([f"precision, {record['settings']['device']}", record["operators"], compared, worst])
    return table(["what", "laws or operators", "tried", "outcome"], rows)


def faults() -> str:
    record = load("faults")

    def outcome(part: dict[str, Any]) -> str:
        bad = [*part.get("wrong", []), *part.get("different", []), *part.get("negative durations", [])]
        return f"{len(bad)} wrong" if bad else "as promised"

    rows = [
        [f"SIGKILL at random, {name}", f"{part['kills']} kills", outcome(part)]
        for name, part in record["kills"].items()
        if isinstance(part, dict)
    ]
    signals = ", ".join(f"{count} {name}" for name, count in record["stops"]["signals"].items())
    damaged, ranks = record["damaged"], record["ranks"]["faults"]
    ended = ", ".join(f"{name} {fault['seconds']:.0f} s" for name, fault in ranks.items())
    rows += [
        ["asked to stop: the step is finished and saved", signals, outcome(record["stops"])],
        ["full disk (tmpfs)", f"{record['disk']['disks']} disks", outcome(record["disk"])],
        ["damaged last checkpoint: the previous one is used", f"{len(damaged['kinds'])} kinds", outcome(damaged)],
        [
            "bits flipped in a checkpoint: noticed",
            f"{record['flipped bits']['flips']:,} flips",
            outcome(record["flipped bits"]),
        ],
        ["a worker that dies", f"{len(record['workers']['faults'])} ways", outcome(record["workers"])],
        [
            f"a rank that dies or stops, of two; others end after: {ended}",
            f"{len(ranks)} faults",
            outcome(record["ranks"]),
        ],
        ["the clock jumps by years", f"{record['clock']['trainings']} trainings", outcome(record["clock"])],
        ["two trainings in one folder: the second is refused", "", outcome(record["together"])],
    ]
    waits = record["ranks"]["waits at most, seconds"]
    said = (
        f"{place(record['machine'])}; a rank without an answer was waited for {waits} s (ten minutes by default):\n\n"
    )
    return said + table(["what happened", "how often", "resumed"], rows)


def corpus() -> str:
    record = load("corpus")
    formats: dict[str, Counter[str]] = {}
    for row in record["rows"]:
        counted = formats.setdefault(row["subject"].split()[0], Counter())
        counted.update({key: row.get(key, 0) for key in ("files", "read", "refused")})
    rows = [[f"`{name}`", *(c[key] for key in ("files", "read", "refused"))] for name, c in formats.items()]
    rows.append(["all", record["files"], record["read"], record["refused"]])
    promises, limits = record["promises"], record["limits"]
    said = (
        f"{place(record['machine'])}; {limits['memory_bytes'] >> 20} MiB and {limits['seconds']} s for each file. "
        f"Anything else than read or refused in one line: {record['wrong']}. Small files that promise to be huge: "
        f"{promises['refused']} of {promises['files']} refused, each within {promises['largest_bytes'] >> 20} MiB.\n\n"
    )
    return said + table(["format", "damaged files", "read", "refused"], rows)


MAKERS = (sizes, gpu_sanitizer, gpu_contention, numbers, faults, corpus)
SECTIONS = {maker.__name__: maker for maker in MAKERS}


def anew() -> str:
    """The page with every table made from the committed results."""
    pattern = re.compile(r"(<!-- counted (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]]()}\n{found[3]}", PAGE.read_text())

"""The tables of docs/reliability.md and README.md, from results/: `make figures ONLY=counts` writes them."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "reliability.md", ROOT / "README.md")


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def place(facts: dict[str, Any]) -> str:
    where = facts.get("gpu") or f"{facts['threads']} CPU threads"
    return f"{where}, torch {facts['torch']}, Python {facts['python']}, {facts['date']}"


def table(titles: list[str], rows: list[list[Any]]) -> str:
    """Numbers to the right, words to the left."""
    numeric = [all(isinstance(row[column], (int, float)) for row in rows) for column in range(len(titles))]
    lines = [titles, ["---:" if number else "---" for number in numeric]]
    lines += [[f"{cell:,}" if isinstance(cell, (int, float)) else _words(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _words(cell: Any) -> str:
    """A line would end the cell, and so would a bar."""
    return " ".join(str(cell).split("\n")).replace("|", "\\|")


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


def sanitizers() -> str:
    names = {"address": "AddressSanitizer", "undefined": "UndefinedBehaviorSanitizer", "thread": "ThreadSanitizer"}
    rows, record = [], load("sanitizers")
    for name, run in record.items():
        situations = run.get("situations", {})
        calls = sum(each["calls"] for each in situations.values())
        tests = f"{run['tests']:,} tests" + (f", {calls} calls from threads" if calls else "")
        other = [f"{each}: {said['outcome']}" for each, said in situations.items() if said["outcome"] != "same"]
        failed = "; ".join([str(run["failed"]), *other]) if other else run["failed"]
        seen = ", ".join(dict.fromkeys(run["planted_and_seen"].values()))
        rows.append([names[name], tests, failed, len(run["reports"]), seen, place(run["machine"])])
    compilers = "; ".join(dict.fromkeys(run["compiler"] for run in record.values()))
    return f"{compilers}:\n\n" + table(["tool", "ran", "failed", "reports", "planted, and reported", "on"], rows)


def fuzz() -> str:
    records = {name: load(name) for name in ("fuzz", "fuzz_triton", "fuzz_gpu")}
    rows: list[list[Any]] = []
    for family in records["fuzz"]["families"]:
        runs = [record["families"][family] for record in records.values()]
        found = [sum(len(run[what]) for run in runs) for what in ("failures", "crashes")]
        refused = sum(run.get("outcome", {}).get("refused", 0) for run in runs)  # none, if every process crashed
        rows.append([f"`{family}`", *(run["cases"] for run in runs), refused, *found])
    rows.append(["all", *(sum(row[column] for row in rows) for column in range(1, 7))])
    places = "; ".join(place(records[name]["machine"]) for name in ("fuzz", "fuzz_gpu"))
    titles = ["family", "C++", "Triton's interpreter", "GPU", "wrong calls refused", "differ", "crashed"]
    return f"{places}:\n\n" + table(titles, rows)


def concurrency() -> str:
    names = {
        "python_threads": "eight Python threads",
        "set_num_threads": "eight Python threads, while `set_num_threads` changes",
        "forked": "forked processes",
        "spawned": "spawned processes",
        "loader": "workers of a `DataLoader`",
        "backward": "backward passes of several threads",
    }
    usual, free = load("concurrency"), load("concurrency_free_threaded")
    rows = []
    for name, words in names.items():
        runs = [record["situations"][name] for record in (usual, free)]
        assert {run["outcome"] for run in runs} == {"same"}
        rows.append([words, *(number for run in runs for number in (run["rounds"], run["calls"]))])
    titles = ["from", "rounds", "calls", "free-threaded: rounds", "calls"]
    said = f"{place(usual['machine'])}; free-threaded: {place(free['machine'])}. All results were the same:\n\n"
    return said + table(titles, rows)


def gpu_sanitizer() -> str:
    record = load("gpu_sanitizer")
    rows = []
    for run in record["tools"]:
        if run["state"] != "clean" or run["never_launched"]:  # of a part that did not finish, the tool says nothing
            raise ValueError(f"{run['tool']} must be clean, got {run['state']}, never launched {run['never_launched']}")
        rows.append([run["tool"], run["kernels"], run["calls"], "; ".join(run["summaries"]), run["planted_error"]])
    said = f"compute-sanitizer {record['version'].split()[0]}; {place(record['machine'])}:\n\n"
    return said + table(["tool", "kernels", "calls", "it said", "of a planted error it said"], rows)


def compiled() -> str:
    rows = []
    for run in load("compiled"):
        backend, architecture, _ = run["target"].split(":")
        target = f"sm_{architecture}" if backend == "cuda" else architecture
        torch = run["torch"].partition("+")[0]
        rows.append([run["triton"], torch, target, run["kernels"], run["forms"], len(run["failed"])])
    return table(["Triton", "torch", "for", "kernels", "forms", "refused"], rows)


def gpu_contention() -> str:
    record = load("gpu_contention")
    rows = [[run["scene"].replace("_", " "), run["calls"], run["state"]] for run in record["scenes"]]
    said = f"{place(record['machine'])}; a watchdog of {record['watchdog_s']} s:\n\n"
    return said + table(["sampling", "calls", "results"], rows)


def gpu_repeats() -> str:
    record = load("gpu_repeats")
    return (
        f"{place(record['machine'])}: {record['cases']} cases, forward and backward, {record['runs']} runs each beside "
        f"other work. In deterministic mode {len(record['differ_in_deterministic_mode'])} differ in any bit; without "
        f"it {len(record['differ_otherwise'])} do."
    )


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
        if "skipped" in part:
            return f"not run: {part['skipped']}"
        bad = [*part.get("wrong", []), *part.get("different", []), *part.get("negative durations", [])]
        return f"{len(bad)} wrong" if bad else "as promised"

    rows = [
        [f"SIGKILL at random, {name}", f"{part['kills']} kills of {part['trainings']} trainings", outcome(part)]
        for name, part in record["kills"].items()
        if isinstance(part, dict)
    ]
    signals = ", ".join(f"{count} {name}" for name, count in record["stops"]["signals"].items())
    damaged, ranks = record["damaged"], record["ranks"]["faults"]
    ended = ", ".join(f"{name} {fault['seconds']:.0f} s" for name, fault in ranks.items())
    rows += [
        ["asked to stop: the step is finished and saved", signals, outcome(record["stops"])],
        ["full disk (tmpfs)", f"{record['disk'].get('disks', 0)} disks", outcome(record["disk"])],
        ["damaged last checkpoint: the previous one is used", f"{len(damaged['kinds'])} kinds", outcome(damaged)],
        ["all checkpoints damaged: said, and nothing is touched", "", outcome(record["all damaged"])],
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


def fuzz_files() -> str:
    record = load("fuzz_files")
    # One that ended with an error, or reached nothing of our code, tried less than it says.
    ended = [row["subject"] for row in record["rows"] if not row["findings"] and (row["status"] or not row["reached"])]
    findings = f"{record['findings']} findings" + (f", not tried to the end: {', '.join(ended)}" if ended else "")
    return (
        f"atheris {record['machine']['atheris']}: {record['files']:,} files of {len(record['rows'])} kinds in "
        f"{record['seconds']:,.0f} s, {findings}; {place(record['machine'])}."
    )


def versions() -> str:
    """Of each run of the suite; `versions.py` writes an entry for whole runs and for those that left tests out."""
    rows = []
    for each in load("versions"):
        if not each["selection"]:
            counted = [each[key] for key in ("passed", "failed", "skipped")]
            rows.append([each["python"], each["torch"], each["triton"] or "", each["numpy"], *counted, each["date"]])
    return table(["Python", "torch", "Triton", "NumPy", "passed", "failed", "skipped", "on"], rows)


def wheels() -> str:
    rows = []
    for each in load("wheels"):
        needs = ", ".join(f"{library} {version}" for library, version in each["needs"].items())
        rows.append([f"`{each['wheel']}`", each["python"], each["torch"].partition("+")[0], each["tag"], needs])
    return table(["wheel", "tried on Python", "torch", "platform", "needs"], rows)


MAKERS = (
    sanitizers, fuzz, concurrency, gpu_sanitizer, compiled, gpu_contention, gpu_repeats, sizes, numbers, faults, corpus,
    fuzz_files, versions, wheels,
)  # fmt: skip
SECTIONS = {maker.__name__: maker for maker in MAKERS}


def anew(page: Path) -> str:
    """The page with every table made from the committed results."""
    pattern = re.compile(r"(<!-- counted (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]]()}\n{found[3]}", page.read_text())

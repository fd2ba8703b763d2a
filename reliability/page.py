"""Generates the tables of docs/reliability.md, the pages on migration and README.md from results/.

`make figures ONLY=counts` writes them into the pages.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from .foreign import grouped

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (DOCS / "reliability.md", DOCS / "migration.md", DOCS / "migration" / "torch_pointcloud.md")


def load(name: str) -> dict[str, Any]:
    """A committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def machine(facts: dict[str, Any]) -> str:
    """Processor, versions and date of a result."""
    processor = facts.get("gpu") or f"{facts['threads']} CPU thread{'s' if facts['threads'] != 1 else ''}"
    return f"{processor}, torch {facts['torch']}, Python {facts['python']}, {facts['date']}"


def table(titles: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table. Columns of numbers are aligned to the right."""
    numeric = [all(isinstance(row[column], (int, float)) for row in rows) for column in range(len(titles))]
    lines = [titles, ["---:" if number else "---" for number in numeric]]
    lines += [[f"{cell:,}" if isinstance(cell, (int, float)) else _escape(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(cell: Any) -> str:
    """Remove line breaks and escape bars, which would end the cell."""
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
        parts.append(f"{machine(record['machine'])}:\n\n" + table(["", *(f"{n:,}" for n in counts)], rows))
    return "\n\n".join(parts)


def sanitizers() -> str:
    names = {"address": "AddressSanitizer", "undefined": "UndefinedBehaviorSanitizer", "thread": "ThreadSanitizer"}
    rows, record = [], load("sanitizers")
    for name, run in record.items():
        situations = run.get("situations", {})
        calls = sum(each["calls"] for each in situations.values())
        tests = f"{run['tests']:,} tests" + (f", {calls} calls from threads" if calls else "")
        bad = [f"{name}: {each['outcome']}" for name, each in situations.items() if each["outcome"] != "same"]
        failed = "; ".join([str(run["failed"]), *bad]) if bad else run["failed"]
        seen = ", ".join(dict.fromkeys(run["planted_and_seen"].values()))
        rows.append([names[name], tests, failed, len(run["reports"]), seen, machine(run["machine"])])
    compilers = "; ".join(dict.fromkeys(run["compiler"] for run in record.values()))
    return f"{compilers}:\n\n" + table(
        ["tool", "tests", "failed", "reports", "planted defects reported", "machine"], rows
    )


def fuzz() -> str:
    records = {name: load(name) for name in ("fuzz", "fuzz_triton", "fuzz_gpu")}
    rows: list[list[Any]] = []
    for family in records["fuzz"]["families"]:
        runs = [record["families"][family] for record in records.values()]
        found = [sum(len(run[what]) for run in runs) for what in ("failures", "crashes")]
        refused = sum(run.get("outcome", {}).get("refused", 0) for run in runs)  # missing if every process crashed
        rows.append([f"`{family}`", *(run["cases"] for run in runs), refused, *found])
    rows.append(["all", *(sum(row[column] for row in rows) for column in range(1, 7))])
    machines = "; ".join(machine(records[name]["machine"]) for name in ("fuzz", "fuzz_gpu"))
    titles = ["family", "C++", "Triton's interpreter", "GPU", "invalid calls rejected", "differences", "crashes"]
    return f"{machines}:\n\n" + table(titles, rows)


def fuzz_calls() -> str:
    record = load("fuzz_calls")
    names = {"raw": "registered operators, changed arguments", "junk": "public functions, arguments of any kind"}
    rows = [
        [names[name], run["cases"], *(run.get("outcome", {}).get(what, 0) for what in ("returned", "refused"))]
        + [len(run[what]) for what in ("failures", "crashes")]
        for name, run in record["families"].items()
    ]
    titles = ["calls of", "cases", "returned", "rejected", "rejected without one clear line", "crashes"]
    return f"{machine(record['machine'])}:\n\n" + table(titles, rows)


def concurrency() -> str:
    names = {
        "python_threads": "eight Python threads",
        "set_num_threads": "eight Python threads, while `set_num_threads` changes",
        "forked": "forked processes",
        "spawned": "spawned processes",
        "loader": "`DataLoader` workers",
        "backward": "backward passes in several threads",
    }
    usual, free = load("concurrency"), load("concurrency_free_threaded")
    rows = []
    for name, description in names.items():
        runs = [record["situations"][name] for record in (usual, free)]
        assert {run["outcome"] for run in runs} == {"same"}
        rows.append([description, *(number for run in runs for number in (run["rounds"], run["calls"]))])
    titles = ["called from", "rounds", "calls", "free-threaded: rounds", "calls"]
    machines = f"{machine(usual['machine'])}; free-threaded: {machine(free['machine'])}"
    return f"{machines}. All results were identical:\n\n" + table(titles, rows)


def gpu_sanitizer() -> str:
    record = load("gpu_sanitizer")
    rows = []
    for run in record["tools"]:
        if run["state"] != "clean" or run["never_launched"]:  # the tool reports nothing for a part that did not finish
            raise ValueError(f"{run['tool']} must be clean, got {run['state']}, never launched {run['never_launched']}")
        rows.append([run["tool"], run["kernels"], run["calls"], "; ".join(run["summaries"]), run["planted_error"]])
    heading = f"compute-sanitizer {record['version'].split()[0]}; {machine(record['machine'])}:\n\n"
    return heading + table(["tool", "kernels", "calls", "report", "report for a planted error"], rows)


def compiled() -> str:
    rows = []
    for run in load("compiled"):
        backend, architecture, _ = run["target"].split(":")
        target = f"sm_{architecture}" if backend == "cuda" else architecture
        torch = run["torch"].partition("+")[0]
        rows.append([run["triton"], torch, target, run["kernels"], run["forms"], len(run["failed"])])
    return table(["Triton", "torch", "target", "kernels", "variants", "failed"], rows)


def gpu_contention() -> str:
    record = load("gpu_contention")
    rows = [[run["scene"].replace("_", " "), run["calls"], run["state"]] for run in record["scenes"]]
    heading = f"{machine(record['machine'])}; time limit {record['watchdog_s']} s:\n\n"
    return heading + table(["sampling", "calls", "results"], rows)


def gpu_repeats() -> str:
    record = load("gpu_repeats")
    return (
        f"{machine(record['machine'])}: {record['cases']} cases, forward and backward, {record['runs']} runs each "
        f"while other work was running. In deterministic mode {len(record['differ_in_deterministic_mode'])} "
        f"differed in any bit, otherwise {len(record['differ_otherwise'])}."
    )


def numbers() -> str:
    rows = []
    for name, run in load("properties")["runs"].items():
        rows.append([f"properties, {name}", run["laws"], f"{run['inputs']:,} inputs", f"{run['failed']} failed"])
    for name in ("precision", "precision_gpu"):
        record = load(name)
        worst = f"at most {record['worst_ratio']:.2f} times PyTorch's error, {record['over']} above 2"
        compared = f"{record['judged']} comparisons in 16-bit precision"
        rows.append([f"precision, {record['settings']['device']}", record["operators"], compared, worst])
    return table(["check", "properties or operators", "inputs", "outcome"], rows)


def audit() -> str:
    record = load("audit")
    rows = [[kind, counts["planted"], counts["found"]] for kind, counts in record["planted"].items()]
    rows.append(["correct functions: alarms", record["correct"], len(record["alarms"])])
    return f"{machine(record['machine'])}:\n\n" + table(["error", "functions", "reported"], rows)


def libraries() -> str:
    """Numbers of tests of other libraries. The table in docs/migration.md has the reasons."""
    record = load("foreign")
    rows: list[list[Any]] = []
    for run in record.values():
        counts = [sum(run[key].values()) for key in ("skipped", "out_of_scope")]
        rows.append([f"`{run['library']}` {run['version']}", run["passed"], len(run["failed"]), *counts])
    machines = "; ".join(dict.fromkeys(machine(run["machine"]) for run in record.values()))
    return f"{machines}:\n\n" + table(["tests of", "passed", "failed", "skipped", "out of scope"], rows)


def faults() -> str:
    record = load("faults")

    def outcome(part: dict[str, Any]) -> str:
        if "skipped" in part:
            return f"not run: {part['skipped']}"
        bad = [*part.get("wrong", []), *part.get("different", []), *part.get("negative durations", [])]
        return f"{len(bad)} failed" if bad else "as documented"

    rows = [
        [f"SIGKILL at random times, {name}", f"{part['kills']} kills in {part['trainings']} runs", outcome(part)]
        for name, part in record["kills"].items()
        if isinstance(part, dict)
    ]
    signals = ", ".join(f"{count} {name}" for name, count in record["stops"]["signals"].items())
    damaged, ranks = record["damaged"], record["ranks"]["faults"]
    seconds = ", ".join(f"{name} {fault['seconds']:.0f} s" for name, fault in ranks.items())
    rows += [
        ["stop signal: the step is finished and saved", signals, outcome(record["stops"])],
        ["full disk (tmpfs)", f"{record['disk'].get('disks', 0)} disks", outcome(record["disk"])],
        ["damaged last checkpoint: the previous one is used", f"{len(damaged['kinds'])} kinds", outcome(damaged)],
        ["all checkpoints damaged: reported, and no file is changed", "", outcome(record["all damaged"])],
        [
            "bits flipped in a checkpoint: detected",
            f"{record['flipped bits']['flips']:,} flips",
            outcome(record["flipped bits"]),
        ],
        ["a data-loader worker dies", f"{len(record['workers']['faults'])} causes", outcome(record["workers"])],
        [
            f"one of two ranks dies or hangs; the other one ends after: {seconds}",
            f"{len(ranks)} faults",
            outcome(record["ranks"]),
        ],
        ["the system clock jumps by years", f"{record['clock']['trainings']} runs", outcome(record["clock"])],
        ["two runs in one folder: the second is rejected", "", outcome(record["together"])],
    ]
    waits = record["ranks"]["waits at most, seconds"]
    heading = (
        f"{machine(record['machine'])}; timeout for a rank that does not respond: {waits} s (default: 10 minutes):\n\n"
    )
    return heading + table(["fault", "count", "outcome"], rows)


def corpus() -> str:
    record = load("corpus")
    formats: dict[str, Counter[str]] = {}
    for row in record["rows"]:
        counted = formats.setdefault(row["subject"].split()[0], Counter())
        counted.update({key: row.get(key, 0) for key in ("files", "read", "refused")})
    rows = [[f"`{name}`", *(c[key] for key in ("files", "read", "refused"))] for name, c in formats.items()]
    rows.append(["all", record["files"], record["read"], record["refused"]])
    false_sizes, limits = record["false_sizes"], record["limits"]
    heading = (
        f"{machine(record['machine'])}; limits of {limits['memory_bytes'] >> 20} MiB and {limits['seconds']} s per "
        f"file. Outcomes other than read or rejected with one line: {record['wrong']}. Small files that declare a huge "
        f"size: {false_sizes['refused']} of {false_sizes['files']} rejected, each using at most "
        f"{false_sizes['largest_bytes'] >> 20} MiB."
    )
    if dense := record.get("compressed"):
        heading += (
            f" Highly compressed files: {dense['bounded']} of {dense['files']} read or rejected within "
            f"{dense['memory_bytes'] >> 20} MiB, where no more was left."
        )
    heading += "\n\n"
    return heading + table(["format", "damaged files", "read", "rejected"], rows)


def fuzz_files() -> str:
    record = load("fuzz_files")
    # A format whose run failed, or never reached our code, was not fully tested.
    incomplete = [
        row["subject"] for row in record["rows"] if not row["findings"] and (row["status"] or not row["reached"])
    ]
    findings = f"{record['findings']} findings" + (f", incomplete: {', '.join(incomplete)}" if incomplete else "")
    return (
        f"atheris {record['machine']['atheris']}: {record['files']:,} files of {len(record['rows'])} kinds in "
        f"{record['seconds']:,.0f} s, {findings}; {machine(record['machine'])}."
    )


def versions() -> str:
    """Runs of all tests. Runs of a selection of tests are not shown."""
    rows = []
    for each in load("versions"):
        if not each["selection"]:
            counts = [each[key] for key in ("passed", "failed", "skipped")]
            rows.append([each["python"], each["torch"], each["triton"] or "", each["numpy"], *counts, each["date"]])
    return table(["Python", "torch", "Triton", "NumPy", "passed", "failed", "skipped", "date"], rows)


def wheels() -> str:
    rows = []
    for each in load("wheels"):
        needs = ", ".join(f"{library} {version}" for library, version in each["needs"].items())
        rows.append([f"`{each['wheel']}`", each["python"], each["torch"].partition("+")[0], each["tag"], needs])
    return table(["wheel", "tested on Python", "torch", "platform", "needs"], rows)


def foreign() -> str:
    rows: list[list[Any]] = []
    failures = []
    scopes: dict[str, Counter[str]] = {}
    records = load("foreign").values()
    for record in records:
        name = f"`{record['library']}` {record['version']}"
        known = record["failed_without_compat"]
        also = "" if known is None else f"{len(known):,}"
        counts = [sum(record[key].values()) for key in ("skipped", "out_of_scope")]
        rows.append([name, record["passed"], len(record["failed"]), also, *counts])
        for (test, reason), count in grouped(record["failed"]).items():
            failures.append([name, f"`{test}`", f"{reason} ({count} cases)" if count > 1 else reason])
        for reason, count in record["out_of_scope"].items():
            scopes.setdefault(reason, Counter())[name] += count
    machines = "; ".join(dict.fromkeys(machine(record["machine"]) for record in records))
    titles = ["library", "passed", "failed", "fail also without compat", "skipped", "out of scope"]
    parts = [f"{machines}:", table(titles, rows)]
    if failures:
        parts += ["Failed:", table(["library", "test", "reason"], failures)]
    reasons = [[reason, ", ".join(f"{name}: {n:,}" for name, n in counts.items())] for reason, counts in scopes.items()]
    if reasons:
        parts += ["Out of scope:", table(["reason", "tests"], reasons)]
    return "\n\n".join(parts)


def networks() -> str:
    """Architectures of torch-pointcloud. A step succeeded if it did for all tasks."""
    record = load("networks")
    found: dict[str, list[dict[str, Any]]] = {}
    for row in record["rows"].values():
        found.setdefault(row["architecture"], []).append(row)
    steps = ("built", "forward", "backward")
    counts = {step: sum(all(row[step] for row in group) for group in found.values()) for step in steps}
    rows = []
    for architecture, group in sorted(found.items()):
        done = ["yes" if all(row[step] for row in group) else "no" for step in steps]
        reasons = ", ".join(dict.fromkeys(row["reason"] for row in group if row["reason"]))
        rows.append([f"`{architecture}`", ", ".join(row["task"] for row in group), *done, reasons])
    versions = {**record["versions"], "torch": record["machine"]["torch"], "Python": record["machine"]["python"]}
    heading = ", ".join(f"{library} {version}" for library, version in versions.items())
    summary = ", ".join(f"{count} {step}" for step, count in counts.items())
    return f"{heading}, CPU. Of {len(found)} architectures: {summary}.\n\n" + table(
        ["architecture", "tasks", *steps, "reason"], rows
    )


MAKERS = (
    fuzz_calls, audit, libraries,
    sanitizers, fuzz, concurrency, gpu_sanitizer, compiled, gpu_contention, gpu_repeats, sizes, numbers, faults, corpus,
    fuzz_files, versions, wheels, foreign, networks,
)  # fmt: skip
SECTIONS = {maker.__name__: maker for maker in MAKERS}


def updated(page: Path) -> str:
    """The text of a page, with every table generated from the committed results."""
    pattern = re.compile(r"(<!-- counted (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]]()}\n{found[3]}", page.read_text())

"""How a row of a benchmark is checked, timed, printed and kept.

A row is checked before it is timed. All contestants of a row take turns in the same run, so that a busy
machine slows all of them; the table shows medians, the file the 10th and 90th percentile as well.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table


@dataclass
class Row:
    name: str
    check: Callable[[], None]
    ours: Callable[[], Any]
    peers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    at_least: float | None = None  # asked: times faster than the best peer (or than `against`)
    at_most: float | None = None  # asked: milliseconds
    against: str | None = None  # the peer that `at_least` speaks of
    moved: int | None = None  # bytes that must pass through memory
    memory_at_least: float | None = None  # asked: times less peak memory than the best peer, on a GPU
    rounds: int = 11


def measure(row: Row, device: str) -> dict[str, Any]:
    row.check()
    contestants = {"ours": row.ours, **row.peers}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    clock = _gpu_ms if device == "cuda" else _cpu_ms
    for call in contestants.values():  # warm up: compilation, pages, caches
        call()
        call()
    for _ in range(row.rounds):
        for name, call in contestants.items():
            times[name].append(clock(call))
    result: dict[str, Any] = {"name": row.name, "ms": {name: _summary(t) for name, t in times.items()}}
    ours = result["ms"]["ours"]["median"]
    if row.peers:
        rival = row.against or min(row.peers, key=lambda name: result["ms"][name]["median"])
        result["ratio"] = {"to": rival, "times_faster": result["ms"][rival]["median"] / ours}
    result["asked"] = {"times_faster": row.at_least, "ms": row.at_most, "times_less_memory": row.memory_at_least}
    if row.moved:
        result["GB_per_s"] = row.moved / ours / 1e6
    met = row.at_least is None or result["ratio"]["times_faster"] >= row.at_least
    met = met and (row.at_most is None or ours <= row.at_most)
    if device == "cuda":
        result["peak_MiB"] = {name: _peak_mib(call) for name, call in contestants.items()}
        if row.memory_at_least is not None:
            least = min(result["peak_MiB"][name] for name in row.peers)
            met = met and least >= row.memory_at_least * result["peak_MiB"]["ours"]
    result["met"] = met
    return result


def measure_all(rows: list[Row], device: str, only: str = "") -> list[dict[str, Any]]:
    results = []
    rows = [row for row in rows if only in row.name]
    with Progress(console=Console(width=132), transient=True) as progress:
        task = progress.add_task("measuring", total=len(rows))
        for row in rows:
            progress.update(task, description=row.name)
            results.append(measure(row, device))
            progress.advance(task)
    return results


def report(results: list[dict[str, Any]], device: str, notes: dict[str, Any], out: Path | None) -> None:
    console = Console(width=132)
    console.print(_table(results))
    for name, value in notes.items():
        console.print(f"{name}: {value}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": machine(device), "notes": notes, "rows": results}
        out.write_text(json.dumps(record, indent=1) + "\n")
        console.print(f"written to {out}")


def machine(device: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    if device == "cuda":
        import triton

        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "triton": triton.__version__,
        }
    else:
        facts |= {"cpu": _cpu_name(), "threads": torch.get_num_threads()}
    return facts


def _summary(times: list[float]) -> dict[str, float]:
    ranks = statistics.quantiles(times, n=10, method="inclusive")
    return {"p10": round(ranks[0], 5), "median": round(ranks[4], 5), "p90": round(ranks[8], 5)}


def _cpu_ms(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def _peak_mib(call: Callable[[], Any]) -> float:
    """The most memory taken during a call, beyond its inputs."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 2)


_flush: list[torch.Tensor] = []


def _gpu_ms(call: Callable[[], Any]) -> float:
    """Between two events, with cold caches; the host runs ahead while the cache is being flushed."""
    if not _flush:
        _flush.append(torch.empty(2**28, dtype=torch.int8, device="cuda"))
    torch.cuda.synchronize()
    for _ in range(16):  # a millisecond, in which the host prepares the launch
        _flush[0].zero_()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="median milliseconds; ratio to the fastest peer (or the one named) of the same run")
    for column in ("work", "ours", "peers", "times faster", "asked", "met", "GB/s"):
        table.add_column(column, justify="left" if column in ("work", "peers") else "right")
    for result in results:
        peers = ", ".join(f"{n} {_ms(t['median'])}" for n, t in result["ms"].items() if n != "ours")
        ratio = f"{result['ratio']['times_faster']:.1f}" if "ratio" in result else ""
        asked = " ".join(
            text
            for value, text in (
                (result["asked"]["times_faster"], f"{result['asked']['times_faster']}x"),
                (result["asked"]["ms"], f"{result['asked']['ms']} ms"),
                (result["asked"]["times_less_memory"], f"memory {result['asked']['times_less_memory']}x"),
            )
            if value is not None
        )
        bandwidth = f"{result['GB_per_s']:.0f}" if "GB_per_s" in result else ""
        met = ("yes" if result["met"] else "[bold red]no[/]") if asked else ""
        table.add_row(result["name"], _ms(result["ms"]["ours"]["median"]), peers, ratio, asked, met, bandwidth)
    return table


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()

"""Time and peak memory of a call, and the time of a copy, on CPU and GPU."""

import ctypes
import re
import statistics
import time
from pathlib import Path

import torch

import pointgrad

from .comparison import Call

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def milliseconds(call: Call, device: str) -> float:
    """Time of one call in milliseconds."""
    return _gpu_ms(call) if device == "cuda" else _cpu_ms(call)


def summary(times: list[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    ranks = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times * 9
    return {"p10": round(ranks[0], 5), "median": round(ranks[4], 5), "p90": round(ranks[8], 5)}


def _cpu_ms(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


_flush: list[torch.Tensor] = []


def _gpu_ms(call: Call) -> float:
    """Time between two events, with cold caches. The host launches the call while the cache is being flushed."""
    if not _flush:
        _flush.append(torch.empty(2**28, dtype=torch.int8, device="cuda"))
    torch.cuda.synchronize()
    for _ in range(48):  # three milliseconds, enough for the host to wake up and prepare its launches
        _flush[0].zero_()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def peak_mib(call: Call, device: str) -> float | None:
    """Peak memory of a call beyond its inputs, including the result.

    On a GPU this is the peak of torch's allocator, so memory allocated by other means does not count. On a CPU it is
    the peak resident set size that the Linux kernel records, so the memory of every library counts. Memory that malloc
    and pointgrad keep for reuse is released first, since reusing it would not count.

    Args:
        call: The call to measure.
        device: "cpu" or "cuda".

    Returns:
        Peak memory in MiB, or None where the system does not allow resetting the peak.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return round((torch.cuda.max_memory_allocated() - before) / 2**20, 2)
    try:
        ctypes.CDLL(None).malloc_trim(0)
        pointgrad.release_buffers()
        RESET.write_text("5")
        resident = _kib("VmRSS")
    except (OSError, AttributeError, TypeError):
        return None
    result = call()
    peak = _kib("VmHWM")
    del result
    return round(max(peak - resident, 0) / 1024, 1)


def _kib(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    if found is None:
        raise OSError(f"{STATUS} has no {name}")
    return int(found[1])


def copy_ms(moved: int, device: str, rounds: int = 11) -> float:
    """Median time of a copy that reads and writes `moved` bytes in total, with torch's number of threads."""
    source = torch.ones(max(moved // 2, 1), dtype=torch.int8, device=device)
    target = torch.zeros_like(source)
    return statistics.median(milliseconds(lambda: target.copy_(source), device) for _ in range(rounds))

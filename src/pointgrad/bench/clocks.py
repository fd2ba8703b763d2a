"""Milliseconds, peak memory and the time of a copy, on both devices."""

import ctypes
import re
import statistics
import time
from pathlib import Path

import torch

from pointgrad.ops import native

from .contest import Call

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def milliseconds(call: Call, device: str) -> float:
    return _gpu_ms(call) if device == "cuda" else _cpu_ms(call)


def summary(times: list[float]) -> dict[str, float]:
    ranks = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times * 9
    return {"p10": round(ranks[0], 5), "median": round(ranks[4], 5), "p90": round(ranks[8], 5)}


def _cpu_ms(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


_flush: list[torch.Tensor] = []


def _gpu_ms(call: Call) -> float:
    """Between two events, with cold caches; the host runs ahead while the cache is being flushed."""
    if not _flush:
        _flush.append(torch.empty(2**28, dtype=torch.int8, device="cuda"))
    torch.cuda.synchronize()
    for _ in range(48):  # three milliseconds, in which even a host that slept prepares its launches
        _flush[0].zero_()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def peak_mib(call: Call, device: str) -> float | None:
    """The most memory taken during a call beyond its inputs, result included; None where nobody can tell.

    On a GPU from torch's allocator, which sees torch's memory only. On a CPU from the kernel's own mark of the
    largest resident set, so that every library's memory counts; what malloc and pointgrad keep for their next call is
    given back first, or its reuse would be missed. Linux has such a mark that can be set back.
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
        _give_back_buffers()
        RESET.write_text("5")
        resident = _kib("VmRSS")
    except (OSError, AttributeError, TypeError):
        return None
    result = call()
    peak = _kib("VmHWM")
    del result
    return round(max(peak - resident, 0) / 1024, 1)


def _give_back_buffers() -> None:
    """Of pointgrad's large results, eight wait to be used again; nine new ones, never touched, push them out."""
    if native.module is not None and hasattr(native.module, "large_buffer"):
        new = [native.module.large_buffer(1) for _ in range(9)]
        del new


def _kib(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    if found is None:
        raise OSError(f"{STATUS} has no {name}")
    return int(found[1])


def copy_ms(moved: int, device: str, rounds: int = 11) -> float:
    """The time of a copy that moves so many bytes, read and written, by as many threads as everything else."""
    source = torch.ones(max(moved // 2, 1), dtype=torch.int8, device=device)
    target = torch.zeros_like(source)
    return statistics.median(milliseconds(lambda: target.copy_(source), device) for _ in range(rounds))

"""Checks of memory use: tensors saved for backward, and memory that is never freed."""

import gc
import itertools
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .subject import Failed, Passed, Subject, Warned, upstream_like


def saved(subject: Subject) -> None:
    """The memory saved for backward is in proportion to inputs and outputs."""
    subject.need_gradients()
    leaves = subject.inputs(subject.dtype)
    kept: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return value

    sources = [v.clone().requires_grad_() if i in subject.differentiable else v for i, v in enumerate(leaves)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        outputs = subject.call(sources)
    own = {
        v.untyped_storage().data_ptr(): v.untyped_storage().nbytes()
        for v in (*sources, *outputs)
        if isinstance(v, Tensor)
    }
    extra = sum(size for address, size in kept.items() if address not in own)
    total = sum(own.values())
    message = f"{sum(kept.values())} bytes saved, {extra} of them not in inputs or outputs ({total} bytes)"
    raise (Warned if extra > 4 * total + 4096 else Passed)(message)


def leaks(subject: Subject) -> None:
    """A call leaks no tensors, Python objects or process memory."""
    calls, many = 24, 9  # `many` is more than a small cache keeps, and less than a leak in every second call
    leaves = subject.inputs(subject.dtype)
    collecting = gc.isenabled()
    _once(subject, leaves)
    gc.collect()
    gc.disable()
    try:
        tensors = _live_tensors()
        kept = [storage for _ in range(calls) for storage in _once(subject, leaves)]
        until_collected = sum(storage.alive() for storage in kept) >= many
        gc.collect()
        if sum(storage.alive() for storage in kept) >= many or _live_tensors() - tensors >= many:
            raise Failed(f"tensors of {calls} calls are never freed: something outside the graph references them")
        if until_collected:
            raise Failed(
                "tensors are not freed until Python's garbage collector runs: there is a reference cycle, as from "
                "ctx.y = y for an output; use ctx.save_for_backward"
            )
    finally:
        if collecting:
            gc.enable()
    _check_growth(subject, leaves)


class _Storage:
    """Weak reference to the storage of a tensor, which may outlive the tensor object."""

    def __init__(self, tensor: Tensor) -> None:
        self._reference = tensor.untyped_storage()._weak_ref()

    def alive(self) -> bool:
        return not torch.UntypedStorage._expired(self._reference)

    def __del__(self) -> None:
        torch.UntypedStorage._free_weak_ref(self._reference)


def _once(subject: Subject, leaves: Sequence[Any]) -> list[_Storage]:
    """Run forward and backward on copies of the inputs; return the storages of inputs and outputs."""
    fresh = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    for i in subject.differentiable:
        fresh[i].requires_grad_()
    outputs = subject.call(fresh)
    live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
    if live:
        torch.autograd.backward(live, upstream_like(live))
    return [_Storage(value) for value in (*fresh, *outputs) if isinstance(value, Tensor)]


def _live_tensors() -> int:
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def _resident(subject: Subject) -> int:
    if subject.device != "cpu":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    if not sys.platform.startswith("linux"):
        return 0
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _check_growth(subject: Subject, leaves: Sequence[Any]) -> None:
    """Fail if process memory or Python's allocated blocks grow evenly over rounds of equal work, twice in a row."""

    def work(calls: int) -> None:
        for _ in range(calls):
            _once(subject, leaves)

    start = time.perf_counter()
    work(3)
    calls = int(max(10, min(1000, subject.budget / 4 / max((time.perf_counter() - start) / 3, 1e-6))))
    work(calls)
    found = ""
    for _ in range(2):  # unrelated activity of the process may look like a leak once, but not twice
        resident, blocks = [], []
        for i in range(5):
            if i:
                work(calls)
            gc.collect()
            resident.append(_resident(subject))
            blocks.append(sys.getallocatedblocks())
        found = _describe_growth(resident, blocks, calls)
        if not found:
            return
    raise Failed(found)


def _describe_growth(resident: list[int], blocks: list[int], calls: int) -> str:
    """Describe memory that grew by a similar amount in every round; empty if there is none."""
    grown = [after - before for before, after in itertools.pairwise(resident)]
    if sum(grown) > 2**20 and min(grown) > sum(grown) / 16:
        return f"process memory grows by {sum(grown) // (4 * calls)} bytes per call"
    grown = [after - before for before, after in itertools.pairwise(blocks)]
    if min(grown) >= max(0.4 * calls, 20):
        return f"{sum(grown) / (4 * calls):.1f} Python objects are leaked per call: a list or cache is unbounded"
    return ""

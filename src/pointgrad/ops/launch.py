"""Helpers for launching Triton kernels. Imported only by modules that import Triton."""

import functools
import os

import torch
import triton

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def power_of_2(n: int, low: int, high: int) -> int:
    """The smallest power of two that is at least n, clamped to [low, high]."""
    return max(low, min(high, triton.next_power_of_2(max(n, 1))))


@functools.cache
def can_launch_cooperatively() -> bool:
    """Whether this version of Triton supports cooperative launches, whose programs all run at once (3.3 and later)."""
    if INTERPRETED:
        return False
    target = triton.runtime.driver.active.get_current_target()
    options = triton.compiler.make_backend(target).parse_options({})
    return hasattr(options, "launch_cooperative_grid")


@functools.cache
def shared_memory(device: torch.device) -> int:
    """The bytes of shared memory that a program can use on a GPU."""
    if INTERPRETED:
        return 64 << 10
    return int(triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"])

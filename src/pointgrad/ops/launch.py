"""What every room's Triton launchers share. Imported by `kernels.py` files only."""

import triton

INTERPRETED = triton.knobs.runtime.interpret if hasattr(triton, "knobs") else False


def power_of_2(n: int, low: int, high: int) -> int:
    """The smallest power of two that holds n, kept within [low, high]."""
    return max(low, min(high, triton.next_power_of_2(max(n, 1))))

"""Seeds derived from several numbers."""

_MASK = 2**64 - 1


def mix(*numbers: int) -> int:
    """Hash several integers to 64 bits with SplitMix64. The result depends on their order.

    Example:
        >>> mix(0, 1) != mix(1, 0)
        True
    """
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state

"""Seeds from several numbers."""

_MASK = 2**64 - 1


def mix(*numbers: int) -> int:
    """64 bits that depend on every bit of the numbers and on their order: splitmix64, fed one after another.

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

"""Settings of the original's kernels. They are kept and have no effect on results, as in the original."""

from enum import Enum

__all__ = [
    "ConvMode",
    "get_conv_mode",
    "get_downsample_mode",
    "get_kmap_mode",
    "set_conv_mode",
    "set_downsample_mode",
    "set_kmap_mode",
]

KMAP_MODES = ("hashmap_on_the_fly", "hashmap")
DOWNSAMPLE_MODES = ("spconv", "minkowski")


class ConvMode(Enum):
    """Order in which the kernels of the original process rows."""

    mode0 = 0
    mode1 = 1
    mode2 = 2


_kmap_mode, _downsample_mode, _conv_mode = KMAP_MODES[0], DOWNSAMPLE_MODES[0], ConvMode.mode0


def get_kmap_mode() -> str:
    """Return the setting of `set_kmap_mode`."""
    return _kmap_mode


def set_kmap_mode(kmap_mode: str) -> None:
    """Keep a mode. Convolutions use the `kmap_mode` of their configuration, as in the original."""
    global _kmap_mode
    _kmap_mode = one_of("kmap_mode", kmap_mode, KMAP_MODES)


def get_downsample_mode() -> str:
    """Return the setting of `set_downsample_mode`."""
    return _downsample_mode


def set_downsample_mode(downsample_mode: str) -> None:
    """Keep a mode. Convolutions use the `downsample_mode` of their configuration, as in the original."""
    global _downsample_mode
    _downsample_mode = one_of("downsample_mode", downsample_mode, DOWNSAMPLE_MODES)


def get_conv_mode() -> ConvMode:
    """Return the setting of `set_conv_mode`."""
    return _conv_mode


def set_conv_mode(conv_mode: int | ConvMode) -> None:
    """Keep a mode, which has no effect."""
    global _conv_mode
    _conv_mode = ConvMode(conv_mode)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return a value that is allowed, and raise otherwise."""
    if value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, got {value!r}")
    return value

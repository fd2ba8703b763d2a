"""Saving images to files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pointgrad.data import FileError
from pointgrad.data.files.workspace import publish_bytes

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
ANIMATED = (".gif", ".webp")
SECONDS = 6.0  # default duration of an animation
LONGEST = 600.0  # maximum duration in seconds; GIF limits the duration of a frame


def save(
    path: str | Path,
    images: np.ndarray | Sequence[np.ndarray],
    *,
    seconds: float = SECONDS,
    overwrite: bool = False,
) -> None:
    """Save an image (PNG, JPEG, WebP or GIF), or an animation that repeats (GIF or WebP). The write is atomic.

    Args:
        path: The file; its suffix determines the format.
        images: An image (H, W, 3 or 4) uint8 from `picture`, or the frames from `turntable`.
        seconds: Total duration of an animation.
        overwrite: Whether to replace an existing file.

    Raises:
        FileError: If the format cannot store the images, the file cannot be written, or it exists and `overwrite` is
            false.
        ValueError: If `seconds` is out of range.

    Example:
        >>> save("a.txt", np.zeros((4, 4, 3), np.uint8))
        Traceback (most recent call last):
            ...
        pointgrad.data.files.errors.FileError: a.txt: expected a name that ends in .png, .jpg, .jpeg, .webp, .gif
    """
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"seconds must be in (0, {LONGEST:.0f}], got {seconds}")
    path = Path(path)
    frames = [images] if isinstance(images, np.ndarray) else list(images)
    check_suffix(path, moving=len(frames) > 1, clear=frames[0].shape[2] == 4)
    publish_bytes(path, encode(path.suffix.lower(), frames, seconds), overwrite)


def check_suffix(path: Path, *, moving: bool, clear: bool) -> None:
    """Raise `FileError` if the format does not support animation (`moving`) or transparency (`clear`)."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise FileError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if moving and suffix not in ANIMATED:
        raise FileError(f"{path}: expected a name that ends in {', '.join(ANIMATED)} for several frames")
    if clear and suffix not in (".png", ".webp"):
        raise FileError(f"{path}: expected a name that ends in .png, .webp for a transparent image")


def encode(suffix: str, images: Sequence[np.ndarray], seconds: float = SECONDS) -> bytes:
    """Encode images in the format of a suffix."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("images need pillow: pip install 'pointgrad[view]'", name=error.name) from None
    pictures = [Image.fromarray(image) for image in images]
    memory = io.BytesIO()
    if suffix == ".gif":
        pictures = _same_colors(images)
    loop = {"save_all": True, "append_images": pictures[1:], "duration": 1000 * seconds / len(images), "loop": 0}
    options = {
        ".png": {"optimize": True},
        ".webp": {"quality": 85, **loop} if len(images) > 1 else {"lossless": True},
        ".gif": {"optimize": True, **(loop if len(images) > 1 else {})},
    }
    kind = {".jpg": "JPEG", ".jpeg": "JPEG"}.get(suffix, suffix[1:].upper())
    pictures[0].save(memory, kind, **options.get(suffix, {"quality": 92, "subsampling": 0}))
    return memory.getvalue()


def _same_colors(images: Sequence[np.ndarray]) -> list[Any]:
    """Reduce all frames to one palette of 256 colors, to avoid flicker."""
    from PIL import Image

    every = max(len(images) // 6, 1)
    sheet = Image.fromarray(np.concatenate(images[::every]))
    palette = sheet.quantize(256, method=Image.Quantize.MEDIANCUT)
    return [Image.fromarray(image).quantize(palette=palette, dither=Image.Dither.NONE) for image in images]

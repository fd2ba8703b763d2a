"""Windows of 3 x 3 pixels of images, beside PyTorch's own operators of the same names.

PyTorch convolves without columns (oneDNN, cuDNN), and on a GPU by default in TF32, which ours leaves to
`torch.backends.cuda.matmul`; its other form, in full float32, is measured as well.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pointgrad import functional

from .. import forms
from ..contest import Attempt, Contest, Row, Setup

FLOAT32, TF32 = 1e-4, 2e-3  # relative errors that cuDNN's algorithms and TF32's eleven bits may make


def unfold(image: Callable[[], Tensor]) -> Contest:
    images = image()
    made = forms.contest(
        "forward",
        lambda x: functional.unfold(x, 3, padding=1),
        {"F.unfold": lambda x: F.unfold(x, 3, padding=1)},
        (images,),
    )
    made.moved = 4 * 10 * images.numel()
    return made


def fold(image: Callable[[], Tensor]) -> Contest:
    images = image()
    columns = torch.randn(len(images), images.shape[1] * 9, images[0, 0].numel(), device=images.device)
    return forms.contest(
        "forward",
        lambda x: functional.fold(x, images.shape[2:], 3, padding=1),
        {"F.fold": lambda x: F.fold(x, images.shape[2:], 3, padding=1)},
        (columns,),
        moved=4 * (columns.numel() + images.numel()),
    )


def convolution(mode: forms.Mode, image: Callable[[], Tensor], groups: int) -> Contest:
    images = image().requires_grad_()
    channels = images.shape[1]
    weight = torch.randn(channels, channels // groups, 3, 3, device=images.device, requires_grad=True)
    settings: dict[str, Any] = {"padding": 1, "groups": groups}
    made = forms.contest(
        mode,
        lambda x, w: functional.conv2d(x, w, **settings),
        {"F.conv2d": lambda x, w: F.conv2d(x, w, **settings)},
        (images, weight),
        (images, weight),
    )
    if images.is_cuda:
        by_default = made.plain["F.conv2d"].call

        def in_full() -> Any:
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                return by_default()

        exact = made.ours.call()  # which is checked itself
        made.plain = {"F.conv2d": Attempt(in_full, check=forms.close(lambda: exact, FLOAT32))}
        made.beside = {"F.conv2d in TF32": Attempt(by_default, check=forms.close(lambda: exact, TF32))}
        made.compiled = None  # it calls cuDNN as well
    return made


def pool(mode: forms.Mode, image: Callable[[], Tensor]) -> Contest:
    images = image().requires_grad_()
    return forms.contest(
        mode,
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        {"F.max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1)},
        (images,),
        (images,),
    )


def rows(setup: Setup) -> Iterator[Row]:
    images, side = (32 if setup.gpu else 4), (8 if setup.quick else 56)
    work = f"{images} x 64 x {side}^2"
    floor = 1.25 if setup.gpu else None

    def image() -> Tensor:
        return torch.randn(images, 64, side, side, device=setup.device)

    yield Row(f"unfold {work}", functools.partial(unfold, image), floor_at_most=floor)
    yield Row(f"fold {work}", functools.partial(fold, image), floor_at_most=floor)
    modes: tuple[forms.Mode, ...] = ("forward", "backward")
    for name, groups in (("conv2d", 1), ("depthwise conv2d", 64)):
        for mode in modes:
            yield Row(f"{name} {work} {mode}", functools.partial(convolution, mode, image, groups))
    for mode in modes:
        yield Row(f"max_pool2d {work} {mode}", functools.partial(pool, mode, image))

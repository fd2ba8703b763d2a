"""Convolution, unfold, fold and max pooling of 3 x 3 windows.

PyTorch convolves without unfolding (oneDNN, cuDNN). On a GPU it uses TF32 by default, while ours follows
`torch.backends.cuda.matmul`, so PyTorch is measured in full float32 as well.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from pointgrad import functional
from pointgrad.catalog.base import Passes

from .. import forms
from ..comparison import Comparison, Implementation, Row, Setup

FLOAT32, TF32 = 1e-4, 2e-3  # largest relative errors of cuDNN in float32 and in TF32, which has eleven bits


def convolution(passes: Passes, shape: tuple[int, int, int, int], groups: int, device: str) -> Comparison:
    images, weight = torch.randn(shape, device=device), torch.randn(shape[1], shape[1] // groups, 3, 3, device=device)
    settings: dict[str, Any] = {"padding": 1, "groups": groups}
    made = forms.compare(
        passes,
        lambda x, w: functional.conv2d(x, w, **settings),
        {"F.conv2d": lambda x, w: F.conv2d(x, w, **settings)},
        {"x": images, "w": weight},
        ("x", "w"),
    )
    if images.is_cuda:
        by_default = made.plain["F.conv2d"].call

        def in_float32() -> Any:
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                return by_default()

        exact = made.ours.call()  # checked against float64
        made.plain = {"F.conv2d": Implementation(in_float32, check=forms.close(lambda: exact, FLOAT32))}
        made.related = {"F.conv2d in TF32": Implementation(by_default, check=forms.close(lambda: exact, TF32))}
        made.compiled = None  # torch.compile calls cuDNN as well
    return made


def rows(setup: Setup) -> Iterator[Row]:
    images, side = (32 if setup.gpu else 4), (8 if setup.quick else 56)
    work, shape = f"{images} x 64 x {side}^2", (images, 64, side, side)
    both: tuple[Passes, ...] = ("forward", "backward")
    for name, groups in (("conv2d", 1), ("depthwise conv2d", 64)):
        for passes in both:
            yield Row(f"{name} {work} {passes}", functools.partial(convolution, passes, shape, groups, setup.device))

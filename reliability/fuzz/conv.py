"""unfold, fold, conv1d, conv2d and max_pool2d."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.functional import conv1d, conv2d, fold, max_pool2d, unfold

from .draw import Draw
from .operators import Arguments, Operator, linear_in_each

SIDES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33)


def _images(draw: Draw) -> tuple[list[int], list[int]]:
    """(N, C) or (C,), and (H, W)."""
    batch = [draw.number("images", 0, 3)] if draw.flag("batch") else []
    sides = SIDES[:6] if draw.tiny else SIDES
    return [*batch, draw.number("channels", 0, 5)], [draw.pick("height", sides), draw.pick("width", sides)]


def _windows(draw: Draw, size: list[int], axes: int = 2) -> Arguments:
    """Settings of windows that fit."""
    kernel, dilation, padding, stride = [], [], [], []
    for axis, length in enumerate(size[:axes]):
        padding.append(draw.number(f"padding {axis}", 0, 3))
        room = length + 2 * padding[axis]
        kernel.append(draw.number(f"kernel {axis}", 1, min(room, 4)))
        most = (room - 1) // (kernel[axis] - 1) if kernel[axis] > 1 else 3
        dilation.append(draw.number(f"dilation {axis}", 1, min(most, 4)))
        stride.append(draw.number(f"stride {axis}", 1, 4))
    return {"kernel_size": kernel, "dilation": dilation, "padding": padding, "stride": stride}


def _unfold(draw: Draw) -> Arguments:
    shape, size = _images(draw)
    return {**_windows(draw, size), "input": draw.floats("input", draw.dtype(), *shape, *size)}


def _fold(draw: Draw) -> Arguments:
    shape, size = _images(draw)
    windows = _windows(draw, size)
    count = 1
    for axis in range(2):
        reach = windows["dilation"][axis] * (windows["kernel_size"][axis] - 1) + 1
        count *= (size[axis] + 2 * windows["padding"][axis] - reach) // windows["stride"][axis] + 1
    rows = shape[-1] * windows["kernel_size"][0] * windows["kernel_size"][1]
    return {**windows, "output_size": size, "input": draw.floats("input", draw.dtype(), *shape[:-1], rows, count)}


def _conv(draw: Draw, axes: int) -> Arguments:
    shape, size = _images(draw)
    windows, dtype = _windows(draw, size, axes), draw.dtype()
    groups = draw.number("groups", 1, 3)
    inside = draw.number("channels of a group", 0, 3)
    outside = groups * draw.number("kernels of a group", 0, 3)
    kernel = windows.pop("kernel_size")
    arguments = {
        **windows, "groups": groups,
        "input": draw.floats("input", dtype, *shape[:-1], groups * inside, *size[:axes]),
        "weight": draw.floats("weight", dtype, outside, inside, *kernel),
    }  # fmt: skip
    if draw.flag("biased"):
        arguments["bias"] = draw.floats("bias", dtype, outside)
    if draw.flag("named padding", 4):
        fits = all(d * (k - 1) < s for d, k, s in zip(windows["dilation"], kernel, size, strict=False))
        arguments["padding"] = "valid" if fits and draw.flag("valid") else "same"
        if arguments["padding"] == "same":
            arguments["stride"] = 1
    return arguments


def _pool(draw: Draw) -> Arguments:
    shape, size = _images(draw)
    arguments = _windows(draw, size)
    kernel = arguments["kernel_size"]
    arguments["padding"] = [min(zeros, length // 2) for zeros, length in zip(arguments["padding"], kernel, strict=True)]
    for axis in range(2):
        room = size[axis] + 2 * arguments["padding"][axis]
        kernel[axis] = min(kernel[axis], room)
        arguments["padding"][axis] = min(arguments["padding"][axis], kernel[axis] // 2)
        room = size[axis] + 2 * arguments["padding"][axis]
        kernel[axis] = min(kernel[axis], room)
        if kernel[axis] > 1:
            arguments["dilation"][axis] = max(1, min(arguments["dilation"][axis], (room - 1) // (kernel[axis] - 1)))
    if draw.flag("stride of the kernel", 3):
        del arguments["stride"]
    return {
        **arguments, "input": draw.floats("input", draw.dtype(), *shape, *size),
        "ceil_mode": draw.flag("ceil"), "return_indices": draw.flag("indices"),
    }  # fmt: skip


def _pool_magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """Maxima are copies; a pixel adds up the gradients of the windows that it won."""
    with pointgrad.backend("reference"):
        where = max_pool2d(**{**arguments, "return_indices": True})[1]
    size = arguments["input"].shape
    pixels = size[-2] * size[-1]
    total = torch.zeros(*size[:-2], pixels + 1, dtype=torch.float64, device=where.device)
    place = torch.where(where < 0, pixels, where).flatten(-2)
    total.scatter_add_(-1, place, upstream[0].abs().flatten(-2))
    return [None], {"input": total[..., :pixels].reshape(size)}


INPUT, ALL = ("input",), ("input", "weight", "bias")
BAD = {
    "kernel_size": [0, -1, 2.0, (1, 2, 3), None, "3"], "stride": [0, -1, 1.5, True, (1, 1, 1)],
    "padding": [-1, 0.5, "full", None], "dilation": [0, -2, 1.0, None], "input": [None],
}  # fmt: skip
BAD_CONV = {**{name: values for name, values in BAD.items() if name != "kernel_size"}, "groups": [0, -1, 1.0, None]}
OPERATORS = [
    Operator("unfold", unfold, _unfold, INPUT, linear_in_each(unfold, INPUT, copies=True), bad_arguments=BAD),
    Operator("fold", fold, _fold, INPUT, linear_in_each(fold, INPUT), bad_arguments=BAD),
    Operator(
        "conv2d", conv2d, lambda draw: _conv(draw, 2), ALL, linear_in_each(conv2d, ALL),
        rounds=True, bad_arguments=BAD_CONV,
    ),
    Operator(
        "conv1d", conv1d, lambda draw: _conv(draw, 1), ALL, linear_in_each(conv1d, ALL),
        rounds=True, bad_arguments=BAD_CONV,
    ),
    Operator("max_pool2d", max_pool2d, _pool, INPUT, _pool_magnitudes, bad_arguments={**BAD, "ceil_mode": [1, None]}),
]  # fmt: skip

"""unfold, fold, conv1d, conv2d and max_pool2d."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pointgrad
from pointgrad.functional import conv1d, conv2d, fold, max_pool2d, unfold

from .base import EACH_PASS, Benchmark, OpInfo, Precision, Sample
from .errors import each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments, Sums, linear_in_each

UNEVEN = {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (1, 2), "stride": (1, 2)}
KERNEL: Arguments = {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (1, 0), "stride": (2, 1)}
ALL = ("input", "weight", "bias")
SIDES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33)
BAD: dict[str, Sequence[Any]] = {
    "kernel_size": [0, -1, 2.0, (1, 2, 3), None, "3"], "stride": [0, -1, 1.5, True, (1, 1, 1)],
    "padding": [-1, 0.5, "full", None], "dilation": [0, -2, 1.0, None], "input": [None],
}  # fmt: skip
BAD_CONV: dict[str, Sequence[Any]] = {
    **{name: values for name, values in BAD.items() if name != "kernel_size"},
    "groups": [0, -1, 1.0, None],
}


def distinct(m: Make, *shape: int) -> Tensor:
    """Whole numbers in any order, each once: exact in every dtype, and without ties for a maximum."""
    return torch.randperm(torch.Size(shape).numel()).reshape(shape).to(m.device, m.dtype)


def convolved(m: Make, shape: tuple[int, ...], weight: tuple[int, ...], **settings: Any) -> Arguments:
    return {"input": m.floats(*shape), "weight": m.floats(*weight), "bias": m.floats(weight[0]), **settings}


def images(m: Make) -> Tensor:
    return m.floats(2, 6, 9, max(m.rows // 20, 7))


def draw_images(d: Draw) -> tuple[list[int], list[int]]:
    """(N, C) or (C,), and (H, W)."""
    batch = [d.number("images", 0, 3)] if d.flag("batch") else []
    sides = SIDES[:6] if d.tiny else SIDES
    return [*batch, d.number("channels", 0, 5)], [d.pick("height", sides), d.pick("width", sides)]


def draw_windows(d: Draw, size: list[int], axes: int = 2) -> Arguments:
    """Settings of windows that fit."""
    kernel, dilation, padding, stride = [], [], [], []
    for axis, length in enumerate(size[:axes]):
        padding.append(d.number(f"padding {axis}", 0, 3))
        padded = length + 2 * padding[axis]
        kernel.append(d.number(f"kernel {axis}", 1, min(padded, 4)))
        most = (padded - 1) // (kernel[axis] - 1) if kernel[axis] > 1 else 3
        dilation.append(d.number(f"dilation {axis}", 1, min(most, 4)))
        stride.append(d.number(f"stride {axis}", 1, 4))
    return {"kernel_size": kernel, "dilation": dilation, "padding": padding, "stride": stride}


def draw_unfold(d: Draw) -> Arguments:
    shape, size = draw_images(d)
    return {**draw_windows(d, size), "input": d.floats(*shape, *size)}


def draw_fold(d: Draw) -> Arguments:
    shape, size = draw_images(d)
    windows = draw_windows(d, size)
    count = 1
    for axis in range(2):
        extent = windows["dilation"][axis] * (windows["kernel_size"][axis] - 1) + 1
        count *= (size[axis] + 2 * windows["padding"][axis] - extent) // windows["stride"][axis] + 1
    rows = shape[-1] * windows["kernel_size"][0] * windows["kernel_size"][1]
    return {**windows, "output_size": size, "input": d.floats(*shape[:-1], rows, count)}


def draw_conv(d: Draw, axes: int) -> Arguments:
    shape, size = draw_images(d)
    windows = draw_windows(d, size, axes)
    groups, per_group = d.number("groups", 1, 3), d.number("channels of a group", 0, 3)
    outputs, kernel = groups * d.number("kernels of a group", 0, 3), windows.pop("kernel_size")
    arguments = {
        **windows, "groups": groups, "input": d.floats(*shape[:-1], groups * per_group, *size[:axes]),
        "weight": d.floats(outputs, per_group, *kernel),
    }  # fmt: skip
    if d.flag("biased"):
        arguments["bias"] = d.floats(outputs)
    if d.flag("named padding", 4):
        fits = all(d * (k - 1) < s for d, k, s in zip(windows["dilation"], kernel, size, strict=False))
        arguments["padding"] = "valid" if fits and d.flag("valid") else "same"
        if arguments["padding"] == "same":
            arguments["stride"] = 1
    return arguments


def draw_pool(d: Draw) -> Arguments:
    shape, size = draw_images(d)
    arguments = draw_windows(d, size)
    kernel, padding = arguments["kernel_size"], arguments["padding"]
    for axis in range(2):
        padding[axis] = min(padding[axis], kernel[axis] // 2)
        kernel[axis] = min(kernel[axis], size[axis] + 2 * padding[axis])
        padding[axis] = min(padding[axis], kernel[axis] // 2)
        padded = size[axis] + 2 * padding[axis]
        kernel[axis] = min(kernel[axis], padded)
        if kernel[axis] > 1:
            arguments["dilation"][axis] = max(1, min(arguments["dilation"][axis], (padded - 1) // (kernel[axis] - 1)))
    if d.flag("stride of the kernel", 3):
        del arguments["stride"]
    flags = {"ceil_mode": d.flag("ceil"), "return_indices": d.flag("indices")}
    return {**arguments, "input": d.floats(*shape, *size), **flags}


def pool_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """Maxima are copies; a pixel sums the gradients of the windows of which it is the maximum."""
    with pointgrad.backend("reference"):
        where = max_pool2d(**{**arguments, "return_indices": True})[1]
    size = arguments["input"].shape
    pixels = size[-2] * size[-1]
    total = torch.zeros(*size[:-2], pixels + 1, dtype=torch.float64, device=where.device)
    place = torch.where(where < 0, pixels, where).flatten(-2)
    total.scatter_add_(-1, place, upstream[0].abs().flatten(-2))
    return [None], {"input": total[..., :pixels].reshape(size)}


image, weight = torch.zeros(1, 2, 4, 4), torch.zeros(3, 2, 3, 3)

OPERATORS = [
    OpInfo(
        "unfold", unfold, differentiable=("input",), plain=F.unfold,
        samples=[
            Sample("uneven", lambda m: {"input": m.floats(2, 2, 4, 5), **UNEVEN}, large=lambda m: {"input": m.floats(3, 5, 61, 47), **UNEVEN}),
            Sample("empty", lambda m: {"input": m.floats(0, 2, 3, 3), "kernel_size": 2}),
        ],
        errors=[
            *tensor_errors({"input": image, "kernel_size": 2}, input=[[1.0], image.long()]),
            *each(type_error, "kernel_size must be an int or two ints", got("2.0", image, 2.0), got("(2, 2, 2)", image, (2, 2, 2))),
            type_error("stride must be an int or two ints, got True", image, 2, stride=True),
            *each(value_error, "input must be (C, H, W) or (N, C, H, W) with at least one pixel", got("(4, 4)", image[0, 0], 2), got("(1, 2, 4, 0)", image[..., :0], 2)),
            value_error("kernel_size must be at least 1, got (0, 2)", image, (0, 2)),
            value_error("dilation must be at least 1, got (0, 0)", image, 2, dilation=0),
            value_error("padding must be at least 0, got (-1, -1)", image, 2, padding=-1),
            value_error("stride must be at least 1, got (1, 0)", image, 2, stride=(1, 0)),
            value_error("kernel_size must be at most the padded input (6, 6) after dilation, got (3, 7)", image, 3, dilation=(1, 3), padding=1),
        ],
        draw=draw_unfold, magnitudes=linear_in_each(unfold, ("input",), copies=True), bad_arguments=BAD,
        precision=[Precision(lambda m: {"input": images(m), **KERNEL})],
        benchmarks=[
            Benchmark(
                "unfold {0} x 64 x {1}^2", lambda m, n, side: {"input": m.floats(n, 64, side, side), "kernel_size": 3, "padding": 1},
                (4, 56), {"F.unfold": F.unfold}, {"": "forward"}, floor=True, cuda=(32, 56),
            ),
        ],
        growing=lambda n: (lambda x, s: unfold(x, 3, padding=1, stride=s), torch.rand(n, n + 1, n + 2, n + 3), n),
    ),
    OpInfo(
        "fold", fold, differentiable=("input",), plain=F.fold,
        samples=[
            Sample("uneven", lambda m: {"input": m.floats(2, 12, 16), "output_size": (4, 6), **UNEVEN}, large=lambda m: {"input": m.floats(3, 30, 61 * 25), "output_size": (61, 48), **UNEVEN}),
        ],
        errors=[
            value_error("input must be (C * kh * kw, L) or (N, C * kh * kw, L), got (1, 2, 4, 4)", image, 4, 2),
            value_error("output_size must be at least 1, got (0, 3)", image[0], (0, 3), 2),
            *each(value_error, "input must be (C * 2 * 2, 3 * 3) or (N, C * 2 * 2, 3 * 3) for output_size (4, 4)", got("(5, 9)", torch.zeros(5, 9), 4, 2), got("(4, 8)", torch.zeros(4, 8), 4, 2)),
        ],
        draw=draw_fold, magnitudes=linear_in_each(fold, ("input",)), bad_arguments=BAD,
        precision=[Precision(lambda m: {"input": m.floats(2, 36, 35), "output_size": (9, 9), **KERNEL})],
        benchmarks=[
            Benchmark("fold {0} x 64 x {1}^2", lambda m, n, side: {"input": m.floats(n, 64 * 9, side * side), "output_size": (side, side), "kernel_size": 3, "padding": 1}, (4, 56), {"F.fold": F.fold}, {"": "forward"}, floor=True, cuda=(32, 56)),
        ],
        growing=lambda n: (lambda x, h, w: fold(x, (h, w), 2), torch.rand(n, 4 * n, n * (n + 1)), n + 1, n + 2),
    ),
    OpInfo(
        "conv2d", conv2d, differentiable=ALL, plain=F.conv2d,
        samples=[
            Sample("strided", lambda m: convolved(m, (2, 2, 4, 3), (3, 2, 2, 2), padding=(1, 0), stride=(2, 1))),
            Sample("groups", lambda m: convolved(m, (2, 4, 3, 3), (2, 2, 2, 3), padding="same", groups=2)),
            Sample("empty", lambda m: convolved(m, (0, 2, 3, 3), (2, 2, 2, 2))),
        ],
        errors=[
            *tensor_errors({"input": image, "weight": weight}, weight=[None, weight.double(), weight.to("meta")], bias=[1.0]),
            type_error("groups must be an int, got float 1.0", image, weight, groups=1.0),
            value_error("weight must be (O, C / groups, kh, kw), got (2, 3, 3)", image, weight[0]),
            value_error("weight must be (O, C / groups, kh, kw) with C = 2, groups = 1, O a multiple of groups, got (3, 1, 3, 3)", image, weight[:, :1]),
            value_error("weight must be (O, C / groups, kh, kw) with C = 2, groups = 2, O a multiple of groups, got (3, 1, 3, 3)", image, weight[:, :1], groups=2),
            value_error("bias must be (O,) = (3,), got (2,)", image, weight, torch.zeros(2)),
            value_error("groups must be at least 1, got 0", image, weight, groups=0),
            value_error('padding must be "same", "valid" or integers, got full', image, weight, padding="full"),
            value_error('stride must be 1 with padding "same", got (2, 2)', image, weight, padding="same", stride=2),
            value_error("the kernel of weight must be at most the padded input (4, 2) after dilation, got (3, 3)", image[..., :2], weight),
        ],
        draw=lambda d: draw_conv(d, 2), magnitudes=linear_in_each(conv2d, ALL), rounds=True, bad_arguments=BAD_CONV,
        precision=[Precision(lambda m: {"input": images(m), "weight": m.floats(4, 6, 3, 2), "bias": m.floats(4)})],
        growing=lambda n: (
            conv2d, torch.rand(n, n + 1, n + 2, n + 3), torch.rand(n + 4, n + 1, n, n), torch.rand(n + 4),
        ),
    ),
    OpInfo(
        "conv1d", conv1d, differentiable=ALL, plain=F.conv1d,
        samples=[Sample("dilated", lambda m: convolved(m, (2, 2, 7), (4, 1, 3), dilation=2, padding=1, groups=2))],
        errors=[
            value_error("input must be (C, L) or (N, C, L) with L at least 1, got (1, 2, 4, 4)", image, weight),
            type_error("stride must be an int, got (1, 1)", image[0], weight[..., 0], stride=(1, 1)),
            value_error("the kernel of weight must be at most the padded input (4,) after dilation, got (5,)", image[:, :, 0], weight[..., 0], dilation=2),
        ],
        draw=lambda d: draw_conv(d, 1), magnitudes=linear_in_each(conv1d, ALL), rounds=True, bad_arguments=BAD_CONV,
        precision=[Precision(lambda m: {"input": m.floats(2, 6, m.rows), "weight": m.floats(4, 6, 3), "bias": m.floats(4)})],
        growing=lambda n: (conv1d, torch.rand(n, n + 1, n + 2), torch.rand(n + 3, n + 1, n)),
    ),
    OpInfo(
        "max_pool2d", max_pool2d, differentiable=("input",), plain=F.max_pool2d,
        samples=[
            Sample(
                "strided", lambda m: {"input": distinct(m, 2, 2, 5, 4), "kernel_size": 3, "stride": (1, 2), "padding": 1},
                large=lambda m: {"input": m.floats(3, 5, 47, 61), "kernel_size": 3, "stride": 2, "padding": 1},
            ),
            Sample("ties", lambda m: {"input": m.grid(1, 2, 5, 4), "kernel_size": (2, 3), "ceil_mode": True, "return_indices": True}, smooth=False),
        ],
        errors=[
            type_error("ceil_mode must be a bool, got int 1", image, 2, ceil_mode=1),
            value_error("kernel_size must have fewer than 2^31 pixels, got (131072, 131072)", image, 2**17, padding=2**16),
            value_error("padding must be at most half the kernel, (1, 1), got (1, 2)", image, (2, 3), padding=(1, 2)),
            value_error("kernel_size must be at most the padded input (4, 4) after dilation, got (5, 5)", image, 5),
        ],
        draw=draw_pool, magnitudes=pool_magnitudes, bad_arguments={**BAD, "ceil_mode": [1, None]},
        precision=[Precision(lambda m: {"input": m.distinct(256, 4, 2).permute(2, 1, 0).reshape(2, 4, 16, 16), "kernel_size": 3, "stride": 2})],
        benchmarks=[
            Benchmark(
                "max_pool2d {0} x 64 x {1}^2",
                lambda m, n, side: {"input": m.floats(n, 64, side, side), "kernel_size": 3, "stride": 2, "padding": 1},
                (4, 56), {"F.max_pool2d": F.max_pool2d}, EACH_PASS, ("input",), cuda=(32, 56),
            ),
        ],
        growing=lambda n: (max_pool2d, torch.rand(n, n + 1, n + 2, n + 3), n),
    ),
]  # fmt: skip

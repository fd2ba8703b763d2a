"""Ways to call unfold, fold, convolutions and max pooling, right and wrong."""

from typing import Any

import torch

from pointgrad.functional import conv1d, conv2d, fold, max_pool2d, unfold

from .base import Case, Make

grads = ("input",)
all_three = ("input", "weight", "bias")
uneven = {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (1, 2), "stride": (1, 2)}


def distinct(m: Make, *shape: int) -> torch.Tensor:
    """Whole numbers in any order, none twice: exact in every dtype, and no tie for a maximum."""
    return torch.randperm(torch.Size(shape).numel()).reshape(shape).to(m.device, m.dtype)


def convolved(m: Make, shape: tuple[int, ...], weight: tuple[int, ...], **settings: Any) -> dict[str, Any]:
    return {"input": m.floats(*shape), "weight": m.floats(*weight), "bias": m.floats(weight[0]), **settings}


CASES = [
    Case(
        "unfold", unfold, lambda m: {"input": m.floats(2, 2, 4, 5), **uneven}, grads,
        large=lambda m: {"input": m.floats(3, 5, 61, 47), **uneven},
    ),
    Case("unfold/empty", unfold, lambda m: {"input": m.floats(0, 2, 3, 3), "kernel_size": 2}, grads),
    Case(
        "fold", fold, lambda m: {"input": m.floats(2, 12, 16), "output_size": (4, 6), **uneven}, grads,
        large=lambda m: {"input": m.floats(3, 30, 61 * 25), "output_size": (61, 48), **uneven},
    ),
    Case("conv2d", conv2d, lambda m: convolved(m, (2, 2, 4, 3), (3, 2, 2, 2), padding=(1, 0), stride=(2, 1)), all_three),
    Case(
        "conv2d/groups", conv2d,
        lambda m: convolved(m, (2, 4, 3, 3), (2, 2, 2, 3), padding="same", groups=2), all_three,
    ),
    Case("conv2d/empty", conv2d, lambda m: convolved(m, (0, 2, 3, 3), (2, 2, 2, 2)), all_three),
    Case("conv1d", conv1d, lambda m: convolved(m, (2, 2, 7), (4, 1, 3), dilation=2, padding=1, groups=2), all_three),
    Case(
        "max_pool2d", max_pool2d,
        lambda m: {"input": distinct(m, 2, 2, 5, 4), "kernel_size": 3, "stride": (1, 2), "padding": 1}, grads,
        large=lambda m: {"input": m.floats(3, 5, 47, 61), "kernel_size": 3, "stride": 2, "padding": 1},
    ),
    Case(
        "max_pool2d/ties", max_pool2d,
        lambda m: {"input": m.grid(1, 2, 5, 4), "kernel_size": (2, 3), "ceil_mode": True, "return_indices": True},
        grads, smooth=False,
    ),
]  # fmt: skip

image = torch.zeros(1, 2, 4, 4)
weight = torch.zeros(3, 2, 3, 3)

# What metadata shows: the same on every device.
BAD_METADATA = [
    (lambda: unfold([1.0], 2), TypeError, "input must be a torch.Tensor, got list"),
    (lambda: unfold(image, 2.0), TypeError, "kernel_size must be an int or two ints, got 2.0"),
    (lambda: unfold(image, (2, 2, 2)), TypeError, "kernel_size must be an int or two ints, got (2, 2, 2)"),
    (lambda: unfold(image, 2, stride=True), TypeError, "stride must be an int or two ints, got True"),
    (lambda: unfold(image[0, 0], 2), ValueError, "input must be (C, H, W) or (N, C, H, W) with at least one pixel, got (4, 4)"),
    (lambda: unfold(image[..., :0], 2), ValueError, "input must be (C, H, W) or (N, C, H, W) with at least one pixel, got (1, 2, 4, 0)"),
    (lambda: unfold(image.long(), 2), TypeError, "input must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: unfold(image, (0, 2)), ValueError, "kernel_size must be at least 1, got (0, 2)"),
    (lambda: unfold(image, 2, dilation=0), ValueError, "dilation must be at least 1, got (0, 0)"),
    (lambda: unfold(image, 2, padding=-1), ValueError, "padding must be at least 0, got (-1, -1)"),
    (lambda: unfold(image, 2, stride=(1, 0)), ValueError, "stride must be at least 1, got (1, 0)"),
    (lambda: unfold(image, 3, dilation=(1, 3), padding=1), ValueError, "kernel_size must be at most the padded input (6, 6) after dilation, got (3, 7)"),
    (lambda: fold(image, 4, 2), ValueError, "input must be (C * kh * kw, L) or (N, C * kh * kw, L), got (1, 2, 4, 4)"),
    (lambda: fold(image[0], (0, 3), 2), ValueError, "output_size must be at least 1, got (0, 3)"),
    (lambda: fold(torch.zeros(5, 9), 4, 2), ValueError, "input must be (C * 2 * 2, 3 * 3) or (N, C * 2 * 2, 3 * 3) for output_size (4, 4), got (5, 9)"),
    (lambda: fold(torch.zeros(4, 8), 4, 2), ValueError, "input must be (C * 2 * 2, 3 * 3) or (N, C * 2 * 2, 3 * 3) for output_size (4, 4), got (4, 8)"),
    (lambda: conv2d(image, None), TypeError, "weight must be a torch.Tensor, got NoneType None"),
    (lambda: conv2d(image, weight, 1.0), TypeError, "bias must be a torch.Tensor, got float 1.0"),
    (lambda: conv2d(image, weight, groups=1.0), TypeError, "groups must be an int, got float 1.0"),
    (lambda: conv2d(image, weight[0]), ValueError, "weight must be (O, C / groups, kh, kw), got (2, 3, 3)"),
    (lambda: conv2d(image, weight[:, :1]), ValueError, "weight must be (O, C / groups, kh, kw) with C = 2, groups = 1, O a multiple of groups, got (3, 1, 3, 3)"),
    (lambda: conv2d(image, weight[:, :1], groups=2), ValueError, "weight must be (O, C / groups, kh, kw) with C = 2, groups = 2, O a multiple of groups, got (3, 1, 3, 3)"),
    (lambda: conv2d(image, weight, torch.zeros(2)), ValueError, "bias must be (O,) = (3,), got (2,)"),
    (lambda: conv2d(image, weight.double()), TypeError, "weight must have the dtype of input, float32, got float64"),
    (lambda: conv2d(image, weight.to("meta")), ValueError, "weight must be on the device of input, cpu, got meta"),
    (lambda: conv2d(image, weight, groups=0), ValueError, "groups must be at least 1, got 0"),
    (lambda: conv2d(image, weight, padding="full"), ValueError, "padding must be \"same\", \"valid\" or integers, got full"),
    (lambda: conv2d(image, weight, padding="same", stride=2), ValueError, "stride must be 1 with padding \"same\", got (2, 2)"),
    (lambda: conv2d(image[..., :2], weight), ValueError, "the kernel of weight must be at most the padded input (4, 2) after dilation, got (3, 3)"),
    (lambda: conv1d(image, weight), ValueError, "input must be (C, L) or (N, C, L) with L at least 1, got (1, 2, 4, 4)"),
    (lambda: conv1d(image[0], weight[..., 0], stride=(1, 1)), TypeError, "stride must be an int, got (1, 1)"),
    (lambda: conv1d(image[:, :, 0], weight[..., 0], dilation=2), ValueError, "the kernel of weight must be at most the padded input (4,) after dilation, got (5,)"),
    (lambda: max_pool2d(image, 2, ceil_mode=1), TypeError, "ceil_mode must be a bool, got int 1"),
    (lambda: max_pool2d(image, 2**17, padding=2**16), ValueError, "kernel_size must have fewer than 2^31 pixels, got (131072, 131072)"),
    (lambda: max_pool2d(image, (2, 3), padding=(1, 2)), ValueError, "padding must be at most half the kernel, (1, 1), got (1, 2)"),
    (lambda: max_pool2d(image, 5), ValueError, "kernel_size must be at most the padded input (4, 4) after dilation, got (5, 5)"),
]  # fmt: skip

# What only values show: nothing here, these operators take no index.
BAD_VALUES: list[Any] = []

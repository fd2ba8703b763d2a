"""Windows of images: unfold and fold, convolutions made of them, and max pooling.

Layouts, signatures and results are those of `torch.nn.functional`: images are (N, C, H, W), channels before pixels.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from torch import Tensor

from .. import checks
from . import register

__all__ = ["conv1d", "conv2d", "fold", "max_pool2d", "unfold"]  # exported by pointgrad.functional

Sizes = int | Sequence[int]

_IMAGES = {1: "(C, L) or (N, C, L) with L at least 1", 2: "(C, H, W) or (N, C, H, W) with at least one pixel"}
_WEIGHTS = {1: "(O, C / groups, k)", 2: "(O, C / groups, kh, kw)"}


def unfold(input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """The values of each window of an image as a column (im2col), arranged as by `torch.nn.functional.unfold`.

    input: (N, C, H, W), or (C, H, W); float64 to bfloat16.
    kernel_size: of a window, (kh, kw). Here and below, one int stands for both axes.
    dilation: the distance between neighbouring values of a window. stride: the distance between windows.
    padding: how many zeros are put around the image.
    returns: (N, C * kh * kw, L), or without N. `out[n, (c * kh + i) * kw + j, y * ow + x]` is the value (i, j) of
        window (y, x) in channel c. L = oh * ow counts the windows, which along each axis are
        `(size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1`.

    Gradients reach `input`, to any order: the backward is `fold`, which adds up where windows overlap.

    >>> unfold(torch.arange(9.).reshape(1, 3, 3), 2)
    tensor([[0., 1., 3., 4.],
            [1., 2., 4., 5.],
            [3., 4., 6., 7.],
            [4., 5., 7., 8.]])
    """
    checks.tensor("input", input)
    kernel, steps = _sizes("kernel_size", kernel_size), _steps(dilation, padding, stride)
    _check_images(input)
    checks.dtype("input", input, checks.FLOATS)
    _check_least("kernel_size", kernel, 1)
    _check_steps(*steps)
    windows = _windows("kernel_size", input.shape[-2:], kernel, *steps)
    dilation, padding, stride = steps
    return _batched(input, 4, lambda images: register.unfold(images, kernel, stride, dilation, padding, windows))


def fold(
    input: Tensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """Adds the columns of windows into an image (col2im): the adjoint of `unfold`, not its inverse.

    input: (N, C * kh * kw, L), or (C * kh * kw, L), as `unfold` returns them for an image of `output_size`.
    output_size: (H, W) of the image. kernel_size, dilation, padding, stride: as for `unfold`.
    returns: (N, C, H, W), or without N. A pixel is the sum of its values in all the windows that cover it, zero where
        none does. What falls onto the padding is dropped. Sums are kept in at least float32.

    `(unfold(x) * y).sum()` equals `(x * fold(y)).sum()`. `fold(unfold(x))` is x times the number of windows that cover
    each pixel, which is `fold(unfold(torch.ones_like(x)))`. Gradients reach `input`, to any order: the backward is
    `unfold`. The order of a sum is that of the kernel's places, on every device.

    >>> fold(unfold(torch.arange(9.).reshape(1, 3, 3), 2), 3, 2)
    tensor([[[ 0.,  2.,  2.],
             [ 6., 16., 10.],
             [ 6., 14.,  8.]]])
    """
    checks.tensor("input", input)
    size, kernel = _sizes("output_size", output_size), _sizes("kernel_size", kernel_size)
    steps = _steps(dilation, padding, stride)
    checks.shape(input.dim() in (2, 3), "input", "(C * kh * kw, L) or (N, C * kh * kw, L)", input)
    checks.dtype("input", input, checks.FLOATS)
    _check_least("output_size", size, 1)
    _check_least("kernel_size", kernel, 1)
    _check_steps(*steps)
    windows = _windows("kernel_size", size, kernel, *steps)
    fits = input.shape[-2] % (kernel[0] * kernel[1]) == 0 and input.shape[-1] == windows[0] * windows[1]

    def contract() -> str:
        rows, columns = f"C * {kernel[0]} * {kernel[1]}", f"{windows[0]} * {windows[1]}"
        return f"({rows}, {columns}) or (N, {rows}, {columns}) for output_size {tuple(size)}"

    checks.shape(fits, "input", contract, input)
    dilation, padding, stride = steps
    return _batched(input, 3, lambda cols: register.fold(cols, size, kernel, stride, dilation, padding, windows))


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """The product of each window with each of O kernels: a matrix product with the columns of `unfold`.

    input: (N, C, H, W), or (C, H, W); float64 to bfloat16.
    weight: (O, C / groups, kh, kw). bias: (O,).
    stride, padding, dilation: as for `unfold`; padding may be "valid" (none) or, with stride 1, "same": as many zeros
        as make the output as large as the input, if odd one more at the bottom and right.
    groups: input and output channels are cut into so many parts, and each output part sees its own input part only.
    returns: (N, O, oh, ow), or without N. Sums are kept in at least float32.

    Gradients reach input, weight and bias, to any order. Kept for the backward are input and weight, not the columns,
    which have kh * kw times the values of the input and are made again. A batch is worked on in portions, so that the
    columns of few images are there at a time. On a GPU the product follows `torch.backends.cuda.matmul`. Under
    autocast the inputs are cast to the widest dtype among them.

    >>> image = torch.arange(16.).reshape(1, 1, 4, 4)
    >>> conv2d(image, torch.tensor([[[[1., 0.], [0., -1.]]]]), torch.tensor([100.]), stride=2)
    tensor([[[[95., 95.],
              [95., 95.]]]])
    """
    return _convolve(2, input, weight, bias, stride, padding, dilation, groups)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """`conv2d` of an image with a height of one.

    input: (N, C, L), or (C, L). weight: (O, C / groups, k). bias: (O,).
    returns: (N, O, windows), or without N. Everything else is as for `conv2d`.

    >>> conv1d(torch.tensor([[1., 2., 4., 8.]]), torch.tensor([[[-1., 1.]]]))
    tensor([[1., 2., 4.]])
    """
    return _convolve(1, input, weight, bias, stride, padding, dilation, groups)


@overload
def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor: ...
@overload
def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest value of each window, as `torch.nn.functional.max_pool2d` finds it.

    input: (N, C, H, W), or (C, H, W); float64 to bfloat16.
    kernel_size, dilation: as for `unfold`. stride: that of the windows, by default the kernel's size.
    padding: at most half the kernel; it is never the maximum.
    ceil_mode: whether a last window that only begins in the image, or before it, counts.
    return_indices: also return where each maximum is: int64, its `row * W + column`.
    returns: (N, C, oh, ow), or without N; or this and the indices.

    Of equal values the first wins, row by row. A NaN is the maximum; of several the last, as in PyTorch. A window that
    has no pixel at all, which a large dilation can leave, gives -inf and the index -1. Gradients reach `input`, to any
    order: each goes to the pixel that won, which adds up those of all its windows, in at least float32.

    >>> max_pool2d(torch.tensor([[[1., 5., 2.], [7., 0., 7.]]]), (2, 2), stride=1, return_indices=True)
    (tensor([[[7., 7.]]]), tensor([[[3, 5]]]))
    """
    checks.tensor("input", input)
    kernel = _sizes("kernel_size", kernel_size)
    steps = _steps(dilation, padding, kernel if stride is None else stride)
    checks.kind(isinstance(ceil_mode, bool), "ceil_mode", "a bool", ceil_mode)
    checks.kind(isinstance(return_indices, bool), "return_indices", "a bool", return_indices)
    _check_images(input)
    checks.dtype("input", input, checks.FLOATS)
    _check_least("kernel_size", kernel, 1)
    _check_steps(*steps)
    checks.value(kernel[0] * kernel[1] < 2**31, "kernel_size", "fewer than 2^31 pixels", tuple(kernel), verb="have")
    dilation, padding, stride = steps
    half = [size // 2 for size in kernel]
    small = all(zeros <= most for zeros, most in zip(padding, half, strict=True))
    checks.value(small, "padding", lambda: f"at most half the kernel, {tuple(half)}", tuple(padding))
    windows = _windows("kernel_size", input.shape[-2:], kernel, *steps, ceil_mode=ceil_mode)
    shape = (*input.shape[:-2], *windows)
    images = input if input.dim() == 4 else input.unsqueeze(0)
    values, index = register.max_pool2d(images, kernel, stride, dilation, padding, windows)
    return (values.reshape(shape), index.reshape(shape)) if return_indices else values.reshape(shape)


def _convolve(
    axes: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Tensor:
    checks.tensor("input", input)
    checks.tensor("weight", weight)
    if bias is not None:
        checks.tensor("bias", bias)
    named = isinstance(padding, str)
    dilation, zeros, stride = _steps(dilation, 0 if named else padding, stride, axes)
    checks.kind(checks.is_integer(groups), "groups", "an int", groups)
    _check_images(input, axes)
    channels, size, kernel = input.shape[-axes - 1], input.shape[-axes:], weight.shape[2:]
    whole = weight.dim() == axes + 2 and all(length > 0 for length in kernel)
    checks.shape(whole, "weight", _WEIGHTS[axes], weight)
    if groups >= 1:  # or it is refused below, with the other values
        fits = weight.shape[1] * groups == channels and weight.shape[0] % groups == 0
        checks.shape(
            fits,
            "weight",
            lambda: f"{_WEIGHTS[axes]} with C = {channels}, groups = {groups}, O a multiple of groups",
            weight,
        )
    if bias is not None:
        checks.shape(bias.shape == weight.shape[:1], "bias", lambda: f"(O,) = ({weight.shape[0]},)", bias)
    checks.dtype("input", input, checks.FLOATS)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None:
            checks.dtype(name, value, checks.FLOATS)
            if not checks.autocasts(input):
                checks.same_dtype(name, value, "input", input)
            checks.device(name, value, "input", input)
    checks.value(groups >= 1, "groups", "at least 1", groups)
    _check_steps(dilation, zeros, stride)
    checks.value(not named or padding in ("same", "valid"), "padding", '"same", "valid" or integers', padding)
    if padding == "same":
        checks.value(all(step == 1 for step in stride), "stride", '1 with padding "same"', tuple(stride))
        zeros = [step * (length - 1) // 2 for step, length in zip(dilation, kernel, strict=True)]
        windows = list(size)
    else:
        windows = _windows("the kernel of weight", size, kernel, dilation, zeros, stride)
    if axes == 1:
        input, weight = input.unsqueeze(-2), weight.unsqueeze(-2)
        stride, dilation, zeros, windows = [1, *stride], [1, *dilation], [0, *zeros], [1, *windows]
    images = input if input.dim() == 4 else input.unsqueeze(0)
    out = register.conv2d(images, weight, bias, stride, dilation, zeros, windows, groups)
    return out.reshape(*input.shape[:-3], weight.shape[0], *windows[-axes:])


def _sizes(name: str, received: Any, axes: int = 2) -> list[int]:
    """One size per axis, from one int or from as many as there are axes."""
    sizes = [received] * axes if checks.is_integer(received) else received
    several = isinstance(sizes, Sequence) and not isinstance(sizes, str)
    if several and len(sizes) == 1:
        sizes = list(sizes) * axes
    if not several or len(sizes) != axes or not all(checks.is_integer(size) for size in sizes):
        raise TypeError(f"{name} must be an int{' or two ints' if axes == 2 else ''}, got {received!r}")
    return list(sizes)


def _steps(dilation: Any, padding: Any, stride: Any, axes: int = 2) -> tuple[list[int], list[int], list[int]]:
    named = (("dilation", dilation), ("padding", padding), ("stride", stride))
    first, second, third = (_sizes(name, received, axes) for name, received in named)
    return first, second, third


def _check_images(input: Tensor, axes: int = 2) -> None:
    fits = input.dim() in (axes + 1, axes + 2) and all(length > 0 for length in input.shape[-axes:])
    checks.shape(fits, "input", _IMAGES[axes], input)


def _check_least(name: str, sizes: list[int], least: int) -> None:
    checks.value(all(size >= least for size in sizes), name, f"at least {least}", tuple(sizes))


def _check_steps(dilation: list[int], padding: list[int], stride: list[int]) -> None:
    _check_least("dilation", dilation, 1)
    _check_least("padding", padding, 0)
    _check_least("stride", stride, 1)


def _windows(
    name: str,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
    ceil_mode: bool = False,
) -> list[int]:
    """How many windows there are along each axis; `name` holds the kernel."""
    padded = [length + 2 * zeros for length, zeros in zip(size, padding, strict=True)]
    reach = [step * (length - 1) + 1 for step, length in zip(dilation, kernel, strict=True)]
    windows = []
    for axis, step in enumerate(stride):
        room = padded[axis] - reach[axis]
        count = (room + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= size[axis] + padding[axis]:
            count -= 1  # it would begin behind the image
        windows.append(count)
    checks.value(
        all(count >= 1 for count in windows),
        name,
        lambda: f"at most the padded input {tuple(padded)} after dilation",
        tuple(reach),
    )
    return windows


def _batched(value: Tensor, dims: int, call: Callable[[Tensor], Tensor]) -> Tensor:
    """The result for a value that may come without its first dimension, the batch."""
    return call(value) if value.dim() == dims else call(value.unsqueeze(0)).squeeze(0)

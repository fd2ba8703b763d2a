"""Windows of images: unfold and fold, convolutions, and max pooling.

Layouts, signatures and results are those of `torch.nn.functional`. Images are (N, C, H, W).
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
    """Copy each window of an image into a column (im2col), like `torch.nn.functional.unfold`.

    Gradients flow to `input`, to any order. The backward is `fold`.

    Args:
        input: (N, C, H, W) or (C, H, W); float64 to bfloat16.
        kernel_size: The size of a window, (kh, kw). For this and the following arguments, an int applies to both axes.
        dilation: The distance between adjacent values of a window.
        padding: The number of zeros on each side of the image.
        stride: The distance between windows.

    Returns:
        (N, C * kh * kw, L), or without N. `out[n, (c * kh + i) * kw + j, y * ow + x]` is value (i, j) of window (y, x)
        in channel c. There are L = oh * ow windows, with
        `(size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1` along each axis.

    Example:
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
    """Sum columns of windows into an image (col2im): the adjoint of `unfold`, not its inverse.

    `(unfold(x) * y).sum()` equals `(x * fold(y)).sum()`. `fold(unfold(x))` is x times the number of windows that cover
    each pixel, which is `fold(unfold(torch.ones_like(x)))`. Gradients flow to `input`, to any order. The backward is
    `unfold`. Sums are in the order of the positions in the kernel, on every device, and accumulated in at least
    float32.

    Args:
        input: (N, C * kh * kw, L) or (C * kh * kw, L), as returned by `unfold` for an image of `output_size`.
        output_size: (H, W) of the image.
        kernel_size: As for `unfold`.
        dilation: As for `unfold`.
        padding: As for `unfold`. Values in the padding are dropped.
        stride: As for `unfold`.

    Returns:
        (N, C, H, W), or without N. A pixel is the sum of its values in all windows that cover it, zero without windows.

    Example:
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
    """Convolve an image: a matrix product of the weight with the columns of `unfold`.

    Gradients flow to `input`, `weight` and `bias`, to any order. Only `input` and `weight` are saved for the backward;
    the columns, which have kh * kw times as many values as the input, are computed again. Large batches are processed
    in portions, which limits the memory of the columns. On a GPU the settings of `torch.backends.cuda.matmul` apply.
    Under autocast the inputs are cast to the widest dtype among them.

    Args:
        input: (N, C, H, W) or (C, H, W); float64 to bfloat16.
        weight: (O, C / groups, kh, kw).
        bias: (O,).
        stride: As for `unfold`.
        padding: As for `unfold`, or "valid" (no padding), or, with stride 1, "same": the output has the size of the
            input, and an odd number of zeros puts one more at the bottom or right.
        dilation: As for `unfold`.
        groups: The number of parts into which input and output channels are divided. Each part of the output depends
            only on the same part of the input.

    Returns:
        (N, O, oh, ow), or without N. Sums are accumulated in at least float32.

    Example:
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
    """Convolve sequences: `conv2d` of an image with a height of one.

    Args:
        input: (N, C, L) or (C, L).
        weight: (O, C / groups, k).
        bias: (O,).
        stride: As for `conv2d`, along one axis.
        padding: As for `conv2d`, along one axis.
        dilation: As for `conv2d`, along one axis.
        groups: As for `conv2d`.

    Returns:
        (N, O, windows), or without N.

    Example:
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
    """Compute the maximum of each window, like `torch.nn.functional.max_pool2d`.

    Of equal values the first one in row-major order is chosen. NaN is the maximum; of several NaNs the last one is
    chosen, as in PyTorch. A window without any pixel, which a large dilation makes possible, gives -inf and index -1.
    Gradients flow to the chosen pixels of `input`, to any order, and are summed in at least float32.

    Args:
        input: (N, C, H, W) or (C, H, W); float64 to bfloat16.
        kernel_size: As for `unfold`.
        stride: The distance between windows, by default `kernel_size`.
        padding: As for `unfold`, at most half of `kernel_size`. Padding is never the maximum.
        dilation: As for `unfold`.
        ceil_mode: Whether to keep a last window that extends beyond the padded image.
        return_indices: Whether to also return the pixel of each maximum, `row * W + column`, int64.

    Returns:
        (N, C, oh, ow), or without N; with `return_indices` a tuple of this and the indices.

    Example:
        >>> max_pool2d(torch.tensor([[[1., 5., 2.], [7., 0., 7.]]]), (2, 2), stride=1, return_indices=True)
        (tensor([[[7., 7.]]]), tensor([[[3, 5]]]))
    """
    checks.tensor("input", input)
    kernel = _sizes("kernel_size", kernel_size)
    steps = _steps(dilation, padding, kernel if stride is None else stride)
    checks.boolean("ceil_mode", ceil_mode)
    checks.boolean("return_indices", return_indices)
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
    if groups >= 1:  # else it is rejected below, with the other values
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
    """One size for each axis, from one int or from one int per axis."""
    sizes = [received] * axes if checks.is_integer(received) else received
    several = isinstance(sizes, Sequence) and not isinstance(sizes, str)
    if several and len(sizes) == 1:
        sizes = list(sizes) * axes
    if not several or len(sizes) != axes or not all(checks.is_integer(size) for size in sizes):
        raise TypeError(f"{name} must be an int{' or two ints' if axes == 2 else ''}, got {checks.shown(received)}")
    for size in sizes:
        checks.value(-(2**63) <= size < 2**63, name, "a 64-bit number", size)
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
    checks.value(all(zeros < 2**61 for zeros in padding), "padding", "below 2^61", tuple(padding))
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
    """The number of windows along each axis. `name` is the argument that holds the kernel."""
    padded = [length + 2 * zeros for length, zeros in zip(size, padding, strict=True)]
    reach = [step * (length - 1) + 1 for step, length in zip(dilation, kernel, strict=True)]
    windows = []
    for axis, step in enumerate(stride):
        slack = padded[axis] - reach[axis]
        count = (slack + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= size[axis] + padding[axis]:
            count -= 1  # the last window would begin after the image
        windows.append(count)
    checks.value(
        all(count >= 1 for count in windows),
        name,
        lambda: f"at most the padded input {tuple(padded)} after dilation",
        tuple(reach),
    )
    return windows


def _batched(value: Tensor, dims: int, call: Callable[[Tensor], Tensor]) -> Tensor:
    """Call with a batch dimension, which is added and removed if the value has none."""
    return call(value) if value.dim() == dims else call(value.unsqueeze(0)).squeeze(0)

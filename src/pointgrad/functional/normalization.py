"""Group, layer and batch normalization."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks
from pointgrad.ops.sums import fixed_sum, sum_dtype

Dims = tuple[int, ...]


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Group normalization, as `torch.nn.functional.group_norm`.

    Each sample and group of channels is normalized over its channels and all positions.

    Args:
        input: (N, C, *), with any number of dimensions of positions. For points (B, N, C), pass `x.transpose(1, 2)`.
        num_groups: Number of groups of C / num_groups consecutive channels.
        weight: (C,) scale of each channel; 1 by default.
        bias: (C,) shift of each channel; 0 by default.
        eps: Added to the variance.

    Returns:
        The shape of `input`. A group with a single value gives the bias (torch raises an error for a single sample).

    Example:
        >>> group_norm(torch.tensor([[1.0, 3.0, 10.0, 30.0]]), 2)
        tensor([[-1.0000,  1.0000, -1.0000,  1.0000]])
    """
    _check_channels(input, weight, bias, eps)
    checks.kind(checks.is_integer(num_groups), "num_groups", "an int", num_groups)
    samples, channels = input.shape[:2]
    divides = num_groups > 0 and channels % num_groups == 0
    checks.value(divides, "num_groups", lambda: f"a divisor of the number of channels, C = {channels}", num_groups)
    width = channels // num_groups
    x = input.reshape(samples, num_groups, width, input.shape[2:].numel())
    scale, shift = (None if p is None else p.reshape(1, num_groups, width, 1) for p in (weight, bias))
    return _Normalize.apply(x, scale, shift, (2, 3), (0, 3), float(eps), _casts(input))[0].reshape(input.shape)


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer normalization over the last dimensions, as `torch.nn.functional.layer_norm`.

    Args:
        input: (*, normalized_shape), with any number of leading dimensions.
        normalized_shape: The last dimensions, which are normalized together; an int for one dimension.
        weight: Scale of each element of `normalized_shape`; 1 by default.
        bias: Shift of each element of `normalized_shape`; 0 by default.
        eps: Added to the variance.

    Returns:
        The shape of `input`.

    Example:
        >>> layer_norm(torch.tensor([[1.0, 3.0], [10.0, 30.0]]), (2,), bias=torch.tensor([0.0, 5.0]))
        tensor([[-1.0000,  6.0000],
                [-1.0000,  6.0000]])
    """
    checks.tensor("input", input)
    several = isinstance(normalized_shape, Sequence) and not isinstance(normalized_shape, str | bytes)
    sizes: Any = normalized_shape if several else (normalized_shape,)
    whole = all(map(checks.is_integer, sizes))
    checks.kind(whole, "normalized_shape", "an int or several ints", normalized_shape)
    sizes = tuple(sizes)
    checks.value(len(sizes) > 0, "normalized_shape", "one or more sizes", normalized_shape)
    leading = input.dim() - len(sizes)
    fits = leading >= 0 and tuple(input.shape[leading:]) == sizes
    checks.shape(fits, "input", f"(*, {', '.join(map(str, sizes))})", input)
    _check_parameters(input, weight, bias, sizes, "normalized_shape", eps)
    x = input.reshape(input.shape[:leading].numel(), math.prod(sizes))
    scale, shift = (None if p is None else p.reshape(1, math.prod(sizes)) for p in (weight, bias))
    return _Normalize.apply(x, scale, shift, (1,), (0,), float(eps), _casts(input))[0].reshape(input.shape)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalization, as `torch.nn.functional.batch_norm`.

    Each channel is normalized over all samples and positions.

    Args:
        input: (N, C, *), with any number of dimensions of positions.
        running_mean: (C,) running mean, which has no gradient. In training it is updated in place, if given; otherwise
            it is used instead of the mean of the batch, and required.
        running_var: (C,) running variance, likewise. It is updated with the unbiased variance of the batch.
        weight: (C,) scale of each channel; 1 by default.
        bias: (C,) shift of each channel; 0 by default.
        training: Whether to use the mean and variance of the batch.
        momentum: Weight of the batch in running statistics.
        eps: Added to the variance.

    Returns:
        The shape of `input`.

    Example:
        >>> mean, var = torch.zeros(1), torch.ones(1)
        >>> batch_norm(torch.tensor([[1.0], [3.0]]), mean, var, training=True)
        tensor([[-1.0000],
                [ 1.0000]])
        >>> mean, var
        (tensor([0.2000]), tensor([1.1000]))
    """
    _check_channels(input, weight, bias, eps)
    samples, channels = input.shape[:2]
    for name, value in (("running_mean", running_mean), ("running_var", running_var)):
        if value is not None:
            checks.tensor(name, value)
            checks.shape(value.shape == (channels,), name, lambda: f"(C,) = ({channels},)", value)
            checks.dtype(name, value, checks.FLOATS)
            checks.device(name, value, "input", input)
        checks.value(training or value is not None, name, "a tensor unless training is True", None)
    both = (running_mean is None) == (running_var is None)
    checks.value(both, "running_mean and running_var", "both None or both tensors", "one of each")
    checks.number("momentum", momentum)
    positions = input.shape[2:].numel()
    count = samples * positions
    x = input.reshape(samples, channels, positions)
    scale, shift = (None if p is None else p.reshape(1, channels, 1) for p in (weight, bias))
    if not training:
        assert running_mean is not None
        assert running_var is not None
        given = (value.detach().reshape(1, channels, 1) for value in (running_mean, running_var))
        return _Standardize.apply(x, *given, scale, shift, float(eps)).reshape(input.shape)
    checks.shape(count != 1, "input", "more than one value per channel in training", input, verb="have")
    y, mean, var = _Normalize.apply(x, scale, shift, (0, 2), (0, 2), float(eps), False)
    if running_mean is not None and running_var is not None and count > 1:
        with torch.no_grad():
            for value, batch in ((running_mean, mean), (running_var, var * (count / (count - 1)))):
                value.copy_((1 - momentum) * value + momentum * batch.reshape(channels))
    return y.reshape(input.shape)


class _Normalize(torch.autograd.Function):
    """Normalization over `dims`, with a scale and a shift that are the same along `shared` dimensions."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        input: Tensor, weight: Tensor | None, bias: Tensor | None, dims: Dims, shared: Dims, eps: float, wide: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = _widened(input)
        mean, var = _moments(x, dims)
        y = _affine((x - mean) * (var + eps).rsqrt(), weight, bias)
        # No `to` without effect: see softmax.py.
        return (y if wide or y.dtype == input.dtype else y.to(input.dtype)), mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
        input, weight, bias, ctx.dims, ctx.shared, ctx.eps, _ = inputs
        ctx.dtypes = [None if value is None else value.dtype for value in (input, weight, bias)]
        ctx.mark_non_differentiable(*outputs[1:])  # for running statistics
        for_input, for_weight, _, *_ = ctx.needs_input_grad
        ctx.save_for_backward(input if for_input or for_weight else None, weight if for_input else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _mean: Any, _var: Any) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        for_input, for_weight, for_bias, *_ = ctx.needs_input_grad
        dy = _widened(grad)
        dx = dw = db = None
        if for_input or for_weight:
            x = input.to(dy.dtype)
            mean, var = _moments(x, ctx.dims)  # computed again: second derivatives need their dependence on x
            rstd = (var + ctx.eps).rsqrt()
            normal = (x - mean) * rstd
        if for_input:
            g = dy if weight is None else dy * weight.to(dy.dtype)
            dx = rstd * (g - _mean_over(g, ctx.dims) - normal * _mean_over(g * normal, ctx.dims))
            dx = dx.to(ctx.dtypes[0])
        if for_weight:
            dw = _sum_over(dy * normal, ctx.shared).to(ctx.dtypes[1])
        if for_bias:
            db = _sum_over(dy, ctx.shared).to(ctx.dtypes[2])
        return dx, dw, db, None, None, None, None  # dims, shared, eps, wide: not differentiable


class _Standardize(torch.autograd.Function):
    """Normalization (N, C, S) with given mean and variance (1, C, 1), which are constants."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        input: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        x = _widened(input)
        y = _affine((x - mean.to(x.dtype)) * (var.to(x.dtype) + eps).rsqrt(), weight, bias)
        return y if y.dtype == input.dtype else y.to(input.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, mean, var, weight, bias, ctx.eps = inputs
        ctx.dtypes = [None if value is None else value.dtype for value in (input, weight, bias)]
        for_input, _, _, for_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(input if for_weight else None, mean, var, weight if for_input else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, mean, var, weight = ctx.saved_tensors
        for_input, _, _, for_weight, for_bias, _ = ctx.needs_input_grad
        dy = _widened(grad)
        rstd = (var.to(dy.dtype) + ctx.eps).rsqrt()
        dx = dw = db = None
        if for_input:
            dx = (dy * rstd * (1 if weight is None else weight.to(dy.dtype))).to(ctx.dtypes[0])
        if for_weight:
            dw = _sum_over(dy * (input.to(dy.dtype) - mean.to(dy.dtype)) * rstd, (0, 2)).to(ctx.dtypes[1])
        if for_bias:
            db = _sum_over(dy, (0, 2)).to(ctx.dtypes[2])
        return dx, None, None, dw, db, None  # mean, var: constants; eps: not differentiable


def _moments(x: Tensor, dims: Dims) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over `dims`, which are kept."""
    mean = _mean_over(x, dims)
    return mean, _mean_over((x - mean).square(), dims)


def _mean_over(x: Tensor, dims: Dims) -> Tensor:
    return _sum_over(x, dims) / max(math.prod([x.shape[d] for d in dims]), 1)


def _sum_over(x: Tensor, dims: Dims) -> Tensor:
    """Sum over `dims`, which are kept; the same bits for any number of threads."""
    kept = [1 if d in dims else size for d, size in enumerate(x.shape)]
    return fixed_sum(x).reshape(kept) if math.prod(kept) == 1 else x.sum(dims, keepdim=True)


def _affine(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = normal if weight is None else normal * weight.to(normal.dtype)
    return scaled if bias is None else scaled + bias.to(normal.dtype)


def _widened(value: Tensor) -> Tensor:
    return value.to(sum_dtype(value.dtype))


def _casts(input: Tensor) -> bool:
    """Whether autocast computes this norm in float32 and returns that, as in PyTorch."""
    return input.is_cuda and checks.autocasts(input)


def _check_channels(input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
    checks.tensor("input", input)
    checks.shape(input.dim() >= 2, "input", "(N, C, *)", input)
    _check_parameters(input, weight, bias, (input.shape[1],), "(C,)", eps)


def _check_parameters(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, sizes: tuple[int, ...], described: str, eps: float
) -> None:
    given = [(name, value) for name, value in (("weight", weight), ("bias", bias)) if value is not None]
    for name, value in given:
        checks.tensor(name, value)
        checks.shape(tuple(value.shape) == sizes, name, lambda: f"{described} = {sizes}", value)
    checks.dtype("input", input, checks.FLOATS)
    for name, value in given:
        if value.dtype != torch.float32 or input.dtype.itemsize > 2:  # 16-bit inputs may have float32 parameters
            if checks.autocasts(input):
                checks.dtype(name, value, checks.FLOATS)
            else:
                checks.same_dtype(name, value, "input", input)
        checks.device(name, value, "input", input)
    checks.number("eps", eps)
    checks.value(eps >= 0, "eps", "at least 0", eps)

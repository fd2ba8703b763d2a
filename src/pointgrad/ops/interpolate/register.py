"""Schema, fake and autograd of this room's operators.

Three operators are closed under differentiation (docs/operators/interpolate.md): `trilinear` sums corners, its adjoint
`trilinear_spread` spreads a gradient over corners, `trilinear_slope` differentiates by the point. With
a tangent each uses the weights' derivative along it, which is what second derivatives need. Likewise
`grid_sample`, `grid_splat` and `grid_slope`, whose corners are voxels of a grid.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import legacy_operator as operator
from . import reference


def _fake_trilinear(corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    return corners.new_empty((corners.shape[0], corners.shape[2]))


def _fake_spread(grad: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    return grad.new_empty((grad.shape[0], 8, grad.shape[1]))


def _fake_slope(grad: Tensor, corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    return grad.new_empty((grad.shape[0], 3))


def _save_trilinear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    corners, points, tangent = inputs
    by_point = ctx.needed[1] or ctx.needed[2]
    ctx.save_for_backward(corners if by_point else None, points, tangent)


def _grad_trilinear(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    corners, points, tangent = ctx.saved_tensors
    for_corners, for_points, for_tangent = ctx.needed[:3]
    return (
        trilinear_spread(grad, points, tangent) if for_corners else None,
        trilinear_slope(grad, corners, points, tangent) if for_points else None,
        trilinear_slope(grad, corners, points, None) if for_tangent else None,
    )


def _save_spread(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, points, tangent = inputs
    by_point = ctx.needed[1] or ctx.needed[2]
    ctx.save_for_backward(grad if by_point else None, points, tangent)


def _grad_spread(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    grad, points, tangent = ctx.saved_tensors
    for_grad, for_points, for_tangent = ctx.needed[:3]
    return (
        trilinear(grad_out, points, tangent) if for_grad else None,
        trilinear_slope(grad, grad_out, points, tangent) if for_points else None,
        trilinear_slope(grad, grad_out, points, None) if for_tangent else None,
    )


def _save_slope(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grad_slope(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    grad, corners, points, tangent = ctx.saved_tensors
    if tangent is not None:
        return _through_reference(ctx, reference.trilinear_slope, grad_out)
    for_grad, for_corners, for_points = ctx.needed[:3]
    return (
        trilinear(corners, points, grad_out) if for_grad else None,
        trilinear_spread(grad, points, grad_out) if for_corners else None,
        trilinear_slope(grad, corners, points, grad_out) if for_points else None,
        None,  # tangent: not given
    )


def _through_reference(
    ctx: Any, fn: Callable[..., Tensor], grad_out: Tensor, *settings: Any
) -> tuple[Tensor | None, ...]:
    """Third derivatives: rare, so they are left to autograd on the plain PyTorch form."""
    wanted = ctx.needed[:4]
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [x.view_as(x) if need else x for x, need in zip(ctx.saved_tensors, wanted, strict=True)]
        sources = [x for x, need in zip(inputs, wanted, strict=True) if need]
        grads = iter(torch.autograd.grad(fn(*inputs, *settings), sources, grad_out, create_graph=again))
    return *(next(grads) if need else None for need in wanted), *(None for _ in settings)


def _fake_sample(
    grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool
) -> Tensor:
    return grid.new_empty((*points.shape[:2], grid.shape[1]))


def _fake_splat(
    features: Tensor,
    points: Tensor,
    tangent: Tensor | None,
    depth: int,
    height: int,
    width: int,
    padding_mode: str,
    align_corners: bool,
) -> Tensor:
    return features.new_empty((features.shape[0], features.shape[2], depth, height, width))


def _fake_grid_slope(
    grad: Tensor, grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool
) -> Tensor:
    return grad.new_empty(points.shape)


def _save_sample(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grid, points, tangent, *ctx.settings = inputs
    by_point = ctx.needed[1] or ctx.needed[2]
    ctx.save_for_backward(grid if by_point else None, points, tangent)
    ctx.sizes = grid.shape[2:]


def _grad_sample(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grid, points, tangent = ctx.saved_tensors
    for_grid, for_points, for_tangent = ctx.needed[:3]
    return (
        grid_splat(grad, points, tangent, *ctx.sizes, *ctx.settings) if for_grid else None,
        grid_slope(grad, grid, points, tangent, *ctx.settings) if for_points else None,
        grid_slope(grad, grid, points, None, *ctx.settings) if for_tangent else None,
        None,  # padding_mode
        None,  # align_corners
    )


def _save_splat(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, points, tangent, _, _, _, *ctx.settings = inputs
    by_point = ctx.needed[1] or ctx.needed[2]
    ctx.save_for_backward(features if by_point else None, points, tangent)


def _grad_splat(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    features, points, tangent = ctx.saved_tensors
    for_features, for_points, for_tangent = ctx.needed[:3]
    return (
        grid_sample(grad_out, points, tangent, *ctx.settings) if for_features else None,
        grid_slope(features, grad_out, points, tangent, *ctx.settings) if for_points else None,
        grid_slope(features, grad_out, points, None, *ctx.settings) if for_tangent else None,
        *(None, None, None),  # depth, height, width: integers
        None,  # padding_mode
        None,  # align_corners
    )


def _save_grid_slope(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, padding_mode, align_corners = inputs
    ctx.save_for_backward(*tensors)
    ctx.settings = (padding_mode, align_corners)


def _grad_grid_slope(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    grad, grid, points, tangent = ctx.saved_tensors
    if tangent is not None:
        return _through_reference(ctx, reference.grid_slope, grad_out, *ctx.settings)
    for_grad, for_grid, for_points = ctx.needed[:3]
    return (
        grid_sample(grid, points, grad_out, *ctx.settings) if for_grad else None,
        grid_splat(grad, points, grad_out, *grid.shape[2:], *ctx.settings) if for_grid else None,
        grid_slope(grad, grid, points, grad_out, *ctx.settings) if for_points else None,
        None,  # tangent: not given
        None,  # padding_mode
        None,  # align_corners
    )


trilinear = operator(
    "trilinear(Tensor corners, Tensor points, Tensor? tangent) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_trilinear,
    save=_save_trilinear,
    backward=_grad_trilinear,
    autocast="widest",
)

trilinear_spread = operator(
    "trilinear_spread(Tensor grad, Tensor points, Tensor? tangent) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_spread,
    save=_save_spread,
    backward=_grad_spread,
)

trilinear_slope = operator(
    "trilinear_slope(Tensor grad, Tensor corners, Tensor points, Tensor? tangent) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_slope,
    save=_save_slope,
    backward=_grad_slope,
)

grid_sample = operator(
    "grid_sample(Tensor grid, Tensor points, Tensor? tangent, str padding_mode, bool align_corners) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_sample,
    save=_save_sample,
    backward=_grad_sample,
    autocast="widest",
)

grid_splat = operator(
    "grid_splat(Tensor features, Tensor points, Tensor? tangent, SymInt depth, SymInt height, SymInt width, "
    "str padding_mode, bool align_corners) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_splat,
    save=_save_splat,
    backward=_grad_splat,
    autocast="widest",
)

grid_slope = operator(
    "grid_slope(Tensor grad, Tensor grid, Tensor points, Tensor? tangent, str padding_mode, bool align_corners) "
    "-> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_grid_slope,
    save=_save_grid_slope,
    backward=_grad_grid_slope,
)

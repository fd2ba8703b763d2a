"""Registration of this family's operators: fake outputs and gradients.

Three operators are closed under differentiation (docs/operators/interpolate.md): `trilinear` sums corners, its adjoint
`trilinear_spread` distributes a gradient over corners, and `trilinear_slope` is the derivative by the point. With a
tangent, each uses the derivative of the weights along it, which second derivatives need. The same holds for
`grid_sample`, `grid_splat` and `grid_slope`, whose corners are voxels of a grid.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..registry import operator
from . import reference


def _fit_points(values: Tensor, points: Tensor, tangent: Tensor | None) -> bool:
    """Whether points (..., 3) and a tangent have the floating dtype of the values."""
    dtype, shape = points.dtype, points.shape
    if dtype not in checks.FLOATS or values.dtype != dtype or len(shape) == 0 or shape[-1] != 3:
        return False
    return tangent is None or (tangent.dtype == dtype and tangent.shape == shape)


_POINTS = "points (N, 3), and tangent (N, 3) or None, of one floating dtype"


def _fits_trilinear(corners: Tensor, points: Tensor, tangent: Tensor | None) -> bool:
    shape = corners.shape
    return len(shape) == 3 and shape[1] == 8 and points.shape == (shape[0], 3) and _fit_points(corners, points, tangent)


def _fake_trilinear(corners: Tensor) -> Tensor:
    return corners.new_empty((corners.shape[0], corners.shape[2]))


def _save_trilinear(ctx: Any, inputs: Any, output: Tensor) -> None:
    by_point = ctx.needed.points or ctx.needed.tangent
    ctx.save_for_backward(inputs.corners if by_point else None, inputs.points, inputs.tangent)


def _grad_trilinear(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    corners, points, tangent = ctx.saved_tensors
    needed = ctx.needed
    return {
        "corners": trilinear_spread(grad, points, tangent) if needed.corners else None,
        "points": trilinear_slope(grad, corners, points, tangent) if needed.points else None,
        "tangent": trilinear_slope(grad, corners, points, None) if needed.tangent else None,
    }


trilinear = operator(
    reference.trilinear,
    contract=f"corners (N, 8, F), {_POINTS}",
    fits=_fits_trilinear,
    fake=_fake_trilinear,
    save=_save_trilinear,
    backward=_grad_trilinear,
    autocast="widest",
)


def _fits_spread(grad: Tensor, points: Tensor, tangent: Tensor | None) -> bool:
    shape = grad.shape
    return len(shape) == 2 and points.shape == (shape[0], 3) and _fit_points(grad, points, tangent)


def _fake_spread(grad: Tensor) -> Tensor:
    return grad.new_empty((grad.shape[0], 8, grad.shape[1]))


def _save_spread(ctx: Any, inputs: Any, output: Tensor) -> None:
    by_point = ctx.needed.points or ctx.needed.tangent
    ctx.save_for_backward(inputs.grad if by_point else None, inputs.points, inputs.tangent)


def _grad_spread(ctx: Any, grad_out: Tensor) -> dict[str, Tensor | None]:
    grad, points, tangent = ctx.saved_tensors
    needed = ctx.needed
    return {
        "grad": trilinear(grad_out, points, tangent) if needed.grad else None,
        "points": trilinear_slope(grad, grad_out, points, tangent) if needed.points else None,
        "tangent": trilinear_slope(grad, grad_out, points, None) if needed.tangent else None,
    }


trilinear_spread = operator(
    reference.trilinear_spread,
    contract=f"grad (N, F), {_POINTS}",
    fits=_fits_spread,
    fake=_fake_spread,
    save=_save_spread,
    backward=_grad_spread,
)


def _fits_slope(grad: Tensor, corners: Tensor, points: Tensor, tangent: Tensor | None) -> bool:
    shape = grad.shape
    return (
        _fits_spread(grad, points, tangent) and corners.shape == (shape[0], 8, shape[1]) and corners.dtype == grad.dtype
    )


def _fake_slope(grad: Tensor) -> Tensor:
    return grad.new_empty((grad.shape[0], 3))


def _save_slope(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grad_slope(ctx: Any, grad_out: Tensor) -> dict[str, Tensor | None]:
    grad, corners, points, tangent = ctx.saved_tensors
    if tangent is not None:
        return _through_reference(ctx, ("grad", "corners", "points", "tangent"), reference.trilinear_slope, grad_out)
    needed = ctx.needed
    return {
        "grad": trilinear(corners, points, grad_out) if needed.grad else None,
        "corners": trilinear_spread(grad, points, grad_out) if needed.corners else None,
        "points": trilinear_slope(grad, corners, points, grad_out) if needed.points else None,
    }


trilinear_slope = operator(
    reference.trilinear_slope,
    contract=f"grad (N, F), corners (N, 8, F), {_POINTS}",
    fits=_fits_slope,
    fake=_fake_slope,
    save=_save_slope,
    backward=_grad_slope,
)


def _through_reference(
    ctx: Any, names: tuple[str, ...], fn: Callable[..., Tensor], grad_out: Tensor, *settings: Any
) -> dict[str, Tensor | None]:
    """Third derivatives, which are rare: autograd through the reference. `names` are those of the saved tensors."""
    wanted = [getattr(ctx.needed, name) for name in names]
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [x.view_as(x) if need else x for x, need in zip(ctx.saved_tensors, wanted, strict=True)]
        sources = {name: x for name, x, need in zip(names, inputs, wanted, strict=True) if need}
        output = fn(*inputs, *settings)
        grads = torch.autograd.grad(output, tuple(sources.values()), grad_out, create_graph=create_graph)
    return dict(zip(sources, grads, strict=True))


_MODES = ("zeros", "border", "reflection")
_GRID = "grid (B, C, D, H, W) with at least one voxel"
_PLACES = (
    'points (B, N, 3) and tangent (B, N, 3) or None of one floating dtype, and padding_mode "zeros", "border" or '
    '"reflection"'
)


def _fits_sample(grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str) -> bool:
    shape, places = grid.shape, points.shape
    return (
        len(shape) == 5
        and len(places) == 3
        and places[0] == shape[0]
        and shape[2] > 0
        and shape[3] > 0
        and shape[4] > 0
        and padding_mode in _MODES
        and _fit_points(grid, points, tangent)
    )


def _fake_sample(grid: Tensor, points: Tensor) -> Tensor:
    return grid.new_empty((*points.shape[:2], grid.shape[1]))


def _save_sample(ctx: Any, inputs: Any, output: Tensor) -> None:
    by_point = ctx.needed.points or ctx.needed.tangent
    ctx.save_for_backward(inputs.grid if by_point else None, inputs.points, inputs.tangent)
    ctx.sizes, ctx.settings = inputs.grid.shape[2:], (inputs.padding_mode, inputs.align_corners)


def _grad_sample(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    grid, points, tangent = ctx.saved_tensors
    needed = ctx.needed
    return {
        "grid": grid_splat(grad, points, tangent, *ctx.sizes, *ctx.settings) if needed.grid else None,
        "points": grid_slope(grad, grid, points, tangent, *ctx.settings) if needed.points else None,
        "tangent": grid_slope(grad, grid, points, None, *ctx.settings) if needed.tangent else None,
    }


grid_sample = operator(
    reference.grid_sample,
    contract=f"{_GRID}, {_PLACES}",
    fits=_fits_sample,
    fake=_fake_sample,
    save=_save_sample,
    backward=_grad_sample,
    autocast="widest",
)


def _fits_splat(
    features: Tensor,
    points: Tensor,
    tangent: Tensor | None,
    depth: int,
    height: int,
    width: int,
    padding_mode: str,
) -> bool:
    shape = features.shape
    return (
        len(shape) == 3
        and points.shape == (shape[0], shape[1], 3)
        and depth > 0
        and height > 0
        and width > 0
        and depth * height * width < 2**48  # more than a processor can address
        and padding_mode in _MODES
        and _fit_points(features, points, tangent)
    )


def _fake_splat(features: Tensor, depth: int, height: int, width: int) -> Tensor:
    return features.new_empty((features.shape[0], features.shape[2], depth, height, width))


def _save_splat(ctx: Any, inputs: Any, output: Tensor) -> None:
    by_point = ctx.needed.points or ctx.needed.tangent
    ctx.save_for_backward(inputs.features if by_point else None, inputs.points, inputs.tangent)
    ctx.settings = (inputs.padding_mode, inputs.align_corners)


def _grad_splat(ctx: Any, grad_out: Tensor) -> dict[str, Tensor | None]:
    features, points, tangent = ctx.saved_tensors
    needed = ctx.needed
    return {
        "features": grid_sample(grad_out, points, tangent, *ctx.settings) if needed.features else None,
        "points": grid_slope(features, grad_out, points, tangent, *ctx.settings) if needed.points else None,
        "tangent": grid_slope(features, grad_out, points, None, *ctx.settings) if needed.tangent else None,
    }


grid_splat = operator(
    reference.grid_splat,
    contract=f"features (B, N, C), depth, height and width of at least 1, {_PLACES}",
    fits=_fits_splat,
    fake=_fake_splat,
    save=_save_splat,
    backward=_grad_splat,
    autocast="widest",
)


def _fits_grid_slope(grad: Tensor, grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str) -> bool:
    return (
        _fits_sample(grid, points, tangent, padding_mode)
        and grad.shape == (*points.shape[:2], grid.shape[1])
        and grad.dtype == grid.dtype
    )


def _fake_grid_slope(grad: Tensor, points: Tensor) -> Tensor:
    return grad.new_empty(points.shape)


def _save_grid_slope(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.grad, inputs.grid, inputs.points, inputs.tangent)
    ctx.settings = (inputs.padding_mode, inputs.align_corners)


def _grad_grid_slope(ctx: Any, grad_out: Tensor) -> dict[str, Tensor | None]:
    grad, grid, points, tangent = ctx.saved_tensors
    if tangent is not None:
        names = ("grad", "grid", "points", "tangent")
        return _through_reference(ctx, names, reference.grid_slope, grad_out, *ctx.settings)
    needed = ctx.needed
    return {
        "grad": grid_sample(grid, points, grad_out, *ctx.settings) if needed.grad else None,
        "grid": grid_splat(grad, points, grad_out, *grid.shape[2:], *ctx.settings) if needed.grid else None,
        "points": grid_slope(grad, grid, points, grad_out, *ctx.settings) if needed.points else None,
    }


grid_slope = operator(
    reference.grid_slope,
    contract=f"grad (B, N, C), {_GRID}, {_PLACES}",
    fits=_fits_grid_slope,
    fake=_fake_grid_slope,
    save=_save_grid_slope,
    backward=_grad_grid_slope,
)

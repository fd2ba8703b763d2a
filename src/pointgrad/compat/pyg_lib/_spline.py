"""B-spline kernels."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._library import composite

_DEGREES = (1, 2, 3)


@composite("spline_basis(Tensor pseudo, Tensor kernel_size, Tensor is_open_spline, int degree=1) -> (Tensor, Tensor)")
def spline_basis(pseudo: Tensor, kernel_size: Tensor, is_open_spline: Tensor, degree: int = 1) -> tuple[Tensor, Tensor]:
    checks.shape(pseudo.dim() == 2, "pseudo", "(E, D)", pseudo)
    axes = pseudo.shape[1]
    for name, value in (("kernel_size", kernel_size), ("is_open_spline", is_open_spline)):
        checks.shape(value.shape == (axes,), name, f"(D,) = ({axes},)", value)
        checks.device(name, value, "pseudo", pseudo)
    checks.dtype("pseudo", pseudo, checks.FLOATS)
    checks.dtype("kernel_size", kernel_size, (torch.int64,))
    checks.value(degree in _DEGREES, "degree", "1, 2 or 3", degree)
    # Knot of each of the (degree + 1)**D supports along each axis; the first axis changes fastest.
    support = torch.arange((degree + 1) ** axes, device=pseudo.device).unsqueeze(1)
    knot = support // (degree + 1) ** torch.arange(axes, device=pseudo.device) % (degree + 1)  # (S, D)
    position = pseudo * (kernel_size - degree * is_open_spline.long())
    floor = position.detach().floor()
    index = (floor.long().unsqueeze(1) + knot) % kernel_size  # (E, S, D)
    stride = torch.cat([torch.ones_like(kernel_size[:1]), kernel_size.cumprod(0)[:-1]])
    pieces = torch.stack(_pieces(position - floor, degree), dim=1)  # (E, degree + 1, D)
    basis = pieces.gather(1, knot.expand(pseudo.shape[0], -1, -1)).prod(2)
    return basis, (index * stride).sum(2)


def _pieces(v: Tensor, degree: int) -> list[Tensor]:
    """Values of the uniform B-spline of each knot at v in [0, 1)."""
    if degree == 1:
        return [1 - v, v]
    if degree == 2:
        return [(1 - v) ** 2 / 2, 0.5 + v - v**2, v**2 / 2]
    return [(1 - v) ** 3 / 6, (3 * v**3 - 6 * v**2 + 4) / 6, (1 + 3 * v + 3 * v**2 - 3 * v**3) / 6, v**3 / 6]


@composite("spline_weighting(Tensor x, Tensor weight, Tensor basis, Tensor weight_index) -> Tensor")
def spline_weighting(x: Tensor, weight: Tensor, basis: Tensor, weight_index: Tensor) -> Tensor:
    checks.shape(x.dim() == 2, "x", "(E, M_in)", x)
    edges = x.shape[0]
    fits = weight.dim() == 3 and weight.shape[1] == x.shape[1]
    checks.shape(fits, "weight", lambda: f"(K, M_in, M_out) with M_in = {x.shape[1]}", weight)
    checks.shape(basis.dim() == 2 and basis.shape[0] == edges, "basis", lambda: f"(E, S) with E = {edges}", basis)
    checks.shape(weight_index.shape == basis.shape, "weight_index", "of the shape of basis", weight_index)
    checks.dtype("weight_index", weight_index, checks.INDICES)
    # Sort the (edge, support) pairs by kernel weight: one matrix product per weight.
    supports, kernels = basis.shape[1], weight.shape[0]
    kernel, order = weight_index.flatten().sort(stable=True)
    ptr = torch.searchsorted(kernel, torch.arange(kernels + 1, device=x.device, dtype=kernel.dtype))
    edge = order // supports
    rows = pointgrad.gather(x, edge) * basis.flatten()[order].unsqueeze(1)
    return pointgrad.scatter(torch.ops.pyg.segment_matmul(rows, ptr, weight), edge, edges)

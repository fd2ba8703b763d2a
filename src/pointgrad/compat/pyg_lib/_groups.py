"""Operators on groups of values: reductions, gathering, softmax, sorting."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from .. import torch_scatter
from .._scalars import is_traced
from ._library import composite, opaque

_SCATTER = "(Tensor src, Tensor index, int dim=-1, Tensor? out=None, int? dim_size=None)"
_COO = "(Tensor src, Tensor index, Tensor? out=None, int? dim_size=None)"
_CSR = "(Tensor src, Tensor indptr, Tensor? out=None)"
_SAMPLED: dict[str, Callable[..., Tensor]] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}


def _fake_groups(index: Tensor) -> Tensor:
    return index.new_empty(torch.library.get_ctx().new_dynamic_size(max=2**62), dtype=torch.uint8)


@opaque("_groups(Tensor index) -> Tensor", _fake_groups)
def _groups(index: Tensor) -> Tensor:
    """Uninitialized tensor whose size is the number of groups, for compiled code."""
    return index.new_empty(int(index.max()) + 1 if index.numel() else 0, dtype=torch.uint8)


def _size(index: Tensor, out: Tensor | None, dim_size: int | None) -> int | None:
    """Number of groups. Only compiled code needs it in advance if neither argument determines it."""
    if out is None and dim_size is None and is_traced(index):
        dim_size = torch.ops.pyg._groups(index).shape[0]
    return dim_size


@composite(f"scatter_sum{_SCATTER} -> Tensor")
def scatter_sum(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    return torch_scatter.scatter_sum(src, index, dim, out, _size(index, out, dim_size))


@composite(f"scatter_mul{_SCATTER} -> Tensor")
def scatter_mul(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    product = torch_scatter.scatter_mul(src, index, dim, out, _size(index, out, dim_size))
    # Without any value all products are 1 in pyg-lib, and 0 in torch_scatter.
    return torch.ones_like(product) if out is None and src.numel() == 0 else product


@composite(f"scatter_mean{_SCATTER} -> Tensor")
def scatter_mean(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    return torch_scatter.scatter_mean(src, index, dim, out, _size(index, out, dim_size))


@composite(f"scatter_min{_SCATTER} -> (Tensor, Tensor)")
def scatter_min(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    return torch_scatter.scatter_min(src, index, dim, out, _size(index, out, dim_size))


@composite(f"scatter_max{_SCATTER} -> (Tensor, Tensor)")
def scatter_max(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    return torch_scatter.scatter_max(src, index, dim, out, _size(index, out, dim_size))


@composite(f"segment_sum_coo{_COO} -> Tensor")
def segment_sum_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    return torch_scatter.segment_sum_coo(src, index, out, _size(index, out, dim_size))


@composite(f"segment_mean_coo{_COO} -> Tensor")
def segment_mean_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    return torch_scatter.segment_mean_coo(src, index, out, _size(index, out, dim_size))


@composite(f"segment_min_coo{_COO} -> (Tensor, Tensor)")
def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    return torch_scatter.segment_min_coo(src, index, out, _size(index, out, dim_size))


@composite(f"segment_max_coo{_COO} -> (Tensor, Tensor)")
def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    return torch_scatter.segment_max_coo(src, index, out, _size(index, out, dim_size))


composite("gather_coo(Tensor src, Tensor index, Tensor? out=None) -> Tensor")(torch_scatter.gather_coo)
composite(f"segment_sum_csr{_CSR} -> Tensor")(torch_scatter.segment_sum_csr)
composite(f"segment_mean_csr{_CSR} -> Tensor")(torch_scatter.segment_mean_csr)
composite(f"segment_min_csr{_CSR} -> (Tensor, Tensor)")(torch_scatter.segment_min_csr)
composite(f"segment_max_csr{_CSR} -> (Tensor, Tensor)")(torch_scatter.segment_max_csr)
composite(f"gather_csr{_CSR} -> Tensor")(torch_scatter.gather_csr)


@composite("softmax_csr(Tensor src, Tensor ptr, int dim=0) -> Tensor")
def softmax_csr(src: Tensor, ptr: Tensor, dim: int = 0) -> Tensor:
    checks.tensor("src", src)
    checks.shape(src.dim() >= 1, "src", "a tensor of at least one dimension", src)
    checks.dim("dim", dim, src.dim())
    checks.shape(ptr.dim() == 1 and ptr.shape[0] >= 1, "ptr", "(S + 1,)", ptr)
    checks.dtype("ptr", ptr, checks.INDICES)
    checks.device("ptr", ptr, "src", src)
    if ptr.device.type == "cpu" and not is_traced(ptr):
        checks.offsets_values(ptr, src.shape[dim], "ptr")
    moved = src.movedim(dim, 0)
    rows = moved.reshape(moved.shape[0], math.prod(moved.shape[1:]))
    return pointgrad.segment_softmax(rows, ptr).reshape(moved.shape).movedim(0, dim).contiguous()


@composite("index_sort(Tensor indices, int? max=None) -> (Tensor, Tensor)")
def index_sort(indices: Tensor, max: int | None = None) -> tuple[Tensor, Tensor]:
    if indices.dim() != 1:
        raise RuntimeError(f"inputs must be (N,), got {tuple(indices.shape)}")  # the type that pyg-lib raises
    values, order = torch.sort(indices, stable=True)
    return values, order


@composite("sampled_op(Tensor left, Tensor right, Tensor? left_index, Tensor? right_index, str op) -> Tensor")
def sampled_op(left: Tensor, right: Tensor, left_index: Tensor | None, right_index: Tensor | None, op: str) -> Tensor:
    checks.value(op in _SAMPLED, "op", '"add", "sub", "mul" or "div"', repr(op))
    rows = []
    for name, values, index in (("left", left, left_index), ("right", right, right_index)):
        checks.shape(values.dim() == 2, name, "(N, C)", values)
        checks.same_dtype(name, values, "left", left)
        checks.device(name, values, "left", left)
        if index is not None:
            checks.shape(index.dim() == 1, f"{name}_index", "(E,)", index)
            checks.dtype(f"{name}_index", index, checks.INDICES)
            checks.device(f"{name}_index", index, name, values)
        rows.append(values if index is None else values.index_select(0, index))
    fits = rows[1].shape == rows[0].shape
    checks.shape(fits, "right", lambda: f"{tuple(rows[0].shape)} after sampling, like left", rows[1])
    return _SAMPLED[op](*rows)

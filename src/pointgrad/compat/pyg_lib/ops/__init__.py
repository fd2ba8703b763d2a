"""The functions of pyg-lib for points and groups of values.

They call the operators in `torch.ops.pyg`, which TorchScript can call as well.
"""

from typing import NoReturn

from ._groups import (
    gather_coo,
    gather_csr,
    index_sort,
    sampled_add,
    sampled_div,
    sampled_mul,
    sampled_sub,
    scatter,
    scatter_add,
    scatter_log_softmax,
    scatter_logsumexp,
    scatter_max,
    scatter_mean,
    scatter_min,
    scatter_mul,
    scatter_softmax,
    scatter_std,
    scatter_sum,
    segment_add_coo,
    segment_add_csr,
    segment_coo,
    segment_csr,
    segment_max_coo,
    segment_max_csr,
    segment_mean_coo,
    segment_mean_csr,
    segment_min_coo,
    segment_min_csr,
    segment_sum_coo,
    segment_sum_csr,
    softmax_csr,
)
from ._matmul import grouped_matmul, segment_matmul, spline_basis, spline_weighting
from ._points import fps, grid_cluster, knn, nearest, radius

__all__ = [
    "fps",
    "gather_coo",
    "gather_csr",
    "grid_cluster",
    "grouped_matmul",
    "index_sort",
    "knn",
    "nearest",
    "radius",
    "sampled_add",
    "sampled_div",
    "sampled_mul",
    "sampled_sub",
    "scatter",
    "scatter_add",
    "scatter_log_softmax",
    "scatter_logsumexp",
    "scatter_max",
    "scatter_mean",
    "scatter_min",
    "scatter_mul",
    "scatter_softmax",
    "scatter_std",
    "scatter_sum",
    "segment_add_coo",
    "segment_add_csr",
    "segment_coo",
    "segment_csr",
    "segment_matmul",
    "segment_max_coo",
    "segment_max_csr",
    "segment_mean_coo",
    "segment_mean_csr",
    "segment_min_coo",
    "segment_min_csr",
    "segment_sum_coo",
    "segment_sum_csr",
    "softmax_csr",
    "spline_basis",
    "spline_weighting",
]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"pointgrad.compat provides only the point operators of pyg_lib, not pyg_lib.ops.{name}")

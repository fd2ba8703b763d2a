"""The interface of KNN_CUDA 0.2 (`knn_cuda`), which Point-BERT, Point-MAE and their successors use."""

from torch import Tensor, nn

import pointgrad
from pointgrad.ops import checks

from ._scalars import count_of

__all__ = ["KNN", "knn"]
__version__ = "0.2"


def knn(ref: Tensor, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k nearest points of one cloud, nearest first; ties go to the smallest index.

    Args:
        ref: (D, N) points to search.
        query: (D, M) queries.
        k: Number of neighbors, at most N.

    Returns:
        Euclidean distances (k, M) float32 and indices (k, M) int64, without gradient.
    """
    checks.tensor("ref", ref)
    checks.shape(ref.dim() == 2, "ref", "(D, N)", ref)
    checks.tensor("query", query)
    checks.shape(query.dim() == 2, "query", "(D, M)", query)
    distance, index = KNN(k)(ref.unsqueeze(0), query.unsqueeze(0))
    return distance.squeeze(0), index.squeeze(0)


class KNN(nn.Module):
    """k nearest neighbors in a batch of clouds.

    Args:
        k: Number of neighbors.
        transpose_mode: Points are (B, N, D) and results (B, M, k); otherwise (B, D, N) and (B, k, M).
    """

    def __init__(self, k: int, transpose_mode: bool = False) -> None:
        super().__init__()
        self.k, self._t = k, transpose_mode

    def forward(self, ref: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """Find the nearest points.

        Args:
            ref: (B, N, D) points to search, or (B, D, N) without `transpose_mode`.
            query: (B, M, D) queries, or (B, D, M).

        Returns:
            Euclidean distances (B, M, k) float32 and indices (B, M, k) int64, or (B, k, M), without gradient.
        """
        layout = "(B, N, D)" if self._t else "(B, D, N)"
        for name, value in (("ref", ref), ("query", query)):
            checks.tensor(name, value)
            checks.shape(value.dim() == 3, name, layout, value)
        checks.shape(ref.shape[0] == query.shape[0], "query", f"{layout} with B = {ref.shape[0]}", query)
        points, queries = ref.detach().float(), query.detach().float()
        if not self._t:
            points, queries = points.transpose(1, 2), queries.transpose(1, 2)
        dims, size = points.shape[2], points.shape[1]
        checks.shape(queries.shape[2] == dims, "query", f"{layout} with D = {dims}", query)
        checks.device("query", query, "ref", ref)
        k = count_of("k", self.k)
        checks.value(k <= size, "k", f"at most N = {size}", k)
        found = pointgrad.knn(points.contiguous(), k, queries.contiguous(), any_dims=True)
        distance, index = found.distance2.sqrt(), found.index
        return (distance, index) if self._t else (distance.transpose(1, 2), index.transpose(1, 2))

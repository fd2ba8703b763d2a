"""Search for hash values."""

from torch import Tensor

from ...backend import find_keys

__all__ = ["sphashquery"]


def sphashquery(queries: Tensor, references: Tensor) -> Tensor:
    """Find the first entry of `references` (N,) that equals each query: int64 like `queries`, -1 for none."""
    return find_keys(queries.reshape(-1), references).reshape(queries.shape)

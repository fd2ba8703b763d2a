"""The hash table of the original's compiled module, which SPVNAS calls directly."""

from typing import NoReturn

import torch
from torch import Tensor

from pointgrad.ops import checks

from .. import _sparse

__all__ = ["GPUHashTable"]


class GPUHashTable:
    """A table of voxels or keys. On every device; the name is the original's.

    Args:
        keys: Memory of the original's table. It is not used.
        values: Memory of the original's table. It is not used.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._sites: _sparse.Sites | None = None
        self._keys: Tensor | None = None

    def insert_coords(self, coords: Tensor) -> None:
        """Enter voxels (N, 4) with columns x, y, z and batch. They replace earlier ones."""
        self._sites = _sparse.Sites(coords[:, [3, 0, 1, 2]])

    def lookup_coords(self, coords: Tensor, kernel_sizes: Tensor, strides: Tensor, kernel_volume: int) -> Tensor:
        """Find the voxels around each query.

        Args:
            coords: (M, 4) x, y, z and batch.
            kernel_sizes: (3,) size of the kernel.
            strides: (3,) factors of the queries.
            kernel_volume: K, the product of the sizes.

        Returns:
            (M, K) int32, one more than the row that was inserted, or 0. If K is odd, x is the fastest axis of the
            kernel, else z is. The original appends rows of 0 up to a multiple of 128.
        """
        checks.value(self._sites is not None, "the table", "filled by insert_coords", "an empty table")
        assert self._sites is not None
        size, stride = kernel_sizes.tolist(), strides.tolist()
        checks.value(
            size[0] * size[1] * size[2] == kernel_volume, "kernel_volume", f"the product of {size}", kernel_volume
        )
        queries = coords[:, [3, 0, 1, 2]].long()
        queries[:, 1:] *= queries.new_tensor(stride)
        distinct = _sparse.unique(queries)
        found = _sparse.site_map(
            self._sites,
            _sparse.Sites(distinct.coordinates),
            (size[0], size[1], size[2]),
            padding=((size[0] - 1) // 2, (size[1] - 1) // 2, (size[2] - 1) // 2),
            x_fastest=kernel_volume % 2 == 1,
        )
        return (found.sources()[distinct.inverse] + 1).int()

    def insert_vals(self, keys: Tensor) -> None:
        """Enter int64 keys (N,). They replace earlier ones."""
        self._keys = keys

    def lookup_vals(self, keys: Tensor) -> Tensor:
        """Find keys (M,): (M,) int32, one more than the first row that was inserted with this key, or 0."""
        checks.value(self._keys is not None, "the table", "filled by insert_vals", "an empty table")
        assert self._keys is not None
        return (find_keys(keys, self._keys) + 1).int()


def find_keys(queries: Tensor, keys: Tensor) -> Tensor:
    """The first row of `keys` (N,) that equals each query (M,), or -1."""
    ordered, order = keys.sort(stable=True)
    place = torch.searchsorted(ordered, queries.contiguous())
    inside = place < len(keys)
    place = torch.where(inside, place, 0)
    if len(keys) == 0:
        return place - 1
    return torch.where(inside & (ordered[place] == queries), order[place], -1)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"pointgrad.compat provides only GPUHashTable of torchsparse.backend, not {name}")

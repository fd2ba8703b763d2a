"""Voxels with a batch column, and kernel maps between them, for packages of sparse convolution libraries."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

Three = tuple[int, int, int]


class Sites:
    """The voxels of a sparse tensor, in the order of its rows. Clouds may be interleaved.

    Attributes:
        coordinates: (N, 4) int64: cloud, x, y and z. No row occurs twice.
        clouds: One more than the largest cloud.
    """

    def __init__(self, coordinates: Tensor) -> None:
        self.coordinates = coordinates.long()
        cloud = self.coordinates[:, 0].contiguous()
        self.clouds, self._order, self._place = 0, None, None
        if len(cloud):
            facts = torch.stack([cloud.min(), cloud.max(), (cloud.diff() < 0).any().long()])
            lowest, highest, interleaved = facts.tolist()  # one synchronization
            checks.value(lowest >= 0, "coordinates[:, 0]", "at least 0", lowest)
            self.clouds = highest + 1
            if interleaved:
                self._order = cloud.argsort(stable=True)
                self._place = self._order.argsort()
                cloud = cloud[self._order]
        self._starts = torch.searchsorted(cloud, torch.arange(self.clouds + 1, device=cloud.device))
        self._voxels = self.by_cloud(self.coordinates[:, 1:])

    def __len__(self) -> int:
        return len(self.coordinates)

    def packed(self, clouds: int, reverse: bool) -> tuple[Tensor, Tensor]:
        """Voxels (N, 3) sorted by cloud, with z first if `reverse` is set, and offsets (clouds + 1,)."""
        missing = self._starts[-1:].expand(clouds - self.clouds)
        return self._voxels.flip(1) if reverse else self._voxels, torch.cat([self._starts, missing])

    def by_cloud(self, rows: Tensor) -> Tensor:
        """Sort rows by cloud."""
        return rows if self._order is None else rows[self._order]

    def by_row(self, rows: Tensor) -> Tensor:
        """Undo `by_cloud`."""
        return rows if self._place is None else rows[self._place]

    def number(self, packed: Tensor) -> Tensor:
        """Convert indices of rows sorted by cloud to those of this order, and keep -1."""
        if self._order is None:
            return packed
        return torch.where(packed < 0, -1, self._order[packed.clamp(min=0)])


class SiteMap(NamedTuple):
    """A kernel map between the rows of two sparse tensors."""

    inputs: Sites
    outputs: Sites
    map: pointgrad.KernelMap

    def conv(self, features: Tensor, weight: Tensor, groups: int = 1) -> Tensor:
        """`pointgrad.sparse_conv` of features (N, C) in the order of the inputs."""
        rows = self.inputs.by_cloud(features)
        return self.outputs.by_row(pointgrad.sparse_conv(rows, weight, self.map, groups=groups))

    def pool(self, features: Tensor, reduce: Literal["max", "mean", "sum"]) -> Tensor:
        """`pointgrad.sparse_pool` of features (N, C) in the order of the inputs."""
        return self.outputs.by_row(pointgrad.sparse_pool(self.inputs.by_cloud(features), self.map, reduce))

    def inverse(self) -> "SiteMap":
        """Return the map from the outputs to the inputs."""
        return SiteMap(self.outputs, self.inputs, self.map.inverse())

    def sources(self) -> Tensor:
        """(M, K) int64, the input that each output reads at each kernel position, or -1."""
        table = self.map.sources.flip(1) if self.map.flipped else self.map.sources
        return self.inputs.number(self.outputs.by_row(table.long()))


def site_map(
    inputs: Sites,
    outputs: Sites,
    kernel: Three,
    *,
    stride: Three = (1, 1, 1),
    padding: Three = (0, 0, 0),
    dilation: Three = (1, 1, 1),
    x_fastest: bool = False,
) -> SiteMap:
    """Build the map in which output o reads the inputs at o * stride - padding + k * dilation.

    Positions of the kernel are numbered with x slowest, or with x fastest.
    """
    clouds = max(inputs.clouds, outputs.clouds)
    voxels, offsets = inputs.packed(clouds, x_fastest)
    if x_fastest:
        kernel, stride, padding, dilation = kernel[::-1], stride[::-1], padding[::-1], dilation[::-1]
    centered = all(2 * p == (k - 1) * d for k, p, d in zip(kernel, padding, dilation, strict=True))
    if inputs is outputs and centered and stride == (1, 1, 1):
        found = pointgrad.submanifold_map(voxels, kernel, dilation=dilation, offsets=offsets)
    else:
        wanted, output_offsets = outputs.packed(clouds, x_fastest)
        found = pointgrad.strided_map(
            voxels, kernel, stride=stride, padding=padding, dilation=dilation, outputs=wanted,
            offsets=offsets, output_offsets=output_offsets,
        )  # fmt: skip
    return SiteMap(inputs, outputs, found)


class Unique(NamedTuple):
    """Distinct rows of coordinates.

    Attributes:
        coordinates: (V, 4) int64, sorted.
        inverse: (N,) int64, the distinct row that equals each row.
        first: (V,) int64, the first row that equals each distinct row.
    """

    coordinates: Tensor
    inverse: Tensor
    first: Tensor


def unique(coordinates: Tensor) -> Unique:
    """Find the distinct rows of coordinates (N, 4): cloud, x, y and z."""
    sites = Sites(coordinates)
    voxels, offsets = sites.packed(sites.clouds, False)
    found = pointgrad.unique_voxels(voxels, offsets=offsets)
    inverse = sites.by_row(found.inverse)
    first = _first_rows(inverse, len(found.count))
    return Unique(sites.coordinates[first], inverse, first)


def check_int32(name: str, coordinates: Tensor) -> None:
    """Raise if a coordinate is not finite or does not fit into int32. This synchronizes a GPU."""
    fits = (coordinates >= -(2**31)) & (coordinates < 2**31)
    if not fits.all():
        raise ValueError(f"{name} must be finite and in the range of int32, got {coordinates[~fits][0].item()}")


def find(sites: Sites, queries: Tensor) -> Tensor:
    """Find the row of `sites` that equals each query (M, 4), or -1: (M,) int64."""
    found = unique(torch.cat([sites.coordinates, queries.long()]))
    row = torch.where(found.first < len(sites), found.first, -1)
    return row[found.inverse[len(sites) :]]


def _first_rows(index: Tensor, size: int) -> Tensor:
    """The first row of each group (size,)."""
    place = torch.arange(len(index), device=index.device)
    return place.new_full((size,), len(index)).scatter_reduce_(0, index, place, "amin")


def widen(coordinates: Tensor) -> Tensor:
    """Add axes of coordinates (N, 1 + D) with D < 3, all 0: (N, 4)."""
    return torch.nn.functional.pad(coordinates, (0, 4 - coordinates.shape[1]))

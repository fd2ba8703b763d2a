"""Coordinates of related sparse tensors and the kernel maps between them."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from .. import _sparse
from .MinkowskiCommon import CoordinateMapKey, RegionType, convert_to_int_list

__all__ = ["CoordinateManager", "CoordsManager", "set_gpu_allocator", "set_memory_manager_backend"]


class CoordinateManager:
    """Coordinates of related sparse tensors and the kernel maps between them.

    Args:
        D: The number of axes, at most 3.
        num_threads: No effect.
        coordinate_map_type: No effect.
        allocator_type: No effect.
        minkowski_algorithm: No effect.
    """

    def __init__(
        self,
        D: int = 0,
        num_threads: int = -1,
        coordinate_map_type: Any = None,
        allocator_type: Any = None,
        minkowski_algorithm: Any = None,
    ) -> None:
        if not 1 <= D <= 3:
            raise NotImplementedError(f"pointgrad.compat supports MinkowskiEngine with 1, 2 or 3 axes, got D = {D}")
        self.D = D
        self.minkowski_algorithm = minkowski_algorithm
        self._sites: dict[CoordinateMapKey, _sparse.Sites] = {}
        self._coordinates: dict[CoordinateMapKey, Tensor] = {}
        self._fields: dict[CoordinateMapKey, Tensor] = {}
        self._maps: dict[Any, _sparse.SiteMap] = {}
        self._names = itertools.count()

    def insert_and_map(
        self, coordinates: Tensor, tensor_stride: Any = 1, string_id: str = ""
    ) -> tuple[CoordinateMapKey, tuple[Tensor, Tensor]]:
        """Add coordinates (N, D + 1) and return their key and (the first row of each voxel, the voxel of each row).

        Voxels are in the order of their first rows.
        """
        found = _sparse.unique(_sparse.widen(coordinates.long()))
        unique_map, rank = found.first.sort()
        inverse_map = rank.argsort()[found.inverse]
        key = self._free_key(convert_to_int_list(tensor_stride, self.D), string_id)
        self._add(key, coordinates[unique_map].int())
        return key, (unique_map, inverse_map)

    def insert_field(self, coordinates: Tensor, tensor_stride: Any, string_id: str = "") -> CoordinateMapKey:
        """Add the coordinates (N, D + 1) of points."""
        stride = convert_to_int_list(tensor_stride, self.D)
        key = CoordinateMapKey(stride, string_id)
        if key in self._fields:
            key = CoordinateMapKey(stride, f"field-{next(self._names)}")
        self._fields[key] = coordinates
        return key

    def field_to_sparse_insert_and_map(
        self, field_map_key: CoordinateMapKey, sparse_tensor_stride: Any, sparse_tensor_string_id: str = ""
    ) -> tuple[CoordinateMapKey, tuple[Tensor, Tensor]]:
        """Add the voxels of points; see `insert_and_map`."""
        stride = convert_to_int_list(sparse_tensor_stride, self.D)
        points = self._fields[field_map_key]
        _sparse.check_int32("coordinates", points)
        voxels = _floor(points, stride)
        return self.insert_and_map(voxels, stride, sparse_tensor_string_id)

    def field_to_sparse_map(
        self, field_map_key: CoordinateMapKey, sparse_map_key: CoordinateMapKey
    ) -> tuple[Tensor, Tensor]:
        """Rows of voxels and of the points in them; points outside all voxels are left out."""
        stride = sparse_map_key.get_tensor_stride()
        voxel = _sparse.find(self._sites[sparse_map_key], _sparse.widen(_floor(self._fields[field_map_key], stride)))
        point = (voxel >= 0).nonzero().squeeze(1)
        return voxel[point], point

    def stride(self, coordinate_map_key: CoordinateMapKey, stride: Any, string_id: str = "") -> CoordinateMapKey:
        """Add the coordinates of a coarser level, unless they exist, and return their key."""
        steps = convert_to_int_list(stride, self.D)
        old, name = coordinate_map_key.get_key()
        new = [size * step for size, step in zip(old, steps, strict=True)]
        key = CoordinateMapKey(new, string_id or name)
        if key not in self._sites:
            coarse = _sparse.unique(_sparse.widen(_floor(self._coordinates[coordinate_map_key], new)))
            self._add(key, coarse.coordinates[:, : self.D + 1].int())
        return key

    def origin(self) -> CoordinateMapKey:
        """Add one voxel at 0 for each cloud, unless they exist, and return their key."""
        key = CoordinateMapKey([0] * self.D)
        if key not in self._sites:
            clouds = torch.cat([coordinates[:, 0] for coordinates in self._coordinates.values()]).unique()
            self._add(key, torch.nn.functional.pad(clouds.unsqueeze(1), (0, self.D)))
        return key

    def size(self, coordinate_map_key: CoordinateMapKey) -> int:
        """Return the number of voxels."""
        return len(self._sites[coordinate_map_key])

    def get_coordinates(self, coords_key_or_tensor_strides: Any) -> Tensor:
        """Return coordinates (N, D + 1) int32."""
        return self._coordinates[self._find_key(coords_key_or_tensor_strides)]

    def get_coordinate_field(self, coords_key_or_tensor_strides: Any) -> Tensor:
        """Return the coordinates (N, D + 1) of points."""
        return self._fields[coords_key_or_tensor_strides]

    def number_of_unique_batch_indices(self) -> int:
        """Return the number of clouds."""
        return self.size(self.origin())

    def get_unique_coordinate_map_key(self, tensor_stride: Any) -> CoordinateMapKey:
        """Return a key that is not in use."""
        return self._free_key(convert_to_int_list(tensor_stride, self.D), "")

    def kernel_map(
        self,
        in_key: Any,
        out_key: Any,
        stride: Any = 1,
        kernel_size: Any = 3,
        dilation: Any = 1,
        region_type: RegionType = RegionType.HYPER_CUBE,
        region_offset: Any = None,
        is_transpose: bool = False,
        is_pool: bool = False,
    ) -> dict[int, Tensor]:
        """Return, for each kernel position in use, (2, P) int32: rows of inputs and of outputs.

        Pairs are sorted by output, or by input for pooling where the stride equals the kernel size.
        """
        if region_type != RegionType.HYPER_CUBE:
            raise NotImplementedError(
                f"pointgrad.compat provides kernel maps of RegionType.HYPER_CUBE, got {region_type}"
            )
        steps, sizes = convert_to_int_list(stride, self.D), convert_to_int_list(kernel_size, self.D)
        spread = convert_to_int_list(dilation, self.D)
        source, target = self._find_key(in_key), self._find_key(out_key)
        if is_pool and steps == sizes and not is_transpose:
            rows = torch.stack(self.stride_map(source, target))
            return {0: rows.int()}
        table = self.site_map(source, target, sizes, steps, spread, is_transpose, is_pool).sources()
        result = {}
        for position, column in enumerate(table.unbind(1)):
            outputs = (column >= 0).nonzero().squeeze(1)
            if len(outputs):
                result[position] = torch.stack([column[outputs], outputs]).int()
        return result

    get_kernel_map = kernel_map

    def origin_map(self, key: CoordinateMapKey) -> tuple[Tensor, list[Tensor]]:
        """Return the rows of the clouds in the origin's coordinates, and the rows of the voxels of each cloud."""
        row = self.cloud_rows(key)
        clouds = self.size(self.origin())
        return torch.arange(clouds, device=row.device), [
            (row == number).nonzero().squeeze(1) for number in range(clouds)
        ]

    def stride_map(self, in_key: CoordinateMapKey, stride_key: CoordinateMapKey) -> tuple[Tensor, Tensor]:
        """Rows of voxels and of the coarser voxels that contain them."""
        coarse = _floor(self._coordinates[in_key], stride_key.get_tensor_stride())
        target = _sparse.find(self._sites[stride_key], _sparse.widen(coarse))
        rows = (target >= 0).nonzero().squeeze(1)
        return rows, target[rows]

    def union_map(self, in_keys: list[CoordinateMapKey], out_key: CoordinateMapKey) -> list[Tensor]:
        """Add the union of coordinates, set its key, and return for each input (2, N) its rows and the union's."""
        strides = zip(*(key.get_tensor_stride() for key in in_keys), strict=True)
        both = torch.cat([self._coordinates[key] for key in in_keys])
        key, (_, inverse) = self.insert_and_map(both, [min(sizes) for sizes in strides], f"merge-{next(self._names)}")
        out_key.set_key(key)
        parts = inverse.split([self.size(key) for key in in_keys])
        return [torch.stack([torch.arange(len(part), device=part.device), part]) for part in parts]

    def interpolation_map_weight(self, key: CoordinateMapKey, samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of voxels, rows of samples (M, D + 1) and linear weights, for all corners that exist."""
        index, weight = self.corners(key, samples)
        sample, corner = (index >= 0).nonzero().unbind(1)
        return index[sample, corner], sample, weight[sample, corner]

    def corners(self, key: CoordinateMapKey, samples: Tensor) -> tuple[Tensor, Tensor]:
        """(M, 2^D) the voxels around samples, or -1, and their linear weights, which may sum to less than 1."""
        stride = key.get_tensor_stride()
        low = _floor(samples, stride)
        upper = (samples[:, 1:] - low[:, 1:]) / samples.new_tensor(stride)
        index, weights = [], []
        for corner in itertools.product((0, 1), repeat=self.D):
            move = low.new_tensor([0, *(side * size for side, size in zip(corner, stride, strict=True))])
            index.append(_sparse.find(self._sites[key], _sparse.widen(low + move)))
            side = upper.new_tensor(corner)
            weights.append((side * upper + (1 - side) * (1 - upper)).prod(1))
        return torch.stack(index, 1), torch.stack(weights, 1)

    def cloud_rows(self, key: CoordinateMapKey, field: bool = False) -> Tensor:
        """(N,) the row of each voxel's or point's cloud in the coordinates of the origin."""
        cloud = self._fields[key][:, 0].int() if field else self._coordinates[key][:, 0]
        if field and not self._coordinates:
            self._add(CoordinateMapKey([0] * self.D), torch.nn.functional.pad(cloud.unique().unsqueeze(1), (0, self.D)))
        return torch.searchsorted(self._coordinates[self.origin()][:, 0].contiguous(), cloud.contiguous())

    def site_map(
        self,
        in_key: CoordinateMapKey,
        out_key: CoordinateMapKey,
        size: list[int],
        stride: list[int],
        dilation: list[int],
        transposed: bool = False,
        pool: bool = False,
    ) -> _sparse.SiteMap:
        """The kernel map between two sets of coordinates.

        Along an axis of odd size, a kernel is centered; otherwise it starts at the output. So do windows of pooling
        whose size is the stride.
        """
        if transposed:
            return self.site_map(out_key, in_key, size, stride, dilation, pool=pool).inverse()
        windows = pool and size == stride
        kept = (in_key, out_key, tuple(size), (1,) * self.D if windows else tuple(dilation), windows)
        if kept not in self._maps:
            spread = [step * scale for step, scale in zip(kept[3], in_key.get_tensor_stride(), strict=True)]
            padding = [0 if windows or k % 2 == 0 else k // 2 * d for k, d in zip(size, spread, strict=True)]
            self._maps[kept] = _sparse.site_map(
                self._sites[in_key], self._sites[out_key], _three(size, 1), padding=_three(padding, 0),
                dilation=_three(spread, 1), x_fastest=True,
            )  # fmt: skip
        return self._maps[kept]

    def expand(
        self, in_key: CoordinateMapKey, size: list[int], dilation: list[int], unit: list[int], stride: list[int]
    ) -> CoordinateMapKey:
        """Add all multiples of `stride` that a kernel reaches in steps of `unit`, and return the key."""
        axes = [
            [(place - (k // 2 if k % 2 else 0)) * d * u for place in range(k)]
            for k, d, u in zip(size, dilation, unit, strict=True)
        ]
        coordinates = self._coordinates[in_key]
        ways = coordinates.new_tensor(list(itertools.product([0], *axes)))
        reached = (coordinates.unsqueeze(1) + ways).reshape(-1, self.D + 1)
        reached = reached[(reached[:, 1:] % reached.new_tensor(stride) == 0).all(1)]
        key = self._free_key(stride, "")
        self._add(key, _sparse.unique(_sparse.widen(reached)).coordinates[:, : self.D + 1].int())
        return key

    def output_key(self, in_key: CoordinateMapKey, generator: Any, transposed: bool) -> CoordinateMapKey:
        """The coordinates of a layer's output, which are added unless they exist."""
        size, step, spread = generator.kernel_size, generator.kernel_stride, generator.kernel_dilation
        old = in_key.get_tensor_stride()
        if not transposed:
            if not generator.expand_coordinates:
                return self.stride(in_key, step)
            return self.expand(in_key, size, spread, old, [a * b for a, b in zip(old, step, strict=True)])
        if any(a % b for a, b in zip(old, step, strict=True)):
            raise ValueError(f"the tensor stride must be a multiple of the stride {step}, got {old}")
        new = [a // b for a, b in zip(old, step, strict=True)]
        key = CoordinateMapKey(new)
        if key in self._sites and not generator.expand_coordinates:
            return key
        # All positions count, also those that are not multiples of the new stride.
        return self.expand(in_key, size, spread, new, new if _aligned(self._coordinates[in_key], new) else [1] * self.D)

    def add(self, coordinates: Tensor, tensor_stride: list[int], string_id: str) -> CoordinateMapKey:
        """Add coordinates without duplicates and return their key."""
        key = self._free_key(tensor_stride, string_id)
        self._add(key, coordinates)
        return key

    def _add(self, key: CoordinateMapKey, coordinates: Tensor) -> None:
        self._coordinates[key] = coordinates
        self._sites[key] = _sparse.Sites(_sparse.widen(coordinates))

    def _free_key(self, stride: list[int], name: str) -> CoordinateMapKey:
        key = CoordinateMapKey(stride, name)
        while key in self._sites:
            key = CoordinateMapKey(stride, f"{name}-{next(self._names)}" if name else str(next(self._names)))
        return key

    def _find_key(self, key_or_stride: Any) -> CoordinateMapKey:
        if isinstance(key_or_stride, CoordinateMapKey):
            return key_or_stride
        stride = convert_to_int_list(key_or_stride, self.D)
        for key in self._sites:
            if key.get_tensor_stride() == stride:
                return key
        raise ValueError(f"tensor strides must belong to known coordinates, got {stride}")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{key}: {len(sites)}" for key, sites in self._sites.items())
        return f"CoordinateManager({sizes})"


CoordsManager = CoordinateManager


def set_memory_manager_backend(backend: Any) -> None:
    """Do nothing; the original chooses an allocator."""


def set_gpu_allocator(backend: Any) -> None:
    """Do nothing; the original chooses an allocator."""


def _floor(coordinates: Tensor, stride: list[int]) -> Tensor:
    """(N, D + 1) int64, the voxels of size `stride` that contain the coordinates."""
    size = torch.tensor([1, *stride], device=coordinates.device)
    return (torch.div(coordinates, size, rounding_mode="floor") * size).long()


def _aligned(coordinates: Tensor, stride: list[int]) -> bool:
    return math.prod(stride) == 1 or bool((coordinates[:, 1:] % coordinates.new_tensor(stride) == 0).all())


def _three(values: list[int], fill: int) -> tuple[int, int, int]:
    x, y, z = [*values, fill, fill][:3]
    return x, y, z

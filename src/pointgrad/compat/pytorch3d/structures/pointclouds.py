"""Batches of point clouds of different sizes."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..common.datatypes import Device, make_device
from ._layouts import Layouts, auxiliary, points_rows
from .utils import packed_index

__all__ = ["Pointclouds", "join_pointclouds_as_batch", "join_pointclouds_as_scene"]

Self = TypeVar("Self", bound="Pointclouds")
_ATTRIBUTES = ("points", "normals", "features")
_LAYOUTS = ("list", "padded", "packed")


class Pointclouds:
    """A batch of clouds with points and, optionally, normals and features.

    Every attribute is available as a list of tensors (P_n, C), as a padded tensor (N, max(P_n), C) and as a packed
    tensor (sum(P_n), C). A layout is computed from the given one when it is first needed, and is differentiable in it.
    Sizes are kept on the host, so that no method has to read them from a GPU.

    `offset_` and `scale_` replace the tensors of this object; the given tensors stay unchanged (the original changes a
    given padded tensor). `normals` and `features` of clouds without points have their usual layouts (the original has
    None), and `subsample` draws from torch's generator (the original from NumPy's).

    Args:
        points: List of tensors (P_n, 3), or tensor (N, P, 3). Tensors in a list may be empty.
        normals: List of tensors (P_n, 3), or tensor (N, P, 3), or None.
        features: List of tensors (P_n, C), or tensor (N, P, C), or None.

    Attributes:
        device: Device of all tensors.
        equisized: Whether all clouds have the same number of points.
        valid: (N,) bool, whether each cloud has points.

    Raises:
        ValueError: If the tensors do not fit each other.

    Example:
        >>> clouds = Pointclouds([torch.ones(1, 3), torch.zeros(2, 3)])
        >>> clouds.points_padded().shape, clouds.points_packed().shape, clouds.num_points_per_cloud()
        (torch.Size([2, 2, 3]), torch.Size([3, 3]), tensor([1, 2]))
    """

    def __init__(self, points: Any, normals: Any = None, features: Any = None) -> None:
        if isinstance(points, (list, tuple)):
            rows = points_rows(points)
            self._sizes = [len(item) for item in rows]
            self.device = rows[0].device if rows else torch.device("cpu")
            empty = torch.zeros(0, 0, 3, device=self.device)
            self._points = Layouts(self._sizes, rows=rows) if rows else Layouts([], padded=empty)
        elif isinstance(points, Tensor):
            if points.dim() != 3 or points.shape[2] != 3:
                raise ValueError(f"points must be (N, P, 3), got {tuple(points.shape)}")
            self._sizes = [points.shape[1]] * points.shape[0]
            self.device = points.device
            self._points = Layouts(self._sizes, padded=points)
        else:
            raise ValueError(f"points must be a list or a tensor (N, P, 3), got {type(points).__name__}")
        self.equisized = len(set(self._sizes)) == 1
        self._count, self._first, self._number = packed_index(self._sizes, self.device)
        self.valid = self._count > 0
        self._normals = auxiliary("normals", normals, self._sizes, self.device, 3)
        self._features = auxiliary("features", features, self._sizes, self.device)

    def _attributes(self) -> dict[str, Layouts | None]:
        return {"points": self._points, "normals": self._normals, "features": self._features}

    def __getattr__(self, name: str) -> Any:
        """Names of the original that are not public but used: `_N`, `_P`, `_C` and layouts like `_points_packed`."""
        attribute, _, layout = name.removeprefix("_").partition("_")
        if name[:1] == "_" and attribute in _ATTRIBUTES and layout in _LAYOUTS:
            layouts = self._attributes()[attribute]
            return None if layouts is None else getattr(layouts, "rows" if layout == "list" else layout)
        if name in ("_N", "_P"):
            return len(self) if name == "_N" else max(self._sizes, default=0)
        if name == "_C":
            return self._features.as_padded().shape[2] if self._features else None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self: Self, index: int | list[int] | slice | Tensor) -> Self:
        """Select clouds by an int, a slice, a list of ints, or a tensor (N,) of bools or ints."""
        numbers = self._numbers(index)
        return type(self)(**{
            name: layouts and [layouts.as_list()[number] for number in numbers]
            for name, layouts in self._attributes().items()
        })  # fmt: skip

    def _numbers(self, index: Any) -> Sequence[int]:
        """Numbers of the clouds that an index selects."""
        if isinstance(index, slice):
            return range(len(self))[index]
        if isinstance(index, int):
            return [index]
        if isinstance(index, list):
            return index
        if not isinstance(index, Tensor) or index.dim() != 1 or index.is_floating_point():
            raise IndexError(index)
        if index.dtype != torch.bool:
            return index.tolist()
        if len(index) != len(self):
            raise IndexError(f"index must have one bool for each of {len(self)} clouds, got {len(index)}")
        return [number for number, selected in enumerate(index.tolist()) if selected]

    def isempty(self) -> bool:
        """Whether no cloud has points."""
        return not any(self._sizes)

    def points_list(self) -> list[Tensor]:
        """Points as a list of tensors (P_n, 3)."""
        return self._points.as_list()

    def normals_list(self) -> list[Tensor] | None:
        """Normals as a list of tensors (P_n, 3), or None."""
        return self._normals.as_list() if self._normals else None

    def features_list(self) -> list[Tensor] | None:
        """Features as a list of tensors (P_n, C), or None."""
        return self._features.as_list() if self._features else None

    def points_padded(self) -> Tensor:
        """Points (N, max(P_n), 3)."""
        return self._points.as_padded()

    def normals_padded(self) -> Tensor | None:
        """Normals (N, max(P_n), 3), or None."""
        return self._normals.as_padded() if self._normals else None

    def features_padded(self) -> Tensor | None:
        """Features (N, max(P_n), C), or None."""
        return self._features.as_padded() if self._features else None

    def points_packed(self) -> Tensor:
        """Points (sum(P_n), 3)."""
        return self._points.as_packed()

    def normals_packed(self) -> Tensor | None:
        """Normals (sum(P_n), 3), or None."""
        return self._normals.as_packed() if self._normals else None

    def features_packed(self) -> Tensor | None:
        """Features (sum(P_n), C), or None."""
        return self._features.as_packed() if self._features else None

    def num_points_per_cloud(self) -> Tensor:
        """Number of points of each cloud, (N,)."""
        return self._count

    def cloud_to_packed_first_idx(self) -> Tensor:
        """First row of each cloud in the packed tensors, (N,)."""
        return self._first

    def packed_to_cloud_idx(self) -> Tensor:
        """Cloud of each row of the packed tensors, (sum(P_n),)."""
        return self._number

    def padded_to_packed_idx(self) -> Tensor:
        """Row of each packed row in the flattened padded tensors, (sum(P_n),)."""
        row = torch.arange(sum(self._sizes), device=self.device)
        return row - self._first[self._number] + self._number * max(self._sizes, default=0)

    def _compute_padded(self, refresh: bool = False) -> None:
        """Compute all padded tensors."""
        for layouts in filter(None, self._attributes().values()):
            layouts.as_padded(refresh)

    def _compute_packed(self, refresh: bool = False) -> None:
        """Compute all packed tensors."""
        for layouts in filter(None, self._attributes().values()):
            layouts.as_packed(refresh)

    def _map(self: Self, change: Callable[[Tensor], Tensor]) -> Self:
        """Copy with a function applied to every tensor."""
        other = copy.copy(self)
        for name, layouts in self._attributes().items():
            setattr(other, f"_{name}", layouts and layouts.map(change))
        for name in ("valid", "_count", "_first", "_number"):
            setattr(other, name, change(getattr(self, name)))
        return other

    def clone(self: Self) -> Self:
        """Copy all tensors."""
        return self._map(torch.clone)

    def detach(self: Self) -> Self:
        """Detach all tensors from the autograd graph."""
        return self._map(torch.detach)

    def to(self: Self, device: Device, copy: bool = False) -> Self:
        """Move to a device, like `torch.Tensor.to`."""
        target = make_device(device)
        if not copy and self.device == target:
            return self
        other = self._map(lambda tensor: tensor.to(target, copy=True))
        other.device = target
        return other

    def cpu(self: Self) -> Self:
        """Move to the CPU."""
        return self.to("cpu")

    def cuda(self: Self) -> Self:
        """Move to the current CUDA device."""
        return self.to("cuda")

    def get_cloud(self, index: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Points (P, 3), normals (P, 3) or None, and features (P, C) or None of one cloud."""
        if not isinstance(index, int) or not 0 <= index < len(self):
            raise ValueError(f"index must be an int in [0, {len(self)}), got {index}")
        normals, features = (
            layouts.as_list()[index] if layouts else None for layouts in (self._normals, self._features)
        )
        return self.points_list()[index], normals, features

    def split(self: Self, split_sizes: list[int]) -> list[Self]:
        """Split the batch into batches with these numbers of clouds."""
        if not all(isinstance(size, int) for size in split_sizes):
            raise ValueError(f"split_sizes must be a list of ints, got {split_sizes}")
        ends = [sum(split_sizes[: number + 1]) for number in range(len(split_sizes))]
        return [self[end - size : end] for end, size in zip(ends, split_sizes, strict=True)]

    def offset_(self: Self, offsets_packed: Tensor) -> Self:
        """Add offsets (3,) or (sum(P_n), 3) to the points of this object."""
        points = self.points_packed()
        if offsets_packed.shape not in ((3,), points.shape):
            raise ValueError(f"offsets_packed must be (3,) or {tuple(points.shape)}, got {tuple(offsets_packed.shape)}")
        self._points = Layouts(self._sizes, packed=points + offsets_packed)
        return self

    def offset(self: Self, offsets_packed: Tensor) -> Self:
        """Copy with offsets (3,) or (sum(P_n), 3) added to the points."""
        return self.clone().offset_(offsets_packed)

    def scale_(self: Self, scale: float | Tensor) -> Self:
        """Multiply the points of this object by a number or by one number per cloud, (N,)."""
        if isinstance(scale, Tensor) and scale.dim() > 0:
            if scale.shape != (len(self),):
                raise ValueError(f"scale must be a number or (N,) = ({len(self)},), got {tuple(scale.shape)}")
            scale = scale.to(self.device)[self._number, None]
        self._points = Layouts(self._sizes, packed=self.points_packed() * scale)
        return self

    def scale(self: Self, scale: float | Tensor) -> Self:
        """Copy with points multiplied by a number or by one number per cloud, (N,)."""
        return self.clone().scale_(scale)

    def subsample(self: Self, max_points: int | Sequence[int] | Tensor) -> Self:
        """Keep at most this many random points of each cloud; return this object if all clouds are small enough."""
        limits = [max_points] * len(self) if isinstance(max_points, int) else [int(limit) for limit in max_points]
        if len(limits) != len(self):
            raise ValueError(f"max_points must be an int or one int for each of {len(self)} clouds, got {len(limits)}")
        pairs = list(zip(self._sizes, limits, strict=True))
        if all(size <= limit for size, limit in pairs):
            return self
        keep_all = slice(None)
        kept = [torch.randperm(size, device=self.device)[:limit] if size > limit else keep_all for size, limit in pairs]
        return type(self)(**{
            name: layouts and [rows[keep] for rows, keep in zip(layouts.as_list(), kept, strict=True)]
            for name, layouts in self._attributes().items()
        })  # fmt: skip

    def get_bounding_boxes(self) -> Tensor:
        """Lowest and highest coordinates of each cloud, (N, 3, 2)."""
        if 0 in self._sizes:
            raise ValueError("get_bounding_boxes requires clouds with at least one point, got an empty cloud")
        return torch.stack([torch.stack([rows.amin(0), rows.amax(0)], 1) for rows in self.points_list()])

    def estimate_normals(
        self, neighborhood_size: int = 50, disambiguate_directions: bool = True, assign_to_self: bool = False
    ) -> Tensor:
        """Estimate normals (N, max(P_n), 3) with `ops.estimate_pointcloud_normals`.

        Args:
            neighborhood_size: Number of neighbors of each point.
            disambiguate_directions: Choose the signs of the normals by their neighbors.
            assign_to_self: Replace the normals of this object.
        """
        from ..ops.points_normals import estimate_pointcloud_normals

        normals = estimate_pointcloud_normals(self, neighborhood_size, disambiguate_directions)
        if assign_to_self:
            self._normals = Layouts(self._sizes, padded=normals)
        return normals

    def extend(self: Self, N: int) -> Self:
        """Repeat each cloud N times."""
        if not isinstance(N, int) or N < 1:
            raise ValueError(f"N must be an int of at least 1, got {N}")
        return type(self)(**{
            name: layouts and [rows.clone() for rows in layouts.as_list() for _ in range(N)]
            for name, layouts in self._attributes().items()
        })  # fmt: skip

    def update_padded(
        self: Self,
        new_points_padded: Tensor,
        new_normals_padded: Tensor | None = None,
        new_features_padded: Tensor | None = None,
    ) -> Self:
        """Copy with new padded tensors for the same numbers of points; None keeps normals and features.

        Args:
            new_points_padded: (N, max(P_n), 3).
            new_normals_padded: (N, max(P_n), 3) or None.
            new_features_padded: (N, max(P_n), C) or None.
        """
        other = copy.copy(self)
        features = self.features_padded()
        widths = {"points": 3, "normals": 3, "features": None if features is None else features.shape[2]}
        given = {"points": new_points_padded, "normals": new_normals_padded, "features": new_features_padded}
        for name, padded in given.items():
            if padded is not None and self._sizes:
                layouts = auxiliary(f"new_{name}_padded", padded, self._sizes, self.device, widths[name])
                setattr(other, f"_{name}", layouts)
        return other

    def inside_box(self, box: Tensor) -> Tensor:
        """Find the points in boxes.

        Args:
            box: (2, 3), (1, 2, 3) or (N, 2, 3), the lowest and highest coordinates.

        Returns:
            (sum(P_n),) bool, for the packed points.
        """
        if box.dim() not in (2, 3) or box.shape[-2:] != (2, 3):
            raise ValueError(f"Input box must be of shape (2, 3) or (N, 2, 3), got {tuple(box.shape)}")
        if box.dim() == 3 and box.shape[0] not in (1, len(self)):
            raise ValueError(f"Input box dimension is incompatible with N = {len(self)} clouds, got {box.shape[0]}")
        if box.device.type == "cpu" and bool((box[..., 0, :] > box[..., 1, :]).any()):
            raise ValueError("Input box is invalid: its lowest coordinates must not exceed its highest")
        bounds = box.expand(len(self), 2, 3)[self._number]
        points = self.points_packed()
        return ((points >= bounds[:, 0]) & (points <= bounds[:, 1])).all(1)


def join_pointclouds_as_batch(pointclouds: Sequence[Pointclouds]) -> Pointclouds:
    """Join batches of clouds into one batch.

    Args:
        pointclouds: Pointclouds that all have normals or none have them, and likewise features.

    Returns:
        The clouds of all batches.

    Example:
        >>> len(join_pointclouds_as_batch([Pointclouds(torch.zeros(2, 5, 3)), Pointclouds(torch.zeros(1, 4, 3))]))
        3
    """
    if isinstance(pointclouds, Pointclouds) or not isinstance(pointclouds, Sequence) or not pointclouds:
        kind = type(pointclouds).__name__
        raise ValueError(f"Wrong first argument: pointclouds must be a list of at least one Pointclouds, got {kind}")
    devices = {clouds.device for clouds in pointclouds}
    if len(devices) > 1:
        raise ValueError(f"pointclouds must be on the same device, got {', '.join(sorted(map(str, devices)))}")
    joined: dict[str, list[Tensor] | None] = {}
    for name in _ATTRIBUTES:
        lists = [getattr(clouds, f"{name}_list")() for clouds in pointclouds]
        missing = [rows is None for rows in lists]
        if any(missing) and not all(missing):
            raise ValueError(f"{name} must be given for all pointclouds or none, got some set to None")
        joined[name] = None if all(missing) else [item for rows in lists for item in rows]
    widths = {rows.shape[1] for rows in joined["features"] or ()}
    if len(widths) > 1:
        raise ValueError(f"pointclouds must have the same number of features, got {sorted(widths)}")
    return Pointclouds(**joined)


def join_pointclouds_as_scene(pointclouds: Pointclouds | list[Pointclouds]) -> Pointclouds:
    """Join clouds into a single cloud.

    Args:
        pointclouds: Pointclouds, or a list of them; see `join_pointclouds_as_batch`.

    Returns:
        One cloud.

    Example:
        >>> join_pointclouds_as_scene(Pointclouds(torch.zeros(2, 5, 3))).num_points_per_cloud()
        tensor([10])
    """
    clouds = join_pointclouds_as_batch(pointclouds) if isinstance(pointclouds, list) else pointclouds
    if len(clouds) == 1:
        return clouds
    normals, features = clouds.normals_packed(), clouds.features_packed()
    return Pointclouds(
        clouds.points_packed()[None],
        None if normals is None else normals[None],
        None if features is None else features[None],
    )

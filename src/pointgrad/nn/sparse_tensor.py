"""Features of voxels: the input and output of sparse layers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from pointgrad.ops import checks
from pointgrad.ops.sparse import KernelMap, strided_map, submanifold_map, transposed_map
from pointgrad.ops.voxels import voxelize

Triple = tuple[int, int, int]
Kind = Literal["submanifold", "strided", "transposed"]
Step = tuple[Kind, Triple, Triple, Triple, Triple]  # a layer: kind of its map, kernel size, stride, padding, dilation
Key = tuple[tuple[Step, ...], Step]


def submanifold_step(kernel_size: Triple, dilation: Triple = (1, 1, 1)) -> Step:
    """The step of a submanifold convolution."""
    return ("submanifold", kernel_size, (1, 1, 1), (0, 0, 0), dilation)


def assume_rows(rows: Tensor) -> None:
    """Assume at least one row while a program is traced, because batch norm branches on the number of rows.

    Where the number depends on data, the traced program raises an error if there are no rows.
    """
    if torch.compiler.is_compiling():
        torch._check(rows.shape[0] > 0)


@dataclass(frozen=True, eq=False)
class SparseTensor:
    """Voxels with features, packed, and the kernel maps built for them so far. Sparse layers take and return it.

    Attributes:
        coordinates: (N, 3) int64 or int32, different voxels within each cloud.
        features: (N, C), one row for each voxel.
        offsets: (B + 1,), the start of each cloud, and N. None for a single cloud.
        level: The strided and transposed layers between the voxels of the input and these, as kind, kernel size,
            stride, padding and dilation; empty for the voxels of the input.
        maps: The kernel maps by level and layer. All tensors computed from one input share this dictionary, so each map
            is built once, and freed with these tensors.

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 0], [0, 0, 1]]), torch.rand(2, 8))
        >>> tensor.with_features(tensor.features[:, :4]).features.shape
        torch.Size([2, 4])
    """

    coordinates: Tensor
    features: Tensor
    offsets: Tensor | None = None
    level: tuple[Step, ...] = ()
    maps: dict[Key, KernelMap] = field(default_factory=dict, repr=False)

    @classmethod
    def from_points(
        cls,
        points: Tensor,
        features: Tensor,
        size: float | Sequence[float],
        *,
        offsets: Tensor | None = None,
        reduce: Literal["mean", "sum", "max", "first"] = "mean",
    ) -> "tuple[SparseTensor, Tensor]":
        """Reduce the features of points to the voxels that contain them.

        Args:
            points: (N, 3), packed.
            features: (N, C).
            size: Edge length of a voxel, or one per axis; see `voxelize`.
            offsets: (B + 1,), the points of each cloud. By default one cloud.
            reduce: "mean", "sum", "max" or "first" of the points of a voxel.

        Returns:
            The voxels, and the voxel (N,) of each point, -1 for points that are not finite.
            `gather(tensor.features, voxel)` returns from voxels to points. The number of voxels depends on the data, so
            a GPU is synchronized.

        Gradients flow to `features`.

        Example:
            >>> points = torch.tensor([[0.1, 0., 0.], [2.5, 0., 0.], [0.3, 0., 0.]])
            >>> tensor, voxel = SparseTensor.from_points(points, points, 1.0)
            >>> tensor.features[:, 0], voxel
            (tensor([0.2000, 2.5000]), tensor([0, 1, 0]))
        """
        checks.tensor("points", points)
        checks.shape(points.dim() == 2, "points", "(N, 3)", points)
        checks.tensor("features", features)
        voxels = voxelize(points, size, features=features, reduce=reduce, offsets=offsets)
        assert voxels.features is not None
        return cls(voxels.coordinates, voxels.features, voxels.offsets), voxels.inverse

    def with_features(self, features: Tensor) -> "SparseTensor":
        """Return the same voxels with different features."""
        return replace(self, features=features)

    def kernel_map(self, step: Step) -> KernelMap:
        """Return the map of a layer on these voxels. The first call builds it."""
        key = self.level, step
        if key not in self.maps:
            kind, size, stride, padding, dilation = step
            if kind == "submanifold":
                found = submanifold_map(self.coordinates, size, dilation=dilation, offsets=self.offsets)
            else:
                build = strided_map if kind == "strided" else transposed_map
                found = build(
                    self.coordinates, size, stride=stride, padding=padding, dilation=dilation, offsets=self.offsets
                )
            self.maps[key] = found
        return self.maps[key]

    def inverse_map(self) -> KernelMap:
        """Return the map from these voxels back to those before the last strided or transposed layer."""
        checks.value(
            len(self.level) > 0, "tensor", "the output of a strided or transposed layer", "the voxels of the input"
        )
        return self.maps[self.level[:-1], self.level[-1]].inverse()

    def along(self, found: KernelMap, features: Tensor, level: tuple[Step, ...]) -> "SparseTensor":
        """Return features on the output voxels of a map, which have this level."""
        return SparseTensor(found.coordinates, features, found.offsets, level, self.maps)

"""Pooling of voxels to a coarser grid and back (Point Transformer V3)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pointgrad.nn.sparse_tensor import SparseTensor
from pointgrad.ops import checks
from pointgrad.ops.gather import gather
from pointgrad.ops.scatter import scatter
from pointgrad.ops.voxels import UniqueVoxels, unique_voxels

Norm = Callable[[int], nn.Module]


class GridPool(nn.Module):
    """Linear layer, then the maximum over the voxels of each cell of a coarser grid, norm and GELU.

    A cell has the coordinates of its voxels divided by `stride`, rounded down. The number of cells depends on the data,
    so a GPU is synchronized once.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        stride: Number of voxels of a cell along each axis.
        norm: Function of the number of channels that returns a norm of rows (V, C).

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 1], [0, 1, 0], [2, 0, 0]]), torch.rand(3, 8))
        >>> coarse, parent = GridPool(8, 16)(tensor)
        >>> coarse.coordinates, parent
        (tensor([[0, 0, 0],
                [1, 0, 0]]), tensor([0, 0, 1]))
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 2, *, norm: Norm = nn.BatchNorm1d) -> None:
        super().__init__()
        checks.kind(checks.is_integer(stride), "stride", "an int", stride)
        checks.value(stride >= 1, "stride", "at least 1", stride)
        self.stride = stride
        self.proj = nn.Linear(in_channels, out_channels)
        self.norm = norm(out_channels)
        self.act = nn.GELU()

    def forward(self, tensor: SparseTensor) -> tuple[SparseTensor, Tensor]:
        """Pool voxels to cells.

        Args:
            tensor: N voxels with features (N, in_channels).

        Returns:
            The V cells with features (V, out_channels), numbered as by `unique_voxels`, and the cell (N,) of each
            voxel.
        """
        checks.kind(isinstance(tensor, SparseTensor), "tensor", "a SparseTensor", tensor)
        cells = self.cells(tensor.coordinates, tensor.offsets)
        rows = self.pool(tensor.features, cells.inverse, cells.coordinates.shape[0])
        return SparseTensor(cells.coordinates, rows, cells.offsets), cells.inverse

    def cells(self, coordinates: Tensor, offsets: Tensor | None = None) -> UniqueVoxels:
        """Return the cells of voxels (N, 3). They depend on coordinates only."""
        coarse = torch.div(coordinates, self.stride, rounding_mode="floor")
        return unique_voxels(coarse, offsets=offsets)

    def pool(self, features: Tensor, parent: Tensor, count: int) -> Tensor:
        """Return the features (V, out_channels) of V = `count` cells, where `parent` (N,) is the cell of each voxel."""
        rows: Tensor = self.act(self.norm(scatter(self.proj(features), parent, count, "max")))
        return rows


class GridUnpool(nn.Module):
    """Return from the cells of `GridPool` to its voxels: the sum of projected features of cell and voxel.

    Both projections are a linear layer, norm and GELU.

    Args:
        in_channels: Number of channels of cells.
        skip_channels: Number of channels of voxels.
        out_channels: Number of output channels.
        norm: Function of the number of channels that returns a norm of rows (N, C).

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 1], [0, 1, 0], [2, 0, 0]]), torch.rand(3, 8))
        >>> coarse, parent = GridPool(8, 16)(tensor)
        >>> GridUnpool(16, 8, 4)(coarse, tensor, parent).features.shape
        torch.Size([3, 4])
    """

    def __init__(self, in_channels: int, skip_channels: int, out_channels: int, *, norm: Norm = nn.BatchNorm1d) -> None:
        super().__init__()
        self.proj = nn.Sequential(nn.Linear(in_channels, out_channels), norm(out_channels), nn.GELU())
        self.proj_skip = nn.Sequential(nn.Linear(skip_channels, out_channels), norm(out_channels), nn.GELU())

    def forward(self, tensor: SparseTensor, skip: SparseTensor, parent: Tensor) -> SparseTensor:
        """Add the features of cells to those of their voxels.

        Args:
            tensor: V cells with features (V, in_channels).
            skip: N voxels with features (N, skip_channels), the input of `GridPool`.
            parent: (N,) the cell of each voxel, from `GridPool`.

        Returns:
            The voxels of `skip` with features (N, out_channels).
        """
        for name, given in (("tensor", tensor), ("skip", skip)):
            checks.kind(isinstance(given, SparseTensor), name, "a SparseTensor", given)
        return self.add(tensor, self.project(skip), parent)

    def project(self, skip: SparseTensor) -> SparseTensor:
        """Return the projected features (N, out_channels) of voxels, before those of cells are added."""
        return skip.with_features(self.proj_skip(skip.features))

    def add(self, tensor: SparseTensor, projected: SparseTensor, parent: Tensor) -> SparseTensor:
        """Add the projected features of cells to the result of `project`."""
        return projected.with_features(projected.features + gather(self.proj(tensor.features), parent))

"""Transforms of points by 4 x 4 matrices."""

import copy
import math
import os
import warnings
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from pointgrad.ops import checks

from ..common.datatypes import Device, get_device, make_device
from .rotation_conversions import _axis_angle_rotation
from .se3 import se3_log_map

__all__ = ["Rotate", "RotateAxisAngle", "Scale", "Transform3d", "Translate"]

Self = TypeVar("Self", bound="Transform3d")


class Transform3d:
    """A batch of transforms of 3D points, given by 4 x 4 matrices that are multiplied from the right with row vectors.

    Transforms are composed from left to right: `t1.compose(t2)` applies t1 first. Batches of size 1 are broadcast. All
    methods are differentiable in the numbers that the transforms were made of. Indexing keeps class and dtype (the
    original's translations, scales and rotations become float32).

    Args:
        dtype: Dtype of the identity, if no matrix is given.
        device: Device of the identity, if no matrix is given.
        matrix: (4, 4) or (N, 4, 4), with the translation in the last row. None for the identity.

    Example:
        >>> Transform3d().scale(2).translate(1, 0, 0).transform_points(torch.tensor([[1., 2., 3.]]))
        tensor([[3., 4., 6.]])
    """

    def __init__(
        self, dtype: torch.dtype = torch.float32, device: Device = "cpu", matrix: Tensor | None = None
    ) -> None:
        if matrix is None:
            matrix = torch.eye(4, dtype=dtype, device=device)
        fits = matrix.dim() in (2, 3) and matrix.shape[-2:] == (4, 4)
        checks.shape(fits, "matrix", "(4, 4) or (N, 4, 4)", matrix)
        self._matrix = matrix.reshape(-1, 4, 4)
        self._transforms: list[Transform3d] = []  # applied after the matrix

    @property
    def device(self) -> torch.device:
        """Device of the matrices."""
        return self._matrix.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the matrices."""
        return self._matrix.dtype

    def __len__(self) -> int:
        sizes = [len(self._matrix), *map(len, self._transforms)]
        return 0 if 0 in sizes else max(sizes)

    def __getitem__(self: Self, index: int | list[int] | slice | Tensor) -> Self:
        """Select transforms by an int, a slice, a list of ints, or a tensor of bools or ints."""
        selected = copy.copy(self)
        selected._matrix = self.get_matrix()[[index] if isinstance(index, int) else index]
        selected._transforms = []
        return selected

    def compose(self, *others: "Transform3d") -> "Transform3d":
        """Apply other transforms after this one."""
        for other in others:
            if not isinstance(other, Transform3d):
                raise ValueError(f"others must be Transform3d objects, got {type(other).__name__}")
        composed = Transform3d(matrix=self._matrix)
        composed._transforms = [*self._transforms, *others]
        return composed

    def get_matrix(self) -> Tensor:
        """Compute the matrices (N, 4, 4) of the whole composition."""
        matrix = self._matrix.clone()
        for other in self._transforms:
            matrix = _product(matrix, other.get_matrix())
        return matrix

    def get_se3_log(self, eps: float = 1e-4, cos_bound: float = 1e-4) -> Tensor:
        """Compute the logarithms (N, 6) of rigid transforms; see `se3_log_map`."""
        return se3_log_map(self.get_matrix(), eps, cos_bound)

    def _get_matrix_inverse(self) -> Tensor:
        """Inverse of the matrix without the composed transforms."""
        return torch.linalg.inv(self._matrix)

    def inverse(self, invert_composed: bool = False) -> "Transform3d":
        """Invert the transform.

        Args:
            invert_composed: Invert the product of the composed transforms instead of each transform.
        """
        if invert_composed:
            return Transform3d(matrix=torch.linalg.inv(self.get_matrix()))
        own = Transform3d(matrix=self._get_matrix_inverse())
        if not self._transforms:
            return own
        last, *others = reversed(self._transforms)
        return last.inverse().compose(*(other.inverse() for other in others), own)

    def stack(self, *others: "Transform3d") -> "Transform3d":
        """Concatenate batches of transforms."""
        return Transform3d(matrix=torch.cat([transform.get_matrix() for transform in (self, *others)]))

    def transform_points(self, points: Tensor, eps: float | None = None) -> Tensor:
        """Transform points.

        Args:
            points: (P, 3) or (N, P, 3).
            eps: Least magnitude of the homogeneous coordinate by which the others are divided.

        Returns:
            (N, P, 3), or (P, 3) for one transform and points (P, 3).
        """
        _check_rows("points", points)
        matrix = self.get_matrix()
        moved = _product(points, matrix[:, :3]) + matrix[:, 3:]
        divisor = moved[..., 3:]
        if eps is not None:
            divisor = torch.where(divisor < 0, divisor.clamp(max=-eps), divisor.clamp(min=eps))
        return _like_points(moved[..., :3] / divisor, points)

    def transform_normals(self, normals: Tensor) -> Tensor:
        """Transform normals, which stay perpendicular to transformed surfaces.

        Args:
            normals: (P, 3) or (N, P, 3).

        Returns:
            (N, P, 3), or (P, 3) for one transform and normals (P, 3). Lengths are not kept.
        """
        _check_rows("normals", normals)
        inverse = torch.linalg.inv(self.get_matrix()[:, :3, :3])
        return _like_points(_product(normals, inverse.transpose(1, 2)), normals)

    def translate(self, x: Any, y: Any = None, z: Any = None) -> "Transform3d":
        """Apply `Translate` after this transform."""
        return self.compose(Translate(x, y, z, device=self.device, dtype=self.dtype))

    def scale(self, x: Any, y: Any = None, z: Any = None) -> "Transform3d":
        """Apply `Scale` after this transform."""
        return self.compose(Scale(x, y, z, device=self.device, dtype=self.dtype))

    def rotate(self, R: Tensor, orthogonal_tol: float = 1e-5) -> "Transform3d":
        """Apply `Rotate` after this transform."""
        return self.compose(Rotate(R, orthogonal_tol=orthogonal_tol, device=self.device, dtype=self.dtype))

    def rotate_axis_angle(self, angle: Any, axis: str = "X", degrees: bool = True) -> "Transform3d":
        """Apply `RotateAxisAngle` after this transform."""
        return self.compose(RotateAxisAngle(angle, axis, degrees, device=self.device, dtype=self.dtype))

    def clone(self: Self) -> Self:
        """Copy the matrices."""
        other = copy.copy(self)
        other._matrix = self._matrix.clone()
        other._transforms = [transform.clone() for transform in self._transforms]
        return other

    def to(self: Self, device: Device, copy: bool = False, dtype: torch.dtype | None = None) -> Self:
        """Move to a device and convert to a dtype, like `torch.Tensor.to`."""
        target = make_device(device)
        dtype = dtype or self.dtype
        if not copy and self.device == target and self.dtype == dtype:
            return self
        other = self.clone()
        other._matrix = other._matrix.to(target, dtype)
        other._transforms = [transform.to(target, dtype=dtype) for transform in other._transforms]
        return other

    def cpu(self: Self) -> Self:
        """Move to the CPU."""
        return self.to("cpu")

    def cuda(self: Self) -> Self:
        """Move to the current CUDA device."""
        return self.to("cuda")


class Translate(Transform3d):
    """A batch of translations.

    Args:
        x: (N, 3) translations; or the coordinate x, a number or a tensor of shape () or (N,).
        y, z: The other coordinates, if x is not (N, 3).
        dtype: Dtype of the matrices.
        device: Device; by default that of x.

    Example:
        >>> Translate(1, 2, 3).transform_points(torch.zeros(1, 3))
        tensor([[1., 2., 3.]])
    """

    def __init__(
        self, x: Any, y: Any = None, z: Any = None, dtype: torch.dtype = torch.float32, device: Device | None = None
    ) -> None:
        xyz = _vectors(x, y, z, dtype, get_device(x, device))
        identity = torch.eye(4, dtype=xyz.dtype, device=xyz.device)[:3].expand(xyz.shape[0], 3, 4)
        super().__init__(matrix=torch.cat([identity, functional.pad(xyz, (0, 1), value=1.0)[:, None]], 1))

    def _get_matrix_inverse(self) -> Tensor:
        signs = torch.tensor([-1, -1, -1, 1], dtype=self.dtype, device=self.device)
        return torch.cat([self._matrix[:, :3], self._matrix[:, 3:] * signs], 1)


class Scale(Transform3d):
    """A batch of scalings along the axes.

    Args:
        x: (N, 3) factors; or the factor of x, a number or a tensor of shape () or (N,).
        y, z: The other factors, if x is not (N, 3). If both are None, x is the factor of all axes.
        dtype: Dtype of the matrices.
        device: Device; by default that of x.

    Example:
        >>> Scale(2).transform_points(torch.ones(1, 3))
        tensor([[2., 2., 2.]])
    """

    def __init__(
        self, x: Any, y: Any = None, z: Any = None, dtype: torch.dtype = torch.float32, device: Device | None = None
    ) -> None:
        if y is None and z is None and not (isinstance(x, Tensor) and x.dim() == 2):
            y = z = x
        xyz = _vectors(x, y, z, dtype, get_device(x, device))
        super().__init__(matrix=functional.pad(xyz, (0, 1), value=1.0).diag_embed())

    def _get_matrix_inverse(self) -> Tensor:
        return self._matrix.diagonal(dim1=1, dim2=2).reciprocal().diag_embed()


class Rotate(Transform3d):
    """A batch of rotations.

    Args:
        R: (3, 3) or (N, 3, 3) matrices, which are multiplied from the right with row vectors.
        dtype: Dtype of the matrices.
        device: Device; by default that of R.
        orthogonal_tol: Tolerance of the check that R is a rotation. It is made only if the environment variable
            PYTORCH3D_CHECK_ROTATION_MATRICES is 1, and gives a warning.

    Example:
        >>> Rotate(torch.tensor([[0., 1., 0.], [-1., 0., 0.], [0., 0., 1.]])).transform_points(torch.eye(3)[:1])
        tensor([[0., 1., 0.]])
    """

    def __init__(
        self,
        R: Tensor,
        dtype: torch.dtype = torch.float32,
        device: Device | None = None,
        orthogonal_tol: float = 1e-5,
    ) -> None:
        fits = R.dim() in (2, 3) and R.shape[-2:] == (3, 3)
        checks.shape(fits, "R", "(3, 3) or (N, 3, 3)", R)
        rotation = R.reshape(-1, 3, 3).to(get_device(R, device), dtype)
        if os.environ.get("PYTORCH3D_CHECK_ROTATION_MATRICES", "0") == "1":
            _check_rotation(rotation.detach(), orthogonal_tol)
        corner = torch.tensor([0, 0, 0, 1], dtype=dtype, device=rotation.device).diag_embed()
        super().__init__(matrix=functional.pad(rotation, (0, 1, 0, 1)) + corner)

    def _get_matrix_inverse(self) -> Tensor:
        return self._matrix.transpose(1, 2).contiguous()


class RotateAxisAngle(Rotate):
    """A batch of rotations about one of the axes.

    Args:
        angle: A number, or a tensor of shape () or (N,). Positive angles turn counterclockwise.
        axis: "X", "Y" or "Z".
        degrees: Whether angles are in degrees instead of radians.
        dtype: Dtype of the matrices.
        device: Device; by default that of the angles.

    Example:
        >>> RotateAxisAngle(90, "Z").transform_points(torch.eye(3)[:1]).round()
        tensor([[-0., 1., 0.]])
    """

    def __init__(
        self,
        angle: Any,
        axis: str = "X",
        degrees: bool = True,
        dtype: torch.dtype = torch.float32,
        device: Device | None = None,
    ) -> None:
        angles = _coordinate("angle", angle, dtype, get_device(angle, device))
        if degrees:
            angles = angles / 180 * math.pi
        super().__init__(_axis_angle_rotation(axis.upper(), angles).transpose(1, 2), dtype=dtype, device=angles.device)


def _coordinate(name: str, value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number or a tensor as (N,)."""
    checks.value(value is not None, name, "a number or a tensor", "None")
    value = torch.as_tensor(value, dtype=dtype, device=device)
    checks.shape(value.dim() <= 1, name, "a number or (N,)", value)
    return value.reshape(-1)


def _vectors(x: Any, y: Any, z: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Vectors (N, 3) from one tensor or three coordinates."""
    if isinstance(x, Tensor) and x.dim() == 2:
        checks.shape(x.shape[1] == 3, "x", "(N, 3)", x)
        checks.value(y is None and z is None, "y and z", "None if x is (N, 3)", "values")
        return x.to(device, dtype)
    coordinates = [_coordinate(name, value, dtype, device) for name, value in zip("xyz", (x, y, z), strict=True)]
    sizes = [len(coordinate) for coordinate in coordinates]
    count = max(sizes)
    checks.value(all(size in (1, count) for size in sizes), "sizes of x, y and z", "equal or 1", sizes)
    return torch.stack([coordinate.expand(count) for coordinate in coordinates], 1)


def _check_rows(name: str, rows: Tensor) -> None:
    checks.shape(rows.dim() in (2, 3) and rows.shape[-1] == 3, name, "(P, 3) or (N, P, 3)", rows)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Product of (P, K) or (M, P, K) with (N, K, L), where M and N are equal or one of them is 1."""
    sizes = (a.shape[0] if a.dim() == 3 else 1, b.shape[0])
    checks.value(sizes[0] == sizes[1] or 1 in sizes, "batch sizes", "equal or 1", sizes)
    return a @ b


def _like_points(result: Tensor, points: Tensor) -> Tensor:
    """Without the batch dimension if there is one transform and the points had none."""
    return result[0] if result.shape[0] == 1 and points.dim() == 2 else result


def _check_rotation(rotation: Tensor, tolerance: float) -> None:
    identity = torch.eye(3, dtype=rotation.dtype, device=rotation.device)
    orthogonal = torch.allclose(rotation @ rotation.transpose(1, 2), identity.expand_as(rotation), atol=tolerance)
    if not orthogonal or not torch.allclose(torch.linalg.det(rotation), identity[0, 0]):
        warnings.warn("R is not a valid rotation matrix", stacklevel=3)

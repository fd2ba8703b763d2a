"""Arrays that `spconv.utils.Point2VoxelCPU3d` takes and returns."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import gemm as gemm

__all__ = ["Tensor", "from_numpy"]


class Tensor:
    """An array with the methods of a tensor of cumm."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    @property
    def shape(self) -> list[int]:
        """Sizes of the array."""
        return list(self._array.shape)

    def numpy(self) -> NDArray[Any]:
        """Return a copy as a NumPy array."""
        return self._array.copy()

    def numpy_view(self) -> NDArray[Any]:
        """Return the NumPy array itself."""
        return self._array


def from_numpy(arr: NDArray[Any]) -> Tensor:
    """Wrap a NumPy array without copying it."""
    return Tensor(np.asarray(arr))

"""`simple_knn._C`."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

__all__ = ["distCUDA2"]

NUM_NEIGHBORS = 3


def distCUDA2(points: Tensor) -> Tensor:
    """Compute the mean squared distance of each point to its three nearest neighbors, excluding the point itself.

    Duplicates of a point are neighbors at distance zero. If there are fewer than four points, the mean is taken over
    the neighbors that exist; the original returns values of about 1e38. The result of a single point is 0.

    Args:
        points: (N, 3) points.

    Returns:
        (N,) mean squared distances in the dtype of the points but at least float32, without gradient.

    Example:
        >>> distCUDA2(torch.tensor([[0., 0., 0.], [1., 0., 0.], [0., 2., 0.], [0., 0., 3.]]))[0]
        tensor(4.6667)
    """
    checks.tensor("points", points)
    checks.shape(points.dim() == 2 and points.shape[1] == 3, "points", "(N, 3)", points)
    checks.dtype("points", points, checks.FLOATS)
    # The nearest of the four is the point itself, or a duplicate at the same distance.
    found = pointgrad.knn(points.detach(), NUM_NEIGHBORS + 1)
    valid = found.index[:, 1:] >= 0
    total = found.distance2[:, 1:].masked_fill(~valid, 0).sum(1)
    return total / valid.sum(1).clamp(min=1)

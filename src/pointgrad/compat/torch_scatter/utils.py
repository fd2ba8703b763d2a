"""Broadcasting of an index."""

from torch import Tensor

__all__ = ["broadcast"]


def broadcast(src: Tensor, other: Tensor, dim: int) -> Tensor:
    """Expand an index to the shape of another tensor.

    Args:
        src: Index: a vector along `dim`, or a tensor that broadcasts from the left.
        other: Tensor of the target shape.
        dim: Dimension of a vector `src`.

    Returns:
        `src` expanded to the shape of `other`.

    Example:
        >>> broadcast(torch.tensor([0, 1, 0]), torch.empty(2, 3, 4), dim=1).shape
        torch.Size([2, 3, 4])
    """
    if src.dim() == 1:
        src = src.reshape((1,) * (dim % other.dim()) + src.shape)
    return src.reshape(src.shape + (1,) * (other.dim() - src.dim())).expand(other.shape)

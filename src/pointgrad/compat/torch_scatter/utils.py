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
    shape = list(src.shape)
    if len(shape) == 1:
        shape = [1] * (dim % other.dim()) + shape
    return src.reshape(shape + [1] * (other.dim() - len(shape))).expand(other.shape)

"""How an index is broadcast to the values."""

from torch import Tensor

__all__ = ["broadcast"]


def broadcast(src: Tensor, other: Tensor, dim: int) -> Tensor:
    """`src`, an index usually, expanded to the shape of `other`: one dimension stands along `dim`, more from the left.

    >>> broadcast(torch.tensor([0, 1, 0]), torch.empty(2, 3, 4), dim=1).shape
    torch.Size([2, 3, 4])
    """
    if src.dim() == 1:
        src = src.reshape((1,) * (dim % other.dim()) + src.shape)
    return src.reshape(src.shape + (1,) * (other.dim() - src.dim())).expand(other.shape)

"""Cosine similarity."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks
from pointgrad.ops.sums import sum_dtype


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Cosine similarity x1 · x2 / (max(|x1|, eps) max(|x2|, eps)), as `torch.nn.functional.cosine_similarity`.

    Args:
        x1: Floating-point vectors along `dim`.
        x2: Floating-point vectors of a shape that broadcasts with `x1`.
        dim: The dimension of the broadcast shape to sum over.
        eps: Lower bound of the lengths, so that the similarity of a zero vector is 0.

    Returns:
        The broadcast shape without `dim`, in the promoted dtype.

    Example:
        >>> cosine_similarity(torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0], [0.0, 0.0]]))
        tensor([0.9600, 0.0000])
    """
    checks.tensor("x1", x1)
    checks.tensor("x2", x2)
    try:
        shape = torch.broadcast_shapes(x1.shape, x2.shape)
    except RuntimeError:
        checks.shape(False, "x2", lambda: f"broadcastable with x1 of shape {tuple(x1.shape)}", x2)
    checks.dtype("x1", x1, checks.FLOATS)
    checks.dtype("x2", x2, checks.FLOATS)
    checks.device("x2", x2, "x1", x1)
    checks.dim("dim", dim, len(shape))
    checks.number("eps", eps)
    rank = max(len(shape), 1)
    # Counted from the end, dim is the same in x1 and x2.
    return _CosineSimilarity.apply(x1, x2, dim % rank - rank, float(eps))


class _CosineSimilarity(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x1: Tensor, x2: Tensor, dim: int, eps: float) -> Tensor:
        a, b = torch.broadcast_tensors(*_widened(x1, x2))
        similarity = ((a / _length(a, dim, eps)) * (b / _length(b, dim, eps))).sum(dim)
        casts = x1.is_cuda and checks.autocasts(x1)  # the result is then float32, as in PyTorch
        narrow = torch.promote_types(x1.dtype, x2.dtype)
        # No `to` without effect: see softmax.py.
        return similarity if casts or narrow == similarity.dtype else similarity.to(narrow)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, float], output: Tensor) -> None:
        x1, x2, ctx.dim, ctx.eps = inputs
        ctx.save_for_backward(x1, x2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x1, x2 = ctx.saved_tensors
        for_x1, for_x2, *_ = ctx.needs_input_grad
        a, b = torch.broadcast_tensors(*_widened(x1, x2))
        n, m = _length(a, ctx.dim, ctx.eps), _length(b, ctx.dim, ctx.eps)
        u, v = a / n, b / m  # unit vectors, or shorter ones where eps replaces the length
        cosine = (u * v).sum(ctx.dim, keepdim=True)
        dy = grad.unsqueeze(ctx.dim).to(a.dtype)
        dx1 = dx2 = None
        if for_x1:
            tangent = v - torch.where(n > ctx.eps, cosine, 0) * u
            dx1 = (dy * tangent / n).sum_to_size(x1.shape).to(x1.dtype)
        if for_x2:
            tangent = u - torch.where(m > ctx.eps, cosine, 0) * v
            dx2 = (dy * tangent / m).sum_to_size(x2.shape).to(x2.dtype)
        return dx1, dx2, None, None  # dim, eps: not differentiable


def _length(x: Tensor, dim: int, eps: float) -> Tensor:
    return torch.linalg.vector_norm(x, dim=dim, keepdim=True).clamp_min(eps)


def _widened(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    wide = sum_dtype(torch.promote_types(x1.dtype, x2.dtype))
    return x1.to(wide), x2.to(wide)

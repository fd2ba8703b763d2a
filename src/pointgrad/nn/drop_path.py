"""Stochastic depth."""

from torch import Tensor, nn

from pointgrad.ops import checks


class DropPath(nn.Module):
    """Stochastic depth: in training, set each row to 0 with probability p and divide the others by 1 - p.

    It belongs at the end of a residual branch. As in Point Transformer V3, a row is a point, not a cloud. Random
    numbers are drawn from torch's default generator.

    Args:
        p: Probability in [0, 1) to drop a row.

    Example:
        >>> DropPath(0.5).eval()(torch.ones(2, 3))
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        checks.number("p", p, "a number")
        checks.value(0 <= p < 1, "p", "in [0, 1)", p)
        self.p = float(p)

    def forward(self, rows: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return rows
        keep = rows.new_empty(rows.shape[0], *[1] * (rows.dim() - 1)).bernoulli_(1 - self.p)
        return rows * keep.div_(1 - self.p)

    def extra_repr(self) -> str:
        return f"{self.p:.3g}"

"""Prompt-driven normalization (Point Prompt Training)."""

from collections.abc import Sequence

from torch import Tensor, nn

from pointgrad.nn.grid_pool import Norm
from pointgrad.ops import checks


class PDNorm(nn.Module):
    """Prompt-driven norm: a norm of its own for each condition, such as each data set that is trained on.

    Args:
        channels: Number of channels.
        conditions: Names of the conditions.
        norm: Function of the number of channels that returns a norm of rows (N, C).
        context_channels: Number of channels of the context, from which a linear layer predicts a scale and a shift of
            the result; 0 for no context.

    Attributes:
        condition: Name of the condition that is used, by default the first. Assign to it before a forward pass; a
            batch has one condition.

    Example:
        >>> norm = PDNorm(8, ["ScanNet", "S3DIS"])
        >>> norm.condition = "S3DIS"
        >>> norm(torch.rand(5, 8)).shape
        torch.Size([5, 8])
    """

    def __init__(
        self, channels: int, conditions: Sequence[str], norm: Norm = nn.BatchNorm1d, *, context_channels: int = 0
    ) -> None:
        super().__init__()
        named = isinstance(conditions, Sequence) and all(isinstance(each, str) for each in conditions)
        checks.kind(named and not isinstance(conditions, str), "conditions", "a list of names", conditions)
        different = 0 < len(conditions) == len(set(conditions))
        checks.value(different, "conditions", "one or more different names", list(conditions), verb="have")
        self.conditions = tuple(conditions)
        self.condition = self.conditions[0]
        self.norm = nn.ModuleList([norm(channels) for _ in conditions])
        self.modulation: nn.Sequential | None = None
        if context_channels:
            self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(context_channels, 2 * channels))

    def forward(self, rows: Tensor, context: Tensor | None = None) -> Tensor:
        """Normalize rows.

        Args:
            rows: (N, C).
            context: (N, context_channels), or (1, context_channels) for all rows.

        Returns:
            (N, C).
        """
        known = self.condition in self.conditions
        checks.value(known, "condition", lambda: f"one of {', '.join(self.conditions)}", repr(self.condition))
        rows = self.norm[self.conditions.index(self.condition)](rows)
        given = (context is not None) == (self.modulation is not None)
        checks.value(given, "context", "given if and only if context_channels is not 0", context)
        if self.modulation is None:
            return rows
        shift, scale = self.modulation(context).chunk(2, 1)
        return rows * (1 + scale) + shift

"""Multilayer perceptron shared by all points."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module
from torch.nn.modules.batchnorm import _BatchNorm

from pointgrad.ops import checks

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "leaky_relu": lambda: nn.LeakyReLU(0.2, inplace=True),
    "gelu": nn.GELU,
}


def make_norm(norm: str | None, channels: int) -> nn.Module | None:
    """Normalization of rows (R, C): "batch" over all rows, "group" for each row separately, or None."""
    checks.value(norm in ("batch", "group", None), "norm", '"batch", "group" or None', repr(norm))
    if norm == "batch":
        return nn.BatchNorm1d(channels)
    if norm == "group" and channels > 1:  # the normalization of a single channel is zero
        # At least 8 channels per group, for a meaningful variance.
        groups = next(
            groups for groups in (8, 4, 2, 1) if (channels % groups == 0 and channels >= 8 * groups) or groups == 1
        )
        return nn.GroupNorm(groups, channels)
    return None


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is exactly of this type and has no hooks, so that it can be computed in a different way."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    # Global module hooks, for which torch 2.6 has no public function.
    shared = (
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        module._global_backward_hooks,
        module._global_backward_pre_hooks,
    )
    return type(layer) is kind and not any(hooks) and not any(shared)


class SharedMLP(nn.Module):
    """Linear layers with normalization and activation on the last dimension: (..., channels) -> (..., widths[-1]).

    Args:
        channels: Number of input channels.
        widths: Number of output channels of each layer.
        norm: "batch": statistics over all rows of the input, that is, all points of a packed batch. "group": each row
            separately, in groups of channels, so that the result does not depend on the rest of the batch. None: no
            normalization, and linear layers with a bias.
        activation: Activation after each layer: "relu", "leaky_relu" (slope 0.2) or "gelu".
        last: The last layer: "full" has norm and activation, "norm" has no activation, "linear" has neither, but a
            bias.

    Example:
        >>> SharedMLP(3, [16, 32])(torch.rand(2, 100, 3)).shape
        torch.Size([2, 100, 32])
    """

    def __init__(
        self,
        channels: int,
        widths: Sequence[int],
        *,
        norm: str | None = "batch",
        activation: str = "relu",
        last: str = "full",
    ) -> None:
        super().__init__()
        checks.value(last in ("full", "norm", "linear"), "last", '"full", "norm" or "linear"', repr(last))
        checks.value(len(widths) > 0, "widths", "non-empty", list(widths))
        checks.value(activation in ACTIVATIONS, "activation", " or ".join(ACTIVATIONS), repr(activation))
        ins = [channels, *widths[:-1]]
        norms = [norm] * (len(widths) - 1) + [None if last == "linear" else norm]
        # A norm has its own bias.
        linears = [nn.Linear(a, b, bias=n is None) for a, b, n in zip(ins, widths, norms, strict=True)]
        self.linears: Any = nn.ModuleList(linears)
        self.norms: Any = nn.ModuleList(make_norm(n, b) or nn.Identity() for b, n in zip(widths, norms, strict=True))
        self.activation = ACTIVATIONS[activation]()
        self.last = last
        self.out_channels = widths[-1]
        self.widest = max(widths)

    @property
    def uses_batch_statistics(self) -> bool:
        """Whether the result of a row depends on the other rows."""
        return any(isinstance(norm, _BatchNorm) and (norm.training or norm.running_mean is None) for norm in self.norms)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.finish(self.linears[0](x.reshape(-1, x.shape[-1])))
        return rows.reshape(*x.shape[:-1], self.out_channels)

    def finish(self, rows: Tensor) -> Tensor:
        """Apply everything after the first linear layer to its output (R, widths[0])."""
        for i, (linear, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            rows = norm(linear(rows) if i else rows)
            if self.last == "full" or i < len(self.linears) - 1:
                rows = self.activation(rows)
        return rows

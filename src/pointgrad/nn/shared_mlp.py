"""The multilayer perceptron that all points share."""

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
    """A normalisation of rows (R, C): "batch", over all rows; "group", of each row by itself; None."""
    checks.value(norm in ("batch", "group", None), "norm", '"batch", "group" or None', repr(norm))
    if norm == "batch":
        return nn.BatchNorm1d(channels)
    if norm == "group" and channels > 1:  # one channel by itself would become zero
        # Groups of at least 8 channels: fewer have no spread to normalise by.
        groups = next(
            groups for groups in (8, 4, 2, 1) if (channels % groups == 0 and channels >= 8 * groups) or groups == 1
        )
        return nn.GroupNorm(groups, channels)
    return None


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling the layer does what its kind does and no more, so that the same may be computed another way."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    # Of all modules; torch 2.6 has no function that asks for them.
    shared = (
        module._global_forward_hooks,
        module._global_forward_pre_hooks,
        module._global_backward_hooks,
        module._global_backward_pre_hooks,
    )
    return type(layer) is kind and not any(hooks) and not any(shared)


class SharedMLP(nn.Module):
    """Linear layers with normalisation and activation, on the last dimension: the same for every point.

    channels: of the input. widths: of each layer's output; the last is the output's.
    norm: "batch", with statistics over all rows of the input: in a packed batch the points of all clouds, each once,
        and no padding. "group": each row by itself, in groups of its channels, so that nothing depends on the rest
        of the batch. None: linear layers with a bias.
    activation: after every layer: "relu", "leaky_relu" (slope 0.2) or "gelu".
    last: what the last layer has: "full", norm and activation like the others; "norm", no activation; "linear",
        neither, but a bias.

    Input (..., channels), output (..., widths[-1]).

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
        checks.value(len(widths) > 0, "widths", "at least one", list(widths))
        checks.value(activation in ACTIVATIONS, "activation", " or ".join(ACTIVATIONS), repr(activation))
        ins = [channels, *widths[:-1]]
        norms = [norm] * (len(widths) - 1) + [None if last == "linear" else norm]
        # A batch or group norm has a bias of its own.
        linears = [nn.Linear(a, b, bias=n is None) for a, b, n in zip(ins, widths, norms, strict=True)]
        self.linears: Any = nn.ModuleList(linears)
        self.norms: Any = nn.ModuleList(make_norm(n, b) or nn.Identity() for b, n in zip(widths, norms, strict=True))
        self.activation = ACTIVATIONS[activation]()
        self.last = last
        self.out_channels = widths[-1]
        self.widest = max(widths)

    @property
    def uses_batch_statistics(self) -> bool:
        """Whether what a row becomes depends on the other rows."""
        return any(isinstance(norm, _BatchNorm) and (norm.training or norm.running_mean is None) for norm in self.norms)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.finish(self.linears[0](x.reshape(-1, x.shape[-1])))
        return rows.reshape(*x.shape[:-1], self.out_channels)

    def finish(self, rows: Tensor) -> Tensor:
        """All after the first linear layer, from its output (R, widths[0])."""
        for i, (linear, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            rows = norm(linear(rows) if i else rows)
            if self.last == "full" or i < len(self.linears) - 1:
                rows = self.activation(rows)
        return rows

"""Regularization of the outputs or inputs of layers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .base import Hooks, Layers, Tap

LIMIT = 10_000  # layer calls without loss(); each keeps its graph alive


def mean_absolute(output: Tensor) -> Tensor:
    """The mean absolute value."""
    return output.abs().mean()


class ActivationPenalty(Hooks):
    """Differentiable penalty on the values of selected layers: `loss = task_loss + 0.1 * penalty.loss()`.

    `loss()` returns the sum over all layer calls since the last `loss()`, so a layer may be called several times per
    step. Calls under `torch.no_grad()` add nothing. If no selected layer was called, `loss()` raises an error instead
    of returning zero. `reset()` and leaving the context discard the collected terms. More than 10,000 layer calls
    without `loss()` are an error, because each keeps its graph in memory.

    Under `torch.compile`, the penalty is compiled with the module, also with `fullgraph=True`, if it is attached before
    the first compiled call. Compiled code ignores hooks that are attached later; `loss()` then raises an error.

    Args:
        module: The module whose layers are penalized.
        names_or_types: Layers to select, as for `Recorder`.
        penalty: Maps a tensor to a scalar; the mean absolute value by default. If a layer returns or receives several
            floating-point tensors, the penalty is applied to each.
        on: "outputs" of the layers, or "inputs", positional and keyword, as they are before the layer runs.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with ActivationPenalty(net, torch.nn.ReLU) as penalty:
        ...     output = net(torch.ones(1, 2))
        ...     (output.sum() + 0.1 * penalty.loss()).backward()
    """

    def __init__(
        self,
        module: nn.Module,
        names_or_types: Layers,
        penalty: Callable[[Tensor], Tensor] = mean_absolute,
        *,
        on: str = "outputs",
    ) -> None:
        if on not in ("inputs", "outputs"):
            raise ValueError(f"on must be 'inputs' or 'outputs', got {on!r}")
        super().__init__(module, names_or_types)
        self._penalty: Callable[[Tensor], Tensor] | None = penalty
        self._on = on
        self.reset()

    def reset(self) -> None:
        """Discard the terms since the last `loss()`."""
        self._total: Tensor | None = None
        self._called = False
        self._waiting = 0

    def loss(self) -> Tensor:
        """Return the sum of the penalties since the last `loss()`, a differentiable scalar.

        Raises:
            RuntimeError: If no selected layer was called.
        """
        if not self._called:
            raise RuntimeError(
                "no selected layer was called since the last loss(): the module did not run inside this "
                "ActivationPenalty, or it was compiled earlier, and compiled code ignores new hooks"
            )
        total = self._total
        self.reset()
        return torch.zeros(()) if total is None else total

    def _attach(self) -> None:
        assert self._layers is not None
        for layer in self._layers.values():
            if self._on == "inputs":
                self._handles.append(layer.register_forward_pre_hook(Tap(self._before), with_kwargs=True))
            else:
                self._handles.append(layer.register_forward_hook(Tap(self._after)))

    def _forget(self) -> None:
        self.reset()

    def _before(self, layer: nn.Module, inputs: Any, kwargs: Any) -> None:
        self._add((inputs, kwargs))

    def _after(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        self._add(output)

    def _add(self, values: Any) -> None:
        self._called = True
        if not torch.is_grad_enabled():
            return
        if self._waiting >= LIMIT:
            message = f"loss() was not called for {LIMIT} layer calls, whose graphs are kept: call loss() in every step"
            raise RuntimeError(message)
        assert self._penalty is not None
        for value in tree_leaves(values):
            if isinstance(value, Tensor) and value.is_floating_point():
                term = self._penalty(value.clone())  # a layer may modify it in place
                if term.dim():
                    raise ValueError(f"penalty must return a scalar, got shape {tuple(term.shape)}")
                self._total = term if self._total is None else self._total + term.to(self._total.device)
        self._waiting += 1

    def __getstate__(self) -> dict[str, Any]:
        # Terms with a graph cannot be copied, nor can lambdas be pickled; a copy needs neither.
        return {**super().__getstate__(), "_total": None, "_called": False, "_waiting": 0, "_penalty": None}

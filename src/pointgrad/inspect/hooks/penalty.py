"""A regulariser on what layers compute."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .base import Hooks, Layers, Tap

LIMIT = 10_000  # calls that may wait for loss(); each keeps its graph alive


def mean_absolute(output: Tensor) -> Tensor:
    return output.abs().mean()


class ActivationPenalty(Hooks):
    """A loss term on the outputs of chosen layers, with its gradient: `loss = task_loss + 0.1 * penalty.loss()`.

    module, names_or_types: as for `Recorder`.
    penalty: maps one output tensor to a scalar; the mean absolute value unless told otherwise. A layer that returns
        several floating tensors is penalised for each.

    `loss()` returns the sum over all calls since the last `loss()` and starts again from zero, so a layer may be called
    several times in a step, and steps do not run into each other. Calls without gradients (`torch.no_grad`) add
    nothing. If no chosen layer was called at all, `loss()` is an error and not a silent zero. What is not collected is
    dropped by `reset()` and on leaving; after 10,000 calls without `loss()`, the next is an error, because each holds
    its graph.

    Under `torch.compile` the penalty is compiled with the module, `fullgraph` too, if it is attached before the first
    compiled call. Compiled code does not look for hooks that come later: then `loss()` says that no layer was called.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> with ActivationPenalty(net, torch.nn.ReLU) as penalty:
    ...     output = net(torch.ones(1, 2))
    ...     (output.sum() + 0.1 * penalty.loss()).backward()
    """

    def __init__(
        self, module: nn.Module, names_or_types: Layers, penalty: Callable[[Tensor], Tensor] = mean_absolute
    ) -> None:
        super().__init__(module, names_or_types)
        self._penalty: Callable[[Tensor], Tensor] | None = penalty
        self.reset()

    def reset(self) -> None:
        """Drops what was not collected."""
        self._total: Tensor | None = None
        self._called = False
        self._waiting = 0

    def loss(self) -> Tensor:
        """The sum of the penalties since the last call, a scalar with a graph."""
        if not self._called:
            raise RuntimeError(
                "no chosen layer was called since the last loss(): the module did not run inside this "
                "ActivationPenalty, or it was compiled before, and compiled code does not look for new hooks"
            )
        total = self._total
        self.reset()
        return torch.zeros(()) if total is None else total

    def _attach(self) -> None:
        assert self._layers is not None
        for layer in self._layers.values():
            self._handles.append(layer.register_forward_hook(Tap(self._see)))

    def _forget(self) -> None:
        self.reset()

    def _see(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        self._called = True
        if not torch.is_grad_enabled():
            return
        if self._waiting >= LIMIT:
            raise RuntimeError(f"{LIMIT} penalties wait for loss(), each with its graph: call loss() in every step")
        assert self._penalty is not None
        for value in tree_leaves(output):
            if isinstance(value, Tensor) and value.is_floating_point():
                term = self._penalty(value.clone())  # a layer behind may change it in place
                if term.dim():
                    raise ValueError(f"penalty must return a scalar, got {tuple(term.shape)}")
                self._total = term if self._total is None else self._total + term.to(self._total.device)
        self._waiting += 1

    def __getstate__(self) -> dict[str, Any]:
        # A term cannot be copied without its graph, and the function may be a lambda; a copy has no use for them.
        return {**super().__getstate__(), "_total": None, "_called": False, "_waiting": 0, "_penalty": None}

"""Watching gradients: their norms, and where the first NaN or infinity came from."""

import functools
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .base import Hooks, branch, eager_tap

NEVER = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class NonFinite:
    """The first NaN or infinity.

    name: qualified name of the layer that produced it, or received it from outside the module.
    direction: "forward" or "backward".
    what: "input", "output", "own code before <layer>", "gradient of the output", "gradient of the input" or
        "gradient of <parameter>".
    produced: True if the layer was given finite values and made this of them; a gradient that it was given comes from
        the code behind it, or the loss.
    """

    name: str
    direction: str
    what: str
    produced: bool

    def __str__(self) -> str:
        layer = f"layer {self.name!r}" if self.name else "the module itself"
        verb = "produced" if self.produced else "was given"
        return f"{self.direction}: {layer} {verb} the first NaN or infinity, in its {self.what}"


@dataclass(frozen=True)
class LayerNorms:
    """Euclidean norms of one layer: of its last call or backward pass, and the largest since entering.

    output, largest_output: of the gradient that reached its output; None if none did.
    parameters, largest_parameters: of the gradients of its own parameters, by name.
    """

    name: str
    output: float | None
    largest_output: float | None
    parameters: dict[str, float]
    largest_parameters: dict[str, float]


@dataclass
class _Seen:
    """What is known of one tensor position, as tensors on its own device: nothing waits for a GPU until asked."""

    last: Tensor | None = None
    largest: Tensor | None = None

    def add(self, norm: Tensor) -> None:
        self.last = norm
        self.largest = norm if self.largest is None else torch.maximum(self.largest, norm.to(self.largest.device))


@dataclass
class _Layer:
    module: nn.Module
    output: _Seen = field(default_factory=_Seen)
    parameters: dict[str, _Seen] = field(default_factory=dict)


class GradientWatcher(Hooks):
    """Gradient norms of every layer, and the first NaN or infinity with the layer's name and direction.

    `norms()` lists the layers, `first()` is a `NonFinite` or None, and `str(watcher)` is a table of both. Nothing waits
    for a GPU before one of these is called, and memory does not grow with the number of steps.

    "First" is first in the order of execution: in the forward pass the layer whose output is not finite though its
    inputs are; code of a module between its layers counts as that module. In the backward pass, the layer whose input
    or parameter gradient is not finite though the gradient of its output is. Minus infinity in an input that needs no
    gradient is taken for a mask.

    Under `torch.compile`: as for `Recorder`.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus())
    >>> with GradientWatcher(net) as watcher:
    ...     net(torch.full((1, 2), torch.inf)).sum().backward()
    >>> print(watcher.first())
    forward: the module itself was given the first NaN or infinity, in its input
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, "*")
        assert self._layers is not None
        self._watched: dict[str, _Layer] | None = {name: _Layer(layer) for name, layer in self._layers.items()}
        self._first: dict[tuple[str, str, str], Tensor] = {}
        self._clock = 0
        self._callers: dict[int, list[str]] = {}
        self._frozen: tuple[list[LayerNorms], NonFinite | None] | None = None

    def norms(self) -> list[LayerNorms]:
        """Norms by layer, in the order of `named_modules`."""
        if self._watched is None:
            assert self._frozen is not None
            return self._frozen[0]
        return [
            LayerNorms(
                name,
                _number(layer.output.last),
                _number(layer.output.largest),
                {key: float(seen.last) for key, seen in layer.parameters.items() if seen.last is not None},
                {key: float(seen.largest) for key, seen in layer.parameters.items() if seen.largest is not None},
            )
            for name, layer in self._watched.items()
        ]

    def first(self) -> NonFinite | None:
        """The first NaN or infinity since entering, or None."""
        if self._watched is None:
            assert self._frozen is not None
            return self._frozen[1]
        times = {key: int(when) for key, when in self._first.items()}
        found = min(times, key=times.__getitem__, default=None)
        if found is None or times[found] == NEVER:
            return None
        name, direction, what = found
        if what == "output":
            own = self._watched[name].module.named_parameters(recurse=False)
            bad = [key for key, parameter in own if not parameter.isfinite().all()]
            what += f", and its {' and '.join(bad)} is not finite" if bad else ""
        return NonFinite(name, direction, what, produced=what not in ("input", "gradient of the output"))

    def __str__(self) -> str:
        lines = [f"{'layer':<32} {'output grad':>12} {'largest':>12}  parameter gradients"]
        for norms in self.norms():
            parameters = "  ".join(f"{name} {norm:.3g}" for name, norm in norms.parameters.items())
            output, largest = ("-" if x is None else f"{x:.3g}" for x in (norms.output, norms.largest_output))
            lines.append(f"{norms.name or '(the module)':<32} {output:>12} {largest:>12}  {parameters}".rstrip())
        return "\n".join([*lines, str(self.first() or "no NaN or infinity")])

    def _attach(self) -> None:
        assert self._watched is not None
        shared: set[int] = set()
        for name, layer in self._watched.items():
            before, after = (eager_tap(functools.partial(call, name)) for call in (self._before, self._after))
            self._handles.append(layer.module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(layer.module.register_forward_hook(after, always_call=True))
            for key, parameter in layer.module.named_parameters(recurse=False):
                if parameter.requires_grad and id(parameter) not in shared:
                    shared.add(id(parameter))
                    layer.parameters.setdefault(key, _Seen())
                    self._handles.append(parameter.register_hook(functools.partial(self._parameter, name, key)))

    def _forget(self) -> None:
        self._callers.clear()

    def _before(self, name: str, layer: nn.Module, inputs: Any, kwargs: Any) -> Any:
        callers = self._callers.setdefault(threading.get_ident(), [])
        # A bad input was made by the code of the caller, unless there is none.
        key = (callers[-1], "forward", f"own code before {name!r}") if callers else (name, "forward", "input")
        self._look(tree_leaves((inputs, kwargs)), key, masks=True)
        callers.append(name)
        (inputs, kwargs), views = branch((inputs, kwargs))
        for view in views:
            self._hook_tensor(
                view, functools.partial(self._gradient, (name, "backward", "gradient of the input"), None)
            )
        return inputs, kwargs

    def _after(self, name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        callers = self._callers.get(threading.get_ident())
        if not callers:  # entered in the middle of this call
            return
        callers.pop()
        assert self._watched is not None
        values = tree_leaves(output)
        self._look(values, (name, "forward", "output"))
        seen = self._watched[name].output
        for value in values:
            if isinstance(value, Tensor) and value.requires_grad:
                key = (name, "backward", "gradient of the output")
                self._hook_tensor(value, functools.partial(self._gradient, key, seen))

    def _parameter(self, name: str, key: str, gradient: Tensor) -> None:
        assert self._watched is not None
        self._gradient((name, "backward", f"gradient of {key}"), self._watched[name].parameters[key], gradient)

    def _gradient(self, key: tuple[str, str, str], seen: _Seen | None, gradient: Tensor | None) -> None:
        if gradient is None:  # compiled backward passes say so
            return
        gradient = gradient.detach()
        self._look([gradient], key)
        if seen is not None:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            seen.add(torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32)))

    @torch.no_grad()
    def _look(self, values: Iterable[Any], key: tuple[str, str, str], masks: bool = False) -> None:
        """Notes the time if a value is not finite and none was before, without waiting for the answer."""
        self._clock += 1
        for value in values:
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                known = value.detach().coalesce().values() if value.is_sparse else value.detach()
                fine = known.isfinite()
                if masks and not value.requires_grad and not value.is_complex():
                    fine = fine | known.isneginf()
                when = torch.where(fine.all(), NEVER, self._clock)
                before = self._first.get(key)
                self._first[key] = when if before is None else torch.minimum(before, when.to(before.device))

    def __getstate__(self) -> dict[str, Any]:
        seen: dict[str, Any] = {"_watched": None, "_first": {}, "_callers": {}, "_frozen": (self.norms(), self.first())}
        return {**super().__getstate__(), **seen}


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)

"""Gradient norms of layers, and the origin of the first NaN or infinity."""

import functools
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pointgrad.ops.sums import sum_dtype

from .base import Hooks, branch, eager_tap

NEVER = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class NonFinite:
    """The first NaN or infinity.

    Attributes:
        name: Qualified name of the layer that produced it, or received it from outside the module.
        direction: "forward" or "backward".
        what: "input", "output", "own code before <layer>", "gradient of the output", "gradient of the input" or
            "gradient of <parameter>".
        produced: Whether the layer produced it from finite values. A gradient that it received comes from subsequent
            code, or the loss.
    """

    name: str
    direction: str
    what: str
    produced: bool

    def __str__(self) -> str:
        layer = f"layer {self.name!r}" if self.name else "the module itself"
        verb = "produced" if self.produced else "received"
        return f"{self.direction}: {layer} {verb} the first NaN or infinity in its {self.what}"


@dataclass(frozen=True)
class LayerNorms:
    """Euclidean norms of the gradients of one layer.

    Attributes:
        name: Qualified name of the layer.
        output: Norm of the last gradient of its output; None if there was none.
        largest_output: The largest such norm since entry.
        parameters: Norms of the last gradients of its own parameters, by name.
        largest_parameters: The largest such norms since entry.
    """

    name: str
    output: float | None
    largest_output: float | None
    parameters: dict[str, float]
    largest_parameters: dict[str, float]


@dataclass
class _Seen:
    """The last and the largest norm of one gradient, as tensors on its device, so that nothing waits for a GPU."""

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
    """Watch the gradient norms of every layer, and find the first NaN or infinity.

    `norms()` lists the norms, `first()` returns the first non-finite value, and `str(watcher)` is a table of both.
    Nothing waits for a GPU until one of these is called, and memory use is constant in the number of steps.

    "First" refers to the order of execution. In forward, it is the layer with finite inputs and a non-finite output;
    code of a module between its layers belongs to that module. In backward, it is the layer with a finite gradient of
    its output and a non-finite gradient of an input or parameter. Minus infinity in an input that needs no gradient
    counts as a mask.

    `torch.compile` has the same restrictions as for `Recorder`.

    Args:
        module: The module to watch.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softplus())
        >>> with GradientWatcher(net) as watcher:
        ...     net(torch.full((1, 2), torch.inf)).sum().backward()
        >>> print(watcher.first())
        forward: the module itself received the first NaN or infinity in its input
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
        """Return the norms of each layer, in the order of `named_modules`."""
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
        """Return the first NaN or infinity since entry, or None."""
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
            verb = "is" if len(bad) == 1 else "are"
            what += f", and its {' and '.join(bad)} {verb} not finite" if bad else ""
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
        # A non-finite input comes from the code of the calling layer, if there is one.
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
        if not callers:  # the context was entered during this call
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
        if gradient is None:  # compiled backward passes pass None
            return
        gradient = gradient.detach()
        self._look([gradient], key)
        if seen is not None:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            seen.add(torch.linalg.vector_norm(values, dtype=sum_dtype(values.dtype)))

    @torch.no_grad()
    def _look(self, values: Iterable[Any], key: tuple[str, str, str], masks: bool = False) -> None:
        """Record the first time at which a value is not finite, without waiting for a GPU."""
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

"""Recording of the inputs, outputs and gradients of layers."""

import functools
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .base import Hooks, Layers, branch, eager_tap

KINDS = ("inputs", "outputs", "gradients")
KEPT = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)  # recorded by value


@dataclass
class Record:
    """One call of a layer. Tensors are detached copies; objects except numbers and strings are replaced by their type.

    Attributes:
        name: Qualified name of the layer.
        inputs: Positional inputs, nested as the layer received them.
        kwargs: Keyword inputs.
        output: The output; None if the call raised an error.
        grad_inputs: Gradients of the differentiable input tensors, positional before keyword; None until backward
            reaches them. The gradient of an input is that of this call only, even if the tensor has other uses.
        grad_outputs: Gradients of the differentiable output tensors; None until backward reaches them.
    """

    name: str
    inputs: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None
    output: Any = None
    grad_inputs: list[Tensor | None] = field(default_factory=list)
    grad_outputs: list[Tensor | None] = field(default_factory=list)


class Recorder(Hooks):
    """Record the inputs, outputs and gradients of selected layers: `recorder["encoder.0"][-1].output`.

    Values are copied during the call, so that subsequent in-place layers do not change them. Layers compiled by
    `torch.compile` after entry are recorded with a graph break each (an error with `fullgraph=True`). Code compiled
    earlier ignores the hooks and leaves no records.

    Args:
        module: The module whose layers are recorded.
        names_or_types: Qualified names (`"encoder.0"`, patterns such as `"encoder.*"`, `""` for the module itself),
            types such as `torch.nn.Linear`, or a list of both.
        what: Which of "inputs", "outputs" and "gradients" to record.
        to_cpu: Copy the tensors to the CPU, which waits for the GPU.
        limit: Maximum number of calls to keep per layer. Older records are discarded and counted in `dropped`.

    Raises:
        ValueError: If no layer is selected, or `what` or `limit` is invalid.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with Recorder(net, torch.nn.Linear) as recorder:
        ...     net(torch.ones(1, 2)).sum().backward()
        >>> recorder["0"][0].output.shape, len(recorder["0"][0].grad_outputs)
        (torch.Size([1, 3]), 1)
    """

    def __init__(
        self,
        module: nn.Module,
        names_or_types: Layers,
        *,
        what: tuple[str, ...] = KINDS,
        to_cpu: bool = False,
        limit: int = 16,
    ) -> None:
        what = (what,) if isinstance(what, str) else tuple(what)
        if not what or not set(what) <= set(KINDS):
            raise ValueError(f"what must be one or more of {', '.join(KINDS)}, got {what}")
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit must be a positive int, got {limit!r}")
        super().__init__(module, names_or_types)
        assert self._layers is not None
        self._what, self._to_cpu = what, to_cpu
        self._records: dict[str, deque[Record]] = {name: deque(maxlen=limit) for name in self._layers}
        self._running: dict[tuple[int, str], list[Record]] = {}
        self.dropped = 0

    def __getitem__(self, name: str) -> list[Record]:
        """The records of a layer, oldest first."""
        if name not in self._records:
            raise KeyError(f"name must be one of {', '.join(map(repr, self._records))}, got {name!r}")
        return list(self._records[name])

    def __iter__(self) -> Any:
        return iter(self._records)

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def clear(self) -> None:
        """Discard all records."""
        for records in self._records.values():
            records.clear()
        self.dropped = 0

    def _attach(self) -> None:
        assert self._layers is not None
        for name, layer in self._layers.items():
            before = eager_tap(functools.partial(self._before, name))
            after = eager_tap(functools.partial(self._after, name))
            self._handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
            # Also when forward raises, so that the next call does not continue the record of this one.
            self._handles.append(layer.register_forward_hook(after, always_call=True))

    def _forget(self) -> None:
        self._running.clear()

    def _before(self, name: str, layer: nn.Module, inputs: Any, kwargs: Any) -> Any:
        records = self._records[name]
        self.dropped += len(records) == records.maxlen
        record = Record(name)
        records.append(record)
        self._running.setdefault((threading.get_ident(), name), []).append(record)
        if "inputs" in self._what:
            record.inputs, record.kwargs = self._copy(tuple(inputs)), self._copy(kwargs)
        if "gradients" not in self._what:
            return None
        (inputs, kwargs), views = branch((inputs, kwargs))
        self._await(record, "grad_inputs", views)
        return inputs, kwargs

    def _after(self, name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        running = self._running.get((threading.get_ident(), name))
        if not running:  # the context was entered during this call
            return
        record = running.pop()
        if "outputs" in self._what:
            record.output = self._copy(output)
        if "gradients" in self._what:
            tensors = [value for value in tree_leaves(output) if isinstance(value, Tensor) and value.requires_grad]
            self._await(record, "grad_outputs", tensors)

    def _await(self, record: Record, which: str, tensors: list[Tensor]) -> None:
        setattr(record, which, [None] * len(tensors))
        target = weakref.ref(record)  # pending gradients do not keep a discarded record alive
        for position, tensor in enumerate(tensors):
            self._hook_tensor(tensor, functools.partial(self._arrive, target, which, position))

    def _arrive(self, target: Any, which: str, position: int, gradient: Tensor | None) -> None:
        record = target()
        if record is not None and gradient is not None:
            getattr(record, which)[position] = self._copy(gradient)

    def _copy(self, values: Any) -> Any:
        def copy(value: Any) -> Any:
            if isinstance(value, Tensor):
                value = value.detach()
                return value.to("cpu", copy=True) if self._to_cpu else value.clone()
            return value if isinstance(value, KEPT) else type(value)

        return tree_map(copy, values)

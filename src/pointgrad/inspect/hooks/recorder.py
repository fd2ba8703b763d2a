"""Recording what layers receive and return, forward and backward."""

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
KEPT = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)  # besides tensors


@dataclass
class Record:
    """One call of a layer. Tensors are copies without a graph; what is neither tensor nor number is kept as its type.

    inputs, kwargs, output: as the layer received and returned them, in the same nesting.
    grad_inputs, grad_outputs: one entry per differentiable tensor in the inputs (positional, then keyword) and in the
        output, in order; None until, or unless, backward reaches it. The gradient of an input is that through this call
        alone, also where the tensor is used elsewhere.
    """

    name: str
    inputs: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None
    output: Any = None
    grad_inputs: list[Tensor | None] = field(default_factory=list)
    grad_outputs: list[Tensor | None] = field(default_factory=list)


class Recorder(Hooks):
    """Records inputs, outputs and gradients of chosen layers: `recorder["encoder.0"][-1].output`.

    module: the module whose layers are recorded.
    names_or_types: qualified names (`"encoder.0"`, patterns like `"encoder.*"`, `""` for the module itself), types
        like `torch.nn.Linear`, or a list of both.
    what: which of "inputs", "outputs" and "gradients" to keep.
    to_cpu: copies go to the CPU, which waits for a GPU.
    limit: calls kept per layer, the newest; `dropped` counts the others.

    Values are copied when they pass, so a layer behind that works in place does not change them. A call that raised
    has no output. Layers compiled by `torch.compile` after entering are recorded at the price of a graph break each
    (an error with `fullgraph=True`); code compiled before does not look for hooks, and leaves no record.

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
            raise ValueError(f"what must be some of {', '.join(KINDS)}, got {what}")
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
            raise KeyError(f"{name!r} is not recorded, only {', '.join(map(repr, self._records))}")
        return list(self._records[name])

    def __iter__(self) -> Any:
        return iter(self._records)

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def clear(self) -> None:
        """Drops all records."""
        for records in self._records.values():
            records.clear()
        self.dropped = 0

    def _attach(self) -> None:
        assert self._layers is not None
        for name, layer in self._layers.items():
            before = eager_tap(functools.partial(self._before, name))
            after = eager_tap(functools.partial(self._after, name))
            self._handles.append(layer.register_forward_pre_hook(before, with_kwargs=True))
            # Also when forward raises: the record of that call is finished, or the next would be taken for it.
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
        if not running:  # entered in the middle of this call
            return
        record = running.pop()
        if "outputs" in self._what:
            record.output = self._copy(output)
        if "gradients" in self._what:
            tensors = [value for value in tree_leaves(output) if isinstance(value, Tensor) and value.requires_grad]
            self._await(record, "grad_outputs", tensors)

    def _await(self, record: Record, which: str, tensors: list[Tensor]) -> None:
        setattr(record, which, [None] * len(tensors))
        target = weakref.ref(record)  # one that is dropped is not kept alive for its gradients
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

"""The autograd graph of a tensor: its operators, the tensors they save for backward, and the memory of these."""

import dataclasses
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .names import is_custom, operator_name, shape_of, short_dtype
from .nodes import Edge, Graph, Node, Saved
from .saved import Kept, kept_by, memory_of

MAX_DEPTH = 20_000  # depth up to which a graph is freed safely; a stack of 8 MiB allows about 40,000
Named = torch.nn.Module | Tensor | Mapping[str, Any] | Sequence[Any]


def graph(output: Any, inputs_or_module: Named | None = None) -> Graph:
    """Return the graph that `output.backward()` would traverse, with the memory that it holds.

    Nothing is computed or modified. Hooks on saved tensors do not run, except in early versions of torch that do not
    expose them.

    Args:
        output: A tensor that requires grad, or nested tuples, lists, dictionaries and dataclasses of such tensors.
        inputs_or_module: The source of names. A module names its parameters and buffers; a dictionary names tensors or
            modules; a single tensor is called `input`; the tensors of a sequence `input0`, `input1`, ... Leaves without
            a name are numbered.

    Returns:
        The graph. It holds no tensors.

    Raises:
        ValueError: If no tensor in `output` requires grad.
        TypeError: If `inputs_or_module` is of a different type.

    Example:
        >>> layer = torch.nn.Linear(3, 4)
        >>> found = graph(layer(torch.rand(2, 3)).relu(), layer)
        >>> [node.name for node in found.nodes]
        ['bias', 'weight', 't', 'addmm', 'relu', 'output']
        >>> found.held_bytes  # addmm saves its input (2, 3); relu saves its result, which is the output
        24
    """
    named = dict(_named(inputs_or_module))
    tensors = {name: tensor for name, tensor in _tensors(output, "output") if tensor.requires_grad}
    if not tensors:
        raise ValueError(f"output must require grad, got {_describe_without_grad(output)}")
    found = _Walk(named, tensors).graph()
    _warn_if_deep(found)
    return found


class _Walk:
    """Traversal of a graph. It references all tensors and grad_fns, so that no address is reused while it runs."""

    def __init__(self, named: dict[str, Tensor], outputs: dict[str, Tensor]) -> None:
        self.named, self.outputs = named, outputs
        self.names: dict[int, str] = {}  # by id(tensor); several names of a tensor are joined
        for name, tensor in named.items():
            self.names[id(tensor)] = f"{self.names[id(tensor)]} = {name}" if id(tensor) in self.names else name
        self.ends = {name: get_gradient_edge(tensor) for name, tensor in outputs.items()}
        self.order = _topological([end.node for end in self.ends.values()])
        self.alive: list[Tensor] = []
        self.owners: dict[int, str] = {}
        self.first: dict[int, int] = {}
        self.unnamed: Counter[str] = Counter()

    def graph(self) -> Graph:
        place = {node: index for index, node in enumerate(self.order)}
        edges = [
            Edge(place[source], place[node], result)
            for node in self.order
            for source, result in node.next_functions
            if source is not None
        ]
        edges += [Edge(place[end.node], len(self.order) + i, end.output_nr) for i, end in enumerate(self.ends.values())]
        uses = Counter(edge.source for edge in edges)

        leaves = {node: node.variable for node in self.order if type(node).__name__ == "AccumulateGrad"}
        self.labels = {node: self._label(leaf) for node, leaf in leaves.items()}
        self.near = _locations(self.order, self.labels, leaves)
        self._assign_memory(
            list(self.outputs.items())
            + [(self.labels[node], leaf) for node, leaf in leaves.items()]
            + [(self.names[id(tensor)], tensor) for tensor in self.named.values()]
        )
        nodes = [
            self._leaf(index, node, leaves[node], uses[index])
            if node in leaves
            else self._operator(index, node, uses[index])
            for index, node in enumerate(self.order)
        ]
        for name, tensor in self.outputs.items():
            result = (shape_of(tensor), short_dtype(tensor.dtype))
            nodes.append(Node(len(nodes), "output", name, "", "", False, (result,), {}, (), 0, 0))
        existing = {key: size for tensor in self.alive for key, size in memory_of(tensor) if key in self.owners}
        saved = {key: size for key, size in existing.items() if key in self.first}
        reached = {id(leaf) for leaf in leaves.values()}
        return Graph(
            tuple(nodes),
            tuple(edges),
            sum(node.holds for node in nodes),
            sum(saved.values()),
            {name: why for name, t in self.named.items() if id(t) not in reached and (why := _why_unreached(t))},
        )

    def _label(self, leaf: Tensor) -> str:
        if id(leaf) in self.names:
            return self.names[id(leaf)]
        kind = _kind(leaf)
        self.unnamed[kind] += 1
        return f"{kind} {self.unnamed[kind]}"

    def _assign_memory(self, tensors: list[tuple[str, Tensor]]) -> None:
        """Record the owner of each piece of memory. Later entries take precedence: parameters over outputs."""
        for name, tensor in tensors:
            self.alive.append(tensor)
            for key, _ in memory_of(tensor):
                self.owners[key] = name

    def _leaf(self, index: int, node: Any, leaf: Tensor, uses: int) -> Node:
        result = (shape_of(leaf), short_dtype(leaf.dtype))
        return Node(index, _kind(leaf), self.labels[node], "AccumulateGrad", "", False, (result,), {}, (), 0, uses)

    def _operator(self, index: int, node: Any, uses: int) -> Node:
        kept, settings = kept_by(node)
        holds = 0
        saved = []
        for entry in (entry for entry in kept if entry.tensors or entry.note):
            described, new = self._saved(index, entry)
            saved.append(described)
            holds += new
        return Node(
            index,
            "operator",
            operator_name(node),
            node.name(),
            self.near[node],
            is_custom(node),
            _results(node),
            {name: str(value) for name, value in settings.items()},
            tuple(saved),
            holds,
            uses,
        )

    def _saved(self, index: int, kept: Kept) -> tuple[Saved, int]:
        """The description of a saved tensor, and the bytes that it adds to the memory held only for backward."""
        self.alive += kept.tensors
        memory = dict(entry for tensor in kept.tensors for entry in memory_of(tensor))
        earlier = [self.first[key] for key in memory if key in self.first]
        new = sum(size for key, size in memory.items() if key not in self.first and key not in self.owners)
        for key in memory:
            self.first.setdefault(key, index)
        owners = sorted({self.owners[key] for key in memory if key in self.owners})
        only = kept.tensors[0] if len(kept.tensors) == 1 else None
        described = Saved(
            kept.name,
            None if only is None else shape_of(only),
            "" if only is None else short_dtype(only.dtype),
            sum(memory.values()),
            ", ".join(owners),
            earlier[0] if earlier and earlier[0] != index else None,
            kept.note,
            kept.stale,
        )
        return described, new


def _warn_if_deep(found: Graph) -> None:
    """Warn about graphs that crash some versions of torch, which free nodes with a Python object recursively."""
    depth = [0] * len(found.nodes)
    for edge in found.edges:  # sorted by target, and sources come before targets
        depth[edge.target] = max(depth[edge.target], depth[edge.source] + 1)
    if max(depth) > MAX_DEPTH:
        message = (
            f"the graph is {max(depth)} nodes deep: some versions of torch, such as 2.13, overflow the stack when they "
            "free a graph of this depth after it was inspected; run `ulimit -s unlimited` before Python to prevent this"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def _topological(ends: list[Any]) -> list[Any]:
    """Every grad_fn reachable from `ends`, inputs first; not recursive, since a graph may be 100,000 nodes deep."""
    order: list[Any] = []
    seen = set()
    stack = [(end, False) for end in reversed(ends)]
    while stack:
        node, finished = stack.pop()
        if finished:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(source, False) for source, _ in reversed(node.next_functions) if source is not None]
    return order


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested containers, with the path to each."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _tensors(entry, f"{name}.{key}")
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key, entry in zip(value._fields, value, strict=True):
            yield from _tensors(entry, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, entry in enumerate(value):
            yield from _tensors(entry, f"{name}[{number}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from _tensors(getattr(value, entry.name), f"{name}.{entry.name}")


def _named(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The named tensors of `inputs_or_module`."""
    if value is None:
        return
    if isinstance(value, torch.nn.Module):
        prefix = f"{name}." if name else ""
        yield from ((prefix + key, tensor) for key, tensor in value.named_parameters(remove_duplicate=False))
        yield from ((prefix + key, tensor) for key, tensor in value.named_buffers(remove_duplicate=False))
    elif isinstance(value, Tensor):
        yield name or "input", value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _named(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for number, entry in enumerate(value):
            has_names = isinstance(entry, (torch.nn.Module, Mapping))
            yield from _named(entry, name if has_names else f"{name or 'input'}{number}")
    elif not name:
        raise TypeError(
            "inputs_or_module must be a module, a tensor, or a dictionary or sequence of these, "
            f"got {type(value).__qualname__}"
        )


def _kind(leaf: Tensor) -> str:
    return "parameter" if isinstance(leaf, torch.nn.Parameter) else "input"


def _results(node: Any) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shapes and dtypes of the results of a node, read from the gradients that its backward expects."""
    entries = getattr(node, "_input_metadata", ())
    return tuple(
        (() if getattr(entry, "is_nested_tensor", False) else tuple(map(int, entry.shape)), short_dtype(entry.dtype))
        for entry in entries
    )


def _describe_without_grad(output: Any) -> str:
    tensors = [tensor for _, tensor in _tensors(output, "output")]
    if not tensors:
        return f"{type(output).__qualname__} without tensors"
    dtypes = sorted({short_dtype(tensor.dtype) for tensor in tensors})
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        return f"a tensor of dtype {', '.join(dtypes)}, which is not differentiable"
    return (
        "a tensor without grad_fn: it was computed under torch.no_grad(), was detached, "
        "or none of its inputs and parameters requires grad"
    )


def _why_unreached(tensor: Tensor) -> str:
    """The reason why no gradient reaches a named tensor; empty for buffers, indices and results of operators."""
    if tensor.requires_grad:
        return "not used" if tensor.is_leaf else ""
    return "frozen: requires_grad is False" if isinstance(tensor, torch.nn.Parameter) else ""


def _locations(order: list[Any], labels: dict[Any, str], leaves: dict[Any, Tensor]) -> dict[Any, str]:
    """The location of each operator: "in" the module of its parameters, or "after" the last module before it."""
    owns = {node: [labels[node]] for node in order if node in leaves and isinstance(leaves[node], torch.nn.Parameter)}
    sizes = {node: leaves[node].numel() for node in owns}
    within: dict[Any, str] = {}
    near: dict[Any, str] = {}
    for node in order:
        if node in leaves:
            continue
        sources = [source for source, _ in node.next_functions if source is not None]
        own = [name for source in sources for name in owns.get(source, ())]
        results = _results(node)
        size = math.prod(results[0][0]) if results else -1
        if own and len(node.next_functions) == 1 and sizes[sources[0]] == size:
            owns[node], sizes[node] = own, size  # a transposed, reshaped or cast parameter counts as the parameter
        if own:
            within[node] = _common_module(own)
            near[node] = f"in {within[node]}" if within[node] else ""
        else:
            before = [within[source] for source in sources if source in within]
            within[node] = before[0] if before else ""
            near[node] = f"after {within[node]}" if within[node] else ""
    return near


def _common_module(names: list[str]) -> str:
    """The innermost module that contains all these parameters.

    >>> _common_module(["encoder.0.weight", "encoder.0.bias"]), _common_module(["encoder.0.weight", "encoder.1.bias"])
    ('encoder.0', 'encoder')
    """
    single = [name for name in names if " = " not in name] or [names[0].partition(" = ")[0]]
    paths = [name.split(".")[:-1] for name in single]
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in same)

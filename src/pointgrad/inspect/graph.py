"""The autograd graph behind a tensor: its operators, what they keep for backward, and how much memory that is."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .names import is_custom, operator_name, readable_bytes, short_dtype
from .saved import Kept, kept_by, memory_of

Named = torch.nn.Module | Tensor | Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class Saved:
    """A tensor that a node keeps for its backward."""

    name: str  # torch's name for it: self, result, mat1, ...; a number for an autograd.Function
    shape: tuple[int, ...] | None  # None where it is freed, or packed by a hook
    dtype: str
    bytes: int  # of the memory it keeps alive: all of it, also where it is a view of a part
    owner: str  # the parameter, input or output whose memory it is; "" for memory that only backward holds
    first: int | None  # the node that already keeps the same memory, or None
    note: str  # freed; modified in place; packed by a hook; ...
    stale: bool  # freed or modified: backward raises


@dataclass(frozen=True)
class Node:
    """An operator that autograd recorded, a leaf that receives a gradient, or an output."""

    index: int  # its place in Graph.nodes, where inputs come before what is computed from them
    kind: str  # operator, parameter, input, output
    name: str
    grad_fn: str  # the node as torch calls it
    custom: bool  # its backward is written in Python
    results: tuple[tuple[tuple[int, ...], str], ...]  # (shape, dtype) of each differentiable result
    settings: dict[str, str]  # what else it keeps: dimensions, sizes, flags
    saved: tuple[Saved, ...]
    holds: int  # bytes that only backward holds, and this node first
    uses: int  # how often its results are used


@dataclass(frozen=True)
class Edge:
    """A result of one node used by another. Forward runs along it, backward against it."""

    source: int
    target: int
    result: int  # which result of the source


@dataclass(frozen=True)
class Graph:
    """What `graph` found. It holds no tensors, so it keeps no memory alive.

    nodes: inputs before what is computed from them. edges: in the order of their targets.
    held_bytes: memory that nothing but backward is known to hold: the activations that are freed by it.
    existing_bytes: memory that backward refers to and that exists anyway: parameters, inputs, outputs.
    unreached: names that were given but get no gradient from these outputs, and why.
    Each piece of memory is counted once, however many nodes keep it or views of it.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    held_bytes: int
    existing_bytes: int
    unreached: dict[str, str]

    @property
    def saved_bytes(self) -> int:
        """All memory that backward refers to."""
        return self.held_bytes + self.existing_bytes

    def largest(self, count: int = 10) -> list[Node]:
        """The nodes that hold the most, largest first."""
        holders = sorted((node for node in self.nodes if node.holds), key=lambda node: (-node.holds, node.index))
        return holders[:count]

    def by_operator(self) -> list[tuple[str, int, int]]:
        """(operator, how many, bytes held), largest first."""
        counts = Counter(node.name for node in self.nodes if node.kind == "operator")
        held: Counter[str] = Counter()
        for node in self.nodes:
            held[node.name] += node.holds
        return sorted(((name, counts[name], held[name]) for name in counts), key=lambda row: (-row[2], -row[1], row[0]))

    def table(self, rows: int = 12) -> str:
        """A summary: how large the graph is, what backward holds, and by whom."""
        kinds = Counter(node.kind for node in self.nodes)
        parts = [_count(kinds[kind], kind) for kind in ("operator", "parameter", "input", "output") if kinds[kind]]
        lines = [
            f"{', '.join(parts)}",
            f"backward alone holds  {readable_bytes(self.held_bytes)}",
            f"exists anyway         {readable_bytes(self.existing_bytes)} (parameters, inputs, outputs it refers to)",
            "",
            *_by_operator(self, rows),
        ]
        repeated = [node for node in self.nodes if node.uses > 1 and node.kind in ("parameter", "input")]
        shown = [f"{node.name} ({node.uses} times)" for node in repeated[:rows]]
        if repeated:
            lines += ["", f"used repeatedly: {_listed(shown, len(repeated))}"]
        stale = [(node, saved) for node in self.nodes for saved in node.saved if saved.stale]
        freed = sum(saved.note == "freed" for _, saved in stale)
        if freed:
            lines += ["", f"{_count(freed, 'saved tensor')} freed: backward ran already"]
        lines += [f"{node.name}.{saved.name}: {saved.note}" for node, saved in stale if saved.note != "freed"][:rows]
        if self.unreached:
            shown = [f"{name} ({why})" for name, why in list(self.unreached.items())[:rows]]
            lines += ["", f"no gradient reaches {_listed(shown, len(self.unreached))}"]
        return "\n".join(lines)

    __str__ = table

    def svg(self) -> str:
        """A picture that needs nothing else: no scripts, no fonts, no network."""
        from . import picture

        return picture.svg(self)

    def html(self) -> str:
        """A page in one file: pan, zoom, hover, search; no network."""
        from . import picture

        return picture.html(self)

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    def write(self, path: str | Path) -> Path:
        """Writes the picture (.svg), the page (.html) or the data (.json), as the suffix says."""
        path = Path(path)
        forms = {".svg": self.svg, ".html": self.html, ".json": self.json}
        if path.suffix not in forms:
            raise ValueError(f"path must end in {', '.join(forms)}, got {str(path)!r}")
        path.write_text(forms[path.suffix](), encoding="utf-8")
        return path


def graph(output: Any, inputs_or_module: Named | None = None) -> Graph:
    """The graph that `output.backward()` would walk, and what it holds.

    output: a tensor that requires grad, or a nest of tuples, lists, dictionaries and dataclasses with such tensors.
    inputs_or_module: what gives names. A module names its parameters and buffers; a dictionary names tensors, or
        modules; a tensor is `input`; those of a sequence are `input0`, `input1`, ... Without it leaves are numbered.

    Nothing is computed, nothing is changed, and hooks on saved tensors are not run.

    >>> layer = torch.nn.Linear(3, 4)
    >>> found = graph(layer(torch.rand(2, 3)).relu(), layer)
    >>> [node.name for node in found.nodes]
    ['bias', 'weight', 't', 'addmm', 'relu', 'output']
    >>> found.held_bytes  # addmm keeps its input (2, 3); relu keeps its result, which is the output
    24
    """
    named = dict(_named(inputs_or_module))
    tensors = {name: tensor for name, tensor in _tensors(output, "output") if tensor.requires_grad}
    if not tensors:
        raise ValueError(f"output must require grad, got {_why_none(output)}")
    walk = _Walk(named, tensors)
    return walk.graph()


class _Walk:
    """Holds tensors and grad_fns while it runs, so that nothing is freed and no address is used twice."""

    def __init__(self, named: dict[str, Tensor], outputs: dict[str, Tensor]) -> None:
        self.named, self.outputs = named, outputs
        self.names: dict[int, str] = {}  # by id(tensor); a tensor with several names has all of them
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
        self._own(
            [*zip(self.outputs, self.outputs.values(), strict=True)]
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
            result = (tuple(tensor.shape), short_dtype(tensor.dtype))
            nodes.append(Node(len(nodes), "output", name, "", False, (result,), {}, (), 0, 0))
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

    def _own(self, tensors: list[tuple[str, Tensor]]) -> None:
        """Later ones win: what is an output and a parameter is a parameter."""
        for name, tensor in tensors:
            self.alive.append(tensor)
            for key, _ in memory_of(tensor):
                self.owners[key] = name

    def _leaf(self, index: int, node: Any, leaf: Tensor, uses: int) -> Node:
        result = (tuple(leaf.shape), short_dtype(leaf.dtype))
        return Node(index, _kind(leaf), self.labels[node], "AccumulateGrad", False, (result,), {}, (), 0, uses)

    def _operator(self, index: int, node: Any, uses: int) -> Node:
        kept, settings = kept_by(node)
        holds = 0
        saved = []
        for entry in kept:
            described, new = self._saved(index, entry)
            saved.append(described)
            holds += new
        return Node(
            index,
            "operator",
            operator_name(node),
            node.name(),
            is_custom(node),
            tuple(_result(metadata) for metadata in getattr(node, "_input_metadata", ())),
            {name: str(value) for name, value in settings.items()},
            tuple(saved),
            holds,
            uses,
        )

    def _saved(self, index: int, kept: Kept) -> tuple[Saved, int]:
        """Described, and how many bytes it adds to what backward alone holds."""
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
            None if only is None else tuple(only.shape),
            "" if only is None else short_dtype(only.dtype),
            sum(memory.values()),
            ", ".join(owners),
            earlier[0] if earlier and earlier[0] != index else None,
            kept.note,
            kept.stale,
        )
        return described, new


def _topological(ends: list[Any]) -> list[Any]:
    """Every grad_fn behind `ends`, inputs first; without recursion, since a graph may be 100,000 nodes deep."""
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
    """The tensors of a nest, with the path to each."""
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
            is_module = isinstance(entry, torch.nn.Module)
            yield from _named(entry, name if is_module else f"{name or 'input'}{number}")
    elif not name:
        raise TypeError(
            "inputs_or_module must be a module, a tensor, a dictionary or a sequence of them, "
            f"got {type(value).__qualname__}"
        )


def _kind(leaf: Tensor) -> str:
    return "parameter" if isinstance(leaf, torch.nn.Parameter) else "input"


def _result(metadata: Any) -> tuple[tuple[int, ...], str]:
    shape = () if metadata.is_nested_tensor else tuple(int(size) for size in metadata.shape)
    return shape, short_dtype(metadata.dtype)


def _why_none(output: Any) -> str:
    tensors = [tensor for _, tensor in _tensors(output, "output")]
    if not tensors:
        return f"{type(output).__qualname__} without a tensor in it"
    dtypes = sorted({short_dtype(tensor.dtype) for tensor in tensors})
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        return f"a tensor of {', '.join(dtypes)}, and integers have no derivative"
    return (
        "a tensor without grad_fn: it was computed under torch.no_grad(), was detached, "
        "or no input and no parameter behind it requires grad"
    )


def _why_unreached(tensor: Tensor) -> str:
    """Empty where none is expected: buffers, indices, results of operators."""
    if tensor.requires_grad:
        return "not used" if tensor.is_leaf else ""
    return "frozen: requires_grad is False" if isinstance(tensor, torch.nn.Parameter) else ""


def _by_operator(graph: Graph, rows: int) -> list[str]:
    found = graph.by_operator()
    if not found:
        return []
    width = max(8, *(len(name) for name, _, _ in found[:rows]))
    lines = [f"{'operator':{width}}  nodes       holds  share"]
    for name, count, held in found[:rows]:
        share = f"{held / graph.held_bytes:.0%}" if held else ""
        lines.append(f"{name:{width}}  {count:5}  {readable_bytes(held) if held else '-':>10}  {share:>5}".rstrip())
    rest = found[rows:]
    if rest:
        held = sum(row[2] for row in rest)
        lines.append(f"{len(rest)} others, {readable_bytes(held)}")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _listed(shown: list[str], total: int) -> str:
    more = f", and {total - len(shown)} more" if total > len(shown) else ""
    return ", ".join(shown) + more

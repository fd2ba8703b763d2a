"""What `graph` returns: the nodes and edges of an autograd graph, and a summary of them."""

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pointgrad.writing import replace_bytes

from .names import readable_bytes


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
    near: str  # where in the module: "in encoder.0" by its parameters, or "after encoder.0"; "" if it has no names
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


@dataclass(frozen=True, repr=False)
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
        largest = self.largest(5)
        if largest:
            lines += ["", "largest", *(_holder(node) for node in largest)]
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

    __repr__ = __str__ = table

    def svg(self) -> str:
        """A picture that needs nothing else: no scripts, no fonts, no network."""
        from . import picture

        return picture.svg(self)

    def html(self) -> str:
        """A page in one file: pan, zoom, hover, search; no network."""
        from . import picture

        return picture.html(self)

    def json(self) -> str:
        """All of it as data."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def write(self, path: str | Path) -> Path:
        """Writes the picture (.svg), the page (.html) or the data (.json), as the suffix says."""
        path = Path(path)
        forms = {".svg": self.svg, ".html": self.html, ".json": self.json}
        if path.suffix not in forms:
            raise ValueError(f"path must end in {', '.join(forms)}, got {str(path)!r}")
        replace_bytes(path, forms[path.suffix]().encode())
        return path


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


def _holder(node: Node) -> str:
    kept = max(node.saved, key=lambda saved: (not saved.owner and saved.first is None, saved.bytes))
    what = f"{kept.name} {kept.shape} {kept.dtype}" if kept.shape is not None else kept.name
    return f"  {readable_bytes(node.holds):>10}  {node.name} {node.near}".rstrip() + f": {what}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _listed(shown: list[str], total: int) -> str:
    more = f", and {total - len(shown)} more" if total > len(shown) else ""
    return ", ".join(shown) + more

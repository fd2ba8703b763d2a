"""Data classes for autograd graphs, returned by `graph`."""

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pointgrad.writing import replace_bytes

from .names import readable_bytes


@dataclass(frozen=True)
class Saved:
    """A tensor that a node saves for backward.

    Attributes:
        name: torch's name, such as "self", "result" or "mat1"; a number for an autograd.Function.
        shape: None if the tensor was freed, or packed by a hook.
        dtype: Name of the dtype.
        bytes: Size of the memory that it keeps alive; for a view, that of the whole base.
        owner: The parameter, input or output that owns the memory; empty if it is held only for backward.
        first: The node that already saves the same memory, or None.
        note: Remarks, such as "freed" or "packed by a hook".
        stale: Whether it was freed or modified, so that backward raises.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    bytes: int
    owner: str
    first: int | None
    note: str
    stale: bool


@dataclass(frozen=True)
class Node:
    """An operator that autograd recorded, a leaf that receives a gradient, or an output.

    Attributes:
        index: Index in `Graph.nodes`.
        kind: "operator", "parameter", "input" or "output".
        name: Name of the operator or tensor.
        grad_fn: Name of the node in torch.
        near: Location in the module, such as "in encoder.0" or "after encoder.0"; empty if unknown.
        custom: Whether the backward is written in Python.
        results: (shape, dtype) of each differentiable result.
        settings: Other saved values: dimensions, sizes, flags.
        saved: Tensors saved for backward.
        holds: Bytes held only for backward that no earlier node saves.
        uses: Number of uses of its results.
    """

    index: int
    kind: str
    name: str
    grad_fn: str
    near: str
    custom: bool
    results: tuple[tuple[tuple[int, ...], str], ...]
    settings: dict[str, str]
    saved: tuple[Saved, ...]
    holds: int
    uses: int


@dataclass(frozen=True)
class Edge:
    """The use of a result of one node by another, in the direction of forward.

    Attributes:
        source: Index of the node that computes the result.
        target: Index of the node that uses it.
        result: Index of the result among those of the source.
    """

    source: int
    target: int
    result: int


@dataclass(frozen=True, repr=False)
class Graph:
    """An autograd graph, returned by `graph`. It references no tensors, so it keeps no memory alive.

    Memory is counted once, even if several nodes save it or views of it.

    Attributes:
        nodes: The nodes in topological order, inputs first.
        edges: The edges, ordered by target.
        held_bytes: Memory held only for backward: activations that backward frees.
        existing_bytes: Memory of parameters, inputs and outputs that is also saved for backward.
        unreached: Named tensors that receive no gradient from the outputs, with the reason.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    held_bytes: int
    existing_bytes: int
    unreached: dict[str, str]

    @property
    def saved_bytes(self) -> int:
        """Size of all memory saved for backward."""
        return self.held_bytes + self.existing_bytes

    def largest(self, count: int = 10) -> list[Node]:
        """Return the `count` nodes that hold the most memory, largest first."""
        holders = sorted((node for node in self.nodes if node.holds), key=lambda node: (-node.holds, node.index))
        return holders[:count]

    def by_operator(self) -> list[tuple[str, int, int]]:
        """Return (operator, number of nodes, bytes held) for each operator, largest first."""
        counts = Counter(node.name for node in self.nodes if node.kind == "operator")
        held: Counter[str] = Counter()
        for node in self.nodes:
            held[node.name] += node.holds
        return sorted(((name, counts[name], held[name]) for name in counts), key=lambda row: (-row[2], -row[1], row[0]))

    def table(self, rows: int = 12) -> str:
        """Return a summary of the graph and of the memory held for backward.

        Args:
            rows: Maximum number of operators, names or warnings to list.
        """
        kinds = Counter(node.kind for node in self.nodes)
        parts = [_count(kinds[kind], kind) for kind in ("operator", "parameter", "input", "output") if kinds[kind]]
        lines = [
            f"{', '.join(parts)}",
            f"held only for backward   {readable_bytes(self.held_bytes)}",
            f"also saved for backward  {readable_bytes(self.existing_bytes)} of parameters, inputs and outputs",
            "",
            *_by_operator(self, rows),
        ]
        largest = self.largest(5)
        if largest:
            lines += ["", "largest", *(_holder(node) for node in largest)]
        repeated = [node for node in self.nodes if node.uses > 1 and node.kind in ("parameter", "input")]
        shown = [f"{node.name} ({node.uses} times)" for node in repeated[:rows]]
        if repeated:
            lines += ["", f"used more than once: {_listed(shown, len(repeated))}"]
        stale = [(node, saved) for node in self.nodes for saved in node.saved if saved.stale]
        freed = sum(saved.note == "freed" for _, saved in stale)
        if freed:
            lines += ["", f"{_count(freed, 'saved tensor')} freed: backward has already run"]
        lines += [f"{node.name}.{saved.name}: {saved.note}" for node, saved in stale if saved.note != "freed"][:rows]
        if self.unreached:
            shown = [f"{name} ({why})" for name, why in list(self.unreached.items())[:rows]]
            lines += ["", f"no gradient reaches {_listed(shown, len(self.unreached))}"]
        return "\n".join(lines)

    __repr__ = __str__ = table

    def svg(self) -> str:
        """Return the graph as a self-contained SVG."""
        from . import picture

        return picture.svg(self)

    def html(self) -> str:
        """Return the graph as a self-contained HTML page with pan, zoom and search."""
        from . import picture

        return picture.html(self)

    def json(self) -> str:
        """Return the graph as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def write(self, path: str | Path) -> Path:
        """Write the graph as SVG, HTML or JSON.

        Args:
            path: A file that ends in .svg, .html or .json, which selects the format.

        Returns:
            The path of the file.

        Raises:
            ValueError: If the suffix is different.
        """
        path = Path(path)
        forms = {".svg": self.svg, ".html": self.html, ".json": self.json}
        if path.suffix not in forms:
            raise ValueError(f"path must end in .svg, .html or .json, got {str(path)!r}")
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
        lines.append(f"{len(rest)} more, {readable_bytes(held)}")
    return lines


def _holder(node: Node) -> str:
    """A line about a node and the largest tensor that it holds."""
    kept = max(node.saved, key=lambda saved: (not saved.owner and saved.first is None, saved.bytes))
    what = f"{kept.name} {kept.shape} {kept.dtype}" if kept.shape is not None else kept.name
    return f"  {readable_bytes(node.holds):>10}  {node.name} {node.near}".rstrip() + f": {what}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _listed(shown: list[str], total: int) -> str:
    more = f", and {total - len(shown)} more" if total > len(shown) else ""
    return ", ".join(shown) + more

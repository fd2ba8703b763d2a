"""Drawings of a graph as SVG and as an HTML page."""

import json
from collections import Counter
from dataclasses import dataclass
from html import escape
from importlib import resources

from .layout import layered
from .names import readable_bytes
from .nodes import Graph, Node, Saved

ROW = 88.0  # distance between ranks
MAX_BOX_HEIGHT = 52.0  # of a box with three lines of text
MARGIN = 24.0
HEADER = 74.0
MAX_CHARACTERS = 40  # in a line of text
MAX_INPUT_USES = 8  # an input that is used more often is drawn once per use, like a parameter

STYLE = """
svg.pointgrad { font: 11px ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
svg.pointgrad .paper { fill: #fff; }
svg.pointgrad text { fill: #1f2933; text-anchor: middle; }
svg.pointgrad .head { text-anchor: start; }
svg.pointgrad .name { font-size: 12px; font-weight: 600; }
svg.pointgrad .small { font-size: 10px; fill: #52606d; }
svg.pointgrad .held { fill: #9a4a0c; }
svg.pointgrad .stale text.held { fill: #b42318; }
svg.pointgrad .box { stroke: #9aa5b1; stroke-width: 1; fill: #fff; }
svg.pointgrad .custom .box { stroke: #6f42c1; stroke-width: 1.8; }
svg.pointgrad .parameter .box { fill: #e3eefb; stroke: #5b8fd1; }
svg.pointgrad .input .box { fill: #e2f4e8; stroke: #4a9d6b; }
svg.pointgrad .output .box { fill: #3e4c59; stroke: #3e4c59; }
svg.pointgrad .output text, svg.pointgrad .output .small { fill: #fff; }
svg.pointgrad .again .box { stroke-dasharray: 4 3; }
svg.pointgrad .stale .box { stroke: #b42318; stroke-width: 1.8; }
svg.pointgrad .line { fill: none; stroke: #9aa5b1; stroke-width: 1.2; }
svg.pointgrad .tip { fill: #9aa5b1; }
"""


@dataclass(frozen=True)
class Box:
    """A box in the drawing. A parameter that is used several times has one box per use."""

    node: Node
    use: int  # number of the use, from 1; 0 if the node has a single box
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Line:
    """A line between two boxes."""

    source: int
    target: int
    count: int  # number of parallel edges, as in x * x
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Drawing:
    """A graph with coordinates in pixels."""

    boxes: list[Box]
    lines: list[Line]
    cut: list[tuple[int, int]]  # pairs of boxes whose line is too long to be drawn
    width: float
    height: float


def draw(graph: Graph) -> Drawing:
    """Lay out a graph."""
    edges = Counter((edge.source, edge.target) for edge in graph.edges)
    users = Counter(source for source, _ in edges)
    sources: dict[int, list[int]] = {}
    for source, target in edges:
        sources.setdefault(target, []).append(source)

    # Boxes in topological order, with each copy of a leaf right before its user.
    drawn: list[tuple[int, int]] = []  # (node, use)
    box: dict[tuple[int, int], int] = {}  # (node, user or -1) -> index of the box
    use: Counter[int] = Counter()
    copied = {node.index for node in graph.nodes if _is_copied(node, users[node.index])}
    for node in graph.nodes:
        if node.index in copied:
            continue
        for source in sources.get(node.index, ()):
            if source in copied:
                use[source] += 1
                box[source, node.index] = len(drawn)
                drawn.append((source, use[source]))
        box[node.index, -1] = len(drawn)
        drawn.append((node.index, 0))

    def source_box(source: int, target: int) -> int:
        return box[source, target] if source in copied else box[source, -1]

    pairs = [(source_box(source, target), box[target, -1]) for source, target in edges]
    texts = [_texts(graph, graph.nodes[index], number) for index, number in drawn]
    sizes = [_size(lines) for lines in texts]
    side = [graph.nodes[index].kind == "parameter" for index, _ in drawn]
    layout = layered([width for width, _ in sizes], pairs, side)

    edge = [x - width / 2 for x, (width, _) in zip(layout.x, sizes, strict=True)]
    edge += [x for line in layout.lines if line is not None for x, _ in line]
    shift = MARGIN - min(edge)
    boxes = [
        Box(graph.nodes[index], number, x + shift, HEADER + MARGIN + rank * ROW + ROW / 2, width, height)
        for (index, number), x, rank, (width, height) in zip(drawn, layout.x, layout.rank, sizes, strict=True)
    ]
    lines, cut = [], []
    for (source, target), count, line in zip(pairs, edges.values(), layout.lines, strict=True):
        if line is None:
            cut.append((source, target))
            continue
        middles = [(x + shift, HEADER + MARGIN + rank * ROW + ROW / 2) for x, rank in line]
        # Vertical within a row, so that lines bend only between rows and cross no box.
        points = [(x, y + end) for x, y in middles for end in (-MAX_BOX_HEIGHT / 2, MAX_BOX_HEIGHT / 2)][1:-1]
        points = [(points[0][0], boxes[source].y + boxes[source].height / 2), *points]
        points = [*points, (points[-1][0], boxes[target].y - boxes[target].height / 2)]
        lines.append(Line(source, target, count, points))
    right = max([box.x + box.width / 2 for box in boxes] + [x for line in lines for x, _ in line.points])
    bottom = max(box.y + box.height / 2 for box in boxes)
    return Drawing(boxes, lines, cut, max(right + MARGIN, 640.0), bottom + MARGIN)


def svg(graph: Graph) -> str:
    """The graph as an SVG document."""
    return _svg(graph, draw(graph), standalone=True)


def _svg(graph: Graph, drawing: Drawing, standalone: bool) -> str:
    """The SVG: standalone with a size and a background, or filling its container in a page."""
    heat = max((node.holds for node in graph.nodes), default=0)
    cut = Counter(box for pair in drawing.cut for box in pair)
    parts = [_line(line) for line in drawing.lines]
    parts += [_box(graph, box, number, heat, cut[number]) for number, box in enumerate(drawing.boxes)]
    size = f'width="{drawing.width:.0f}" height="{drawing.height:.0f}"' if standalone else 'width="100%" height="100%"'
    view = f' viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}"' if standalone else ""
    paper = '<rect class="paper" width="100%" height="100%"/>\n' if standalone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pointgrad" {size}{view}>\n'
        f"<style>{STYLE}</style>\n{paper}"
        f'<g id="view">\n{_header(graph)}{"".join(parts)}</g>\n</svg>\n'
    )


def html(graph: Graph) -> str:
    """The graph as an interactive HTML page."""
    drawing = draw(graph)
    data = {
        "nodes": [_details(graph, node) for node in graph.nodes],
        "boxes": [[box.node.index, *(round(v, 1) for v in (box.x, box.y, box.width, box.height))]
                  for box in drawing.boxes],
        "edges": sorted({(edge.source, edge.target) for edge in graph.edges}),
        "largest": [node.index for node in graph.largest(12)],
        "size": [round(drawing.width), round(drawing.height)],
    }  # fmt: skip
    # Escaped for <script> in both HTML and XML.
    text = json.dumps(data, ensure_ascii=False).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    before, after = page.split("<!--PICTURE-->")
    before += _svg(graph, drawing, standalone=False)
    after = after.replace("<!--SUMMARY-->", escape(graph.table()), 1)
    script, end = after.split('"DATA"')  # last, since names in the data may contain a marker
    return before + script + text + end


def _is_copied(node: Node, users: int) -> bool:
    """Whether a node is drawn once per use."""
    if node.kind == "input":
        return users > MAX_INPUT_USES
    return node.kind == "parameter" and users > 1


def _texts(graph: Graph, node: Node, use: int) -> list[tuple[str, str]]:
    """(class, text) of each line in a box."""
    lines = [("name", _shorten(node.name))]
    if node.results:
        shape, dtype = node.results[0]
        more = f" and {len(node.results) - 1} more" if len(node.results) > 1 else ""
        lines.append(("small", f"{shape} {dtype}{more}"))
    if node.kind in ("parameter", "input") and node.uses > 1:
        lines.append(("small", f"use {use} of {node.uses}" if use else f"{node.uses} uses"))
    elif node.saved:
        lines.append(("small held", _shorten(_describe_saved(graph, node))))
    return lines


def _describe_saved(graph: Graph, node: Node) -> str:
    """The line in a box about the tensors that its node saves."""
    stale = [saved for saved in node.saved if saved.stale]
    if stale:
        return "freed" if all(saved.note == "freed" for saved in stale) else f"{stale[0].name} modified in place"
    if node.holds:
        share = node.holds / graph.held_bytes
        return f"holds {readable_bytes(node.holds)}" + (f", {share:.0%}" if share >= 0.01 else "")
    shared = dict.fromkeys(graph.nodes[s.first].name for s in node.saved if s.first is not None and not s.owner)
    kept = dict.fromkeys(saved.owner for saved in node.saved if saved.owner)
    parts = [f"shares with {', '.join(shared)}"] * bool(shared) + [f"saves {', '.join(kept)}"] * bool(kept)
    return ", ".join(parts) or node.saved[0].note


def _shorten(text: str) -> str:
    """Cut a long text: a name at the start, a sentence at the end."""
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[: MAX_CHARACTERS - 1]}…" if " " in text else f"…{text[-MAX_CHARACTERS + 1 :]}"


def _size(lines: list[tuple[str, str]]) -> tuple[float, float]:
    """Width and height of a box, wide enough for all common fonts."""
    width = max(len(text) * (7.8 if kind == "name" else 5.7) for kind, text in lines)
    return max(56.0, width + 20.0), 10.0 + 14.0 * len(lines)


def _box(graph: Graph, box: Box, number: int, heat: int, cut: int) -> str:
    node = box.node
    classes = [node.kind]
    classes += ["custom"] * node.custom + ["again"] * (box.use > 1) + ["stale"] * any(s.stale for s in node.saved)
    lines = _texts(graph, node, box.use)
    fill = f' style="fill:{_heat(node.holds / heat)}"' if node.holds and heat else ""
    radius = 3 if node.kind == "operator" else box.height / 2
    top = box.y - box.height / 2
    texts = "".join(
        f'<text class="{kind}" x="{box.x:.1f}" y="{top + 17 + 14 * i:.1f}">{escape(text)}</text>'
        for i, (kind, text) in enumerate(lines)
    )
    if cut:
        more = f"{cut} long line{'s' * (cut > 1)} not drawn"
        texts += f'<text class="small head" x="{box.x + box.width / 2 + 4:.1f}" y="{box.y + 3:.1f}">{more}</text>'
    return (
        f'<g class="{" ".join(classes)}" data-box="{number}" data-node="{node.index}">'
        f"<title>{escape(_title(graph, node))}</title>"
        f'<rect class="box" x="{box.x - box.width / 2:.1f}" y="{top:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{radius:.0f}"{fill}/>{texts}</g>\n'
    )


def _heat(share: float) -> str:
    """A color from white to orange; the square root makes small shares visible."""
    amount = share**0.5
    red, green, blue = (round(255 + (end - 255) * amount) for end in (0xF7, 0xA8, 0x5C))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _line(line: Line) -> str:
    (x, y), *rest = line.points
    path = [f"M{x:.1f},{y:.1f}"]
    x_end, y_end = rest[-1]
    rest[-1] = x_end, y_end - 5  # space for the tip
    for next_x, next_y in rest:
        if abs(next_x - x) < 0.05:
            path.append(f"V{next_y:.1f}")
        else:
            middle = (y + next_y) / 2
            path.append(f"C{x:.1f},{middle:.1f} {next_x:.1f},{middle:.1f} {next_x:.1f},{next_y:.1f}")
        x, y = next_x, next_y
    tip = f"M{x_end:.1f},{y_end:.1f}l-3.5,-6h7z"
    count = f'<text class="small" x="{x_end + 12:.1f}" y="{y_end - 4:.1f}">&#215;{line.count}</text>' * (line.count > 1)
    return (
        f'<g class="edge" data-source="{line.source}" data-target="{line.target}">'
        f'<path class="line" d="{"".join(path)}"/><path class="tip" d="{tip}"/>{count}</g>\n'
    )


def _title(graph: Graph, node: Node) -> str:
    lines = [f"{node.name} ({node.grad_fn})" if node.grad_fn else node.name]
    lines += [node.near] * bool(node.near)
    lines += [f"{shape} {dtype}" for shape, dtype in node.results]
    lines += [f"{name} = {value}" for name, value in node.settings.items()]
    lines += [f"saved {saved.name}: {_describe(graph, saved)}" for saved in node.saved]
    if node.uses > 1:
        lines.append(f"used {node.uses} times")
    return "\n".join(lines)


def _describe(graph: Graph, saved: Saved) -> str:
    """One saved tensor in words."""
    parts = []
    if saved.shape is not None:
        parts.append(f"{saved.shape} {saved.dtype}")
    if saved.bytes:
        parts.append(readable_bytes(saved.bytes))
    if saved.owner:
        parts.append(f"memory of {saved.owner}")
    elif saved.first is not None:
        parts.append(f"already saved by {graph.nodes[saved.first].name} #{saved.first}")
    elif saved.bytes and not saved.stale:
        parts.append("held only for backward")
    return ", ".join([*parts, saved.note] if saved.note else parts)


def _details(graph: Graph, node: Node) -> dict[str, object]:
    return {
        "name": node.name,
        "kind": node.kind,
        "grad_fn": node.grad_fn,
        "custom": node.custom,
        "near": node.near,
        "results": [f"{shape} {dtype}" for shape, dtype in node.results],
        "settings": [f"{name} = {value}" for name, value in node.settings.items()],
        "saved": [[saved.name, _describe(graph, saved)] for saved in node.saved],
        "holds": readable_bytes(node.holds) if node.holds else "",
        "share": node.holds / graph.held_bytes if node.holds else 0,
        "uses": node.uses,
    }


def _header(graph: Graph) -> str:
    operators = sum(node.kind == "operator" for node in graph.nodes)
    title = (
        f"{operators} operators. Saved for backward: {readable_bytes(graph.held_bytes)}, plus "
        f"{readable_bytes(graph.existing_bytes)} of parameters, inputs, outputs."
    )
    legend = [
        ("parameter", "parameter"),
        ("input", "input"),
        ("operator", "operator"),
        ("operator hot", "holds memory"),
        ("operator custom", "backward in Python"),
        ("output", "output"),
    ]
    parts, x = [], MARGIN
    for classes, label in legend:
        fill = ' style="fill:#f7a85c"' if "hot" in classes else ""
        round_corner = 3 if "operator" in classes else 7
        parts.append(
            f'<g class="{classes}"><rect class="box" x="{x:.0f}" y="36" width="22" height="14" rx="{round_corner}"'
            f"{fill}/></g>"
            f'<text class="small head" x="{x + 27:.0f}" y="47">{label}</text>'
        )
        x += 44 + 5.8 * len(label)
    note = "Arrows show the direction of forward; backward runs against them. Dashed: further uses of a parameter."
    return (
        f'<text class="name head" x="{MARGIN:.0f}" y="24">{escape(title)}</text>{"".join(parts)}'
        f'<text class="small head" x="{MARGIN:.0f}" y="66">{note}</text>\n'
    )

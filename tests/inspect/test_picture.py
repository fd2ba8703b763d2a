"""Drawings of the autograd graph as SVG and HTML."""

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from pointgrad.inspect import Graph, graph
from pointgrad.inspect.picture import MAX_BOX_HEIGHT, draw
from tests.inspect.networks import Attention, Residual


def overlaps(drawing) -> list:
    """Pairs of boxes that overlap."""
    rows: dict[float, list] = {}
    for box in drawing.boxes:
        rows.setdefault(box.y, []).append(box)
    found = []
    for row in rows.values():
        row.sort(key=lambda box: box.x)
        found += [(a, b) for a, b in pairwise(row) if a.x + a.width / 2 >= b.x - b.width / 2]
    assert all(box.height <= MAX_BOX_HEIGHT for box in drawing.boxes)
    ys = sorted(rows)
    assert all(b - a > MAX_BOX_HEIGHT for a, b in pairwise(ys))  # so boxes of different rows do not overlap
    return found


def boxes_under_lines(drawing) -> list:
    """Boxes crossed by a line between two other boxes. Lines are vertical within a row."""
    rows: dict[float, list] = {}
    for box in drawing.boxes:
        rows.setdefault(box.y, []).append(box)
    found = []
    for line in drawing.lines:
        ends = (drawing.boxes[line.source], drawing.boxes[line.target])
        for (x, top), (x_below, bottom) in pairwise(line.points):
            for y, row in rows.items():
                if top <= y <= bottom:
                    assert x == x_below
                    found += [box for box in row if box not in ends and abs(box.x - x) <= box.width / 2]
    return found


def test_chain_is_straight():
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.ReLU())))
    drawing = draw(graph(net(torch.rand(2, 4)), net))
    names = ("addmm", "relu", "output")
    assert len({box.x for box in drawing.boxes if box.node.name in names}) == 1
    assert not overlaps(drawing)


def test_skip_connections_cross_no_boxes():
    net = Residual(4)
    drawing = draw(graph(net(torch.rand(2, 8, requires_grad=True)), net))
    spine = [box.x for box in drawing.boxes if box.node.name in ("add", "addmm", "gelu", "native_layer_norm")]
    assert len(set(spine)) == 1
    assert not boxes_under_lines(drawing)


@pytest.fixture(scope="module")
def large() -> Graph:
    torch.manual_seed(0)
    net = Attention(64)
    found = graph(net(torch.randint(0, 11, (2, 7))), net)
    assert len(found.nodes) > 1000
    return found


def test_large_network_does_not_overlap(large):
    drawing = draw(large)
    assert not overlaps(drawing)
    assert not boxes_under_lines(drawing)
    assert not drawing.cut
    assert {box.node.index for box in drawing.boxes} == {node.index for node in large.nodes}


def test_lines_that_are_too_long_are_marked():
    """In this recurrent network, every step is also used at the end."""
    cell, state, outputs = nn.RNNCell(2, 2), torch.zeros(1, 2), []
    for _ in range(150):
        state = cell(torch.rand(1, 2), state)
        outputs.append(state.sin())
    found = graph(torch.stack(outputs), cell)
    drawing = draw(found)
    assert drawing.cut
    assert len(drawing.cut) + sum(line.count for line in drawing.lines) == len(found.edges)
    assert not overlaps(drawing)
    assert f"{len(drawing.cut)} long lines not drawn" in found.svg()


def star() -> Tensor:
    return torch.cat([torch.rand(1, requires_grad=True).exp() for _ in range(200)])


def dense() -> Tensor:
    found = [torch.rand(2, requires_grad=True)]
    for _ in range(60):
        found.append(torch.stack(found[-10:]).sum(0))
    return found[-1]


def tangled() -> Tensor:
    found = [torch.rand(2, requires_grad=True) for _ in range(5)]
    for first, second in torch.randint(0, 2**31, (400, 2)).tolist():
        found.append(found[first % len(found)] * found[-1 - second % 20 % len(found)])
    return sum(found[-5:])


@pytest.mark.parametrize("build", [star, dense, tangled])
def test_difficult_graphs_do_not_overlap(build):
    drawing = draw(graph(build()))
    assert not overlaps(drawing)
    assert not boxes_under_lines(drawing)


def test_shared_parameter_is_drawn_at_each_use():
    net = Attention(1)
    found = graph(net(torch.randint(0, 11, (2, 7))), net)
    uses = [box.use for box in draw(found).boxes if box.node.name == "embedding.weight"]
    assert uses == [1, 2]
    assert "use 2 of 2" in found.svg()
    weight = nn.Parameter(torch.rand(2))
    squared = graph(weight * weight, {"weight": weight}).svg()  # one operator uses it twice: a single box
    assert "2 uses" in squared
    assert "&#215;2" in squared


DIFFICULT_NAME = 'a<b>&"c"\'</script>]]>"DATA"<!--PICTURE-->\u2028'


def external(text: str) -> list[str]:
    text = text.replace('xmlns="http://www.w3.org/2000/svg"', "").replace('xmlns="http://www.w3.org/1999/xhtml"', "")
    return re.findall(r"https?:|//\w|@import|url\(|<link|<iframe|\bsrc=|\bhref=|fetch\(|XMLHttpRequest", text)


def test_svg_is_self_contained():
    x = torch.rand(2, requires_grad=True)
    picture = graph(x.exp(), {DIFFICULT_NAME: x}).svg()
    root = ElementTree.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert any(DIFFICULT_NAME in (title.text or "") for title in root.iter("{http://www.w3.org/2000/svg}title"))
    assert not external(picture)
    assert "<script" not in picture


def test_page_is_self_contained():
    x = torch.rand(2, requires_grad=True)
    page = graph(x.exp(), {DIFFICULT_NAME: x}).html()
    root = ElementTree.fromstring(page)
    (script,) = root.iter("{http://www.w3.org/1999/xhtml}script")
    data = json.loads(re.search(r"^const data = (.*);$", script.text, re.MULTILINE)[1])
    assert data["nodes"][0]["name"] == DIFFICULT_NAME
    assert page.count("</script>") == 1
    assert not external(page)


def test_page_has_every_node(large):
    page = large.html()
    root = ElementTree.fromstring(page)
    drawn = {int(group.get("data-node")) for group in root.iter() if group.get("data-node")}
    assert drawn == {node.index for node in large.nodes}


def test_write(tmp_path):
    found = graph(torch.rand(2, requires_grad=True).exp())
    for suffix, begin in ((".svg", "<svg"), (".html", "<!DOCTYPE html>"), (".json", "{")):
        assert found.write(tmp_path / f"graph{suffix}").read_text(encoding="utf-8").startswith(begin)
    with pytest.raises(ValueError, match=r"path must end in .svg, .html or .json, got 'graph.png'"):
        found.write("graph.png")

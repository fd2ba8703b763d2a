"""The viewer's operator panels: results and drawings against brute force, without a browser."""

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import data, models
from pointgrad.data import Cloud, Prepare
from pointgrad.nn import Level, VectorAttention
from pointgrad.train import Trained
from pointgrad.view import Viewer, server
from pointgrad.view.levels import Part
from pointgrad.view.overlay import BEADS, Overlay, _ball
from pointgrad.view.panels import attention, network, saliency
from pointgrad.view.stage import Picked

pytest.importorskip("viser")

TITLES = ("farthest points", "voxel sampling", "neighbours", "groups", "interpolation")


class Recorder:
    """Replacement of the overlay that records drawings by name."""

    def __init__(self):
        self.drawn = {}

    def points(self, name, stage, places, colors, size=3.0):
        assert places.dtype == np.float32
        assert np.isfinite(places).all()
        assert size > 0
        assert np.broadcast_shapes(np.shape(colors), places.shape) == places.shape
        self._draw(name, places, colors)

    def lines(self, name, starts, ends, colors, width=2.0):
        assert np.isfinite(starts).all()
        assert np.isfinite(ends).all()
        self._draw(name, ends, colors, width)

    def balls(self, name, places, radius, color, opacity=0.2):
        self._draw(name, places if radius > 0 else places[:0], radius)

    def label(self, name, text, place):
        self.drawn[name] = text

    def _draw(self, name, places, *more):
        self.remove(name)
        if len(places):
            self.drawn[name] = (places, *more)

    def remove(self, name):
        for other in [key for key in self.drawn if key == name or key.startswith(f"{name}/")]:
            del self.drawn[other]

    def clear(self):
        self.drawn.clear()


@pytest.fixture(scope="module")
def web():
    started = server.start("127.0.0.1", None, "test")
    yield started
    server.stop(started)


@pytest.fixture
def see(web, tmp_path, capsys, monkeypatch):
    """Open a cloud in a viewer, without predicting its columns."""
    monkeypatch.setattr(Viewer, "_start_prediction", lambda *_: None)
    viewers = []

    def start(cloud, trained=None, category=None):
        while viewers:
            viewers.pop().close()
        path = tmp_path / "cloud.npz"
        if isinstance(cloud, torch.Tensor):
            cloud = Cloud(cloud)
        data.write(path, cloud)
        viewer = Viewer(web, [path], trained=trained, category=category)
        viewers.append(viewer)
        assert viewer.wait(), capsys.readouterr().err
        viewer.overlay = Recorder()
        return viewer

    yield start
    for viewer in viewers:
        viewer.close()
    web.gui.reset()
    web.scene.reset()


def show(viewer, title, click=None, **controls):
    """Drawings and text of a panel with these values of its controls; click: row of the clicked point."""
    panel = viewer._panels[title]
    viewer._panel.value = title
    viewer.picked = None
    viewer._panel_changed()  # fits the ranges of the controls
    for name, value in controls.items():
        getattr(panel, f"_{name}").value = value
    if click is not None:
        cloud, number = viewer.sample.cloud, viewer.sample.number
        place = viewer.stage.place(cloud.points[click : click + 1])[0]
        viewer.picked = Picked(place, Part(cloud.select(torch.tensor([click])), number[click : click + 1]))
    viewer._panel_changed()
    return viewer.overlay.drawn, panel._text.content


def sample(viewer):
    """The points that the panels compute on, in float64, and their scene positions."""
    points = viewer.sample.cloud.points
    return points.double(), viewer.stage.place(points)


def rows(places, all_places):
    """Indices of the points that were drawn."""
    index = torch.cdist(torch.from_numpy(places).double(), torch.from_numpy(all_places).double()).min(1)
    assert float(index.values.max()) < 1e-4
    return index.indices


def plane(count=300):
    return torch.rand(count, 3) * torch.tensor([5.0, 3.0, 0.0]) + torch.tensor([0.0, 0.0, 7.0])


def covering(points, index):
    return float(torch.cdist(points, points[index]).amin(1).max())


def bold(value):
    return f"**{value:.4g}**"


def test_farthest_points(see):
    viewer = see(torch.randn(500, 3) * torch.tensor([30.0, 5.0, 1.0]))
    points, places = sample(viewer)
    drawn, text = show(viewer, "farthest points", count=10, random=True, balls=True)
    chosen = rows(drawn["chosen"][0], places)
    assert len(chosen.unique()) == 10
    radius = covering(points, chosen)
    assert bold(radius) in text
    other = covering(points, rows(drawn["random"][0], places))
    assert bold(other) in text
    assert other > radius
    assert drawn["balls"][1] == pytest.approx(radius * viewer.stage.factor, rel=1e-5)
    following = rows(drawn["next"][0], places)  # the farthest point
    assert float(torch.cdist(points[following], points[chosen]).min()) == pytest.approx(radius, rel=1e-5)
    assert float(np.linalg.norm(drawn["line"][0] - drawn["next"][0])) == pytest.approx(
        radius * viewer.stage.factor, rel=1e-4
    )
    assert rows(show(viewer, "farthest points", count=11)[0]["chosen"][0], places).tolist() == [*chosen, *following]


def test_farthest_points_curve(see):
    viewer = see(torch.randn(400, 3))
    points, places = sample(viewer)
    drawn, _ = show(viewer, "farthest points", count=37, random=True)
    m, farthest, random, here = viewer._panels["farthest points"]._curve.data
    assert m[np.isfinite(here)] == [37]
    assert farthest[m == 37] == pytest.approx(covering(points, rows(drawn["chosen"][0], places)), rel=1e-5)
    assert random[m == 37] == pytest.approx(covering(points, rows(drawn["random"][0], places)), rel=1e-5)
    assert (np.diff(farthest) <= 0).all()
    assert (np.diff(random) <= 0).all()


def test_voxel_sampling(see):
    viewer = see(torch.rand(800, 3) * 4 + 100)
    points, places = sample(viewer)
    drawn, text = show(viewer, "voxel sampling", edge=0.5, click=3)
    cells = torch.floor((points - points.amin(0)) / 0.5)
    occupied = cells.unique(dim=0)
    kept = rows(drawn["chosen"][0], places)
    assert torch.equal(cells[kept].unique(dim=0), occupied)
    assert len(kept) == len(occupied)
    assert f"**{len(occupied)}** of 800" in text
    assert f"**{800 / len(occupied):.1f}** points on average" in text
    assert len(drawn["grid"][0]) % 12 == 0  # whole cubes
    edges = drawn["grid"][0] / viewer.stage.factor
    assert np.isfinite(edges).all()


def test_nearest_neighbors(see):
    viewer = see(torch.randn(300, 3))
    points, places = sample(viewer)
    drawn, text = show(viewer, "neighbours", k=12, click=5)
    nearest = torch.cdist(points[5:6], points)[0].topk(12, largest=False)
    assert set(rows(drawn["neighbors"][0], places).tolist()) == set(nearest.indices.tolist())
    assert "**12** found" in text
    assert bold(float(nearest.values.max())) in text
    assert "-1" not in text
    assert "ball" not in drawn
    colors = drawn["neighbors"][1]
    assert len(np.unique(colors, axis=0)) == 12
    assert "Click a point." in show(viewer, "neighbours")[1]


@pytest.mark.parametrize("select", ["nearest", "first", "random"])
def test_ball_neighbors(see, select):
    viewer = see(torch.rand(300, 3) * 10)
    points, places = sample(viewer)
    controls = {"kind": "ball", "select": select, "inner": 0.5, "click": 7}
    apart = torch.cdist(points[7:8], points)[0]
    inside = ((apart >= 0.5) & (apart <= 3.0)).nonzero()[:, 0]
    drawn, text = show(viewer, "neighbours", k=5, radius=3.0, **controls)
    found = rows(drawn["neighbors"][0], places)
    assert len(found.unique()) == 5 < len(inside)
    assert torch.isin(found, inside).all()
    if select == "nearest":
        assert set(found.tolist()) == set(inside[apart[inside].topk(5, largest=False).indices].tolist())
    if select == "first":
        assert found.tolist() == inside[:5].tolist()
    assert f"contains {len(inside)} points" in text
    assert drawn["ball"][1] == pytest.approx(3.0 * viewer.stage.factor)
    assert drawn["inner ball"][1] == pytest.approx(0.5 * viewer.stage.factor)
    _, text = show(viewer, "neighbours", k=256, radius=3.0, **controls)
    assert f"the remaining {256 - len(inside)} are **-1**" in text
    with pytest.raises(ValueError, match="min radius must be below radius"):
        show(viewer, "neighbours", k=5, radius=0.4, **controls)


def test_groups(see):
    viewer = see(torch.rand(600, 3) * 2)
    points, places = sample(viewer)
    drawn, text = show(viewer, "groups", count=20, radius=0.3, k=8, click=0)
    centers = rows(drawn["centers"][0], places)
    apart = torch.cdist(points[centers], points)
    near = apart.masked_fill(apart > 0.3, torch.inf).topk(8, largest=False)
    valid = near.values.isfinite()
    covered = near.indices[valid].unique()
    assert set(rows(drawn["members"][0], places).tolist()) == set(covered.tolist())
    assert f"**{len(covered) / 600:.1%}** of the points" in text
    assert f"on average in **{int(valid.sum()) / len(covered):.2f}** groups" in text
    assert f"{int((~valid).sum())} of the 160 index entries" in text
    assert "(M, K) = (20, 8)" in text
    assert "= (20, 8, 6)" in text
    # Each point has the color of the nearest center whose group contains it.
    groups = torch.zeros(20, 600, dtype=torch.bool).scatter(1, near.indices, valid)
    owner = apart.masked_fill(~groups, torch.inf).argmin(0)
    order = rows(drawn["members"][0], places)
    colors = [tuple(color) for color in drawn["members"][1]]
    assert len({(int(owner[row]) % 16, color) for row, color in zip(order, colors, strict=True)}) == len(set(colors))


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_interpolation(see, power):
    cloud = Cloud(torch.rand(400, 3) * 3, {"heat": torch.rand(400)})
    viewer = see(cloud)
    points, places = sample(viewer)
    controls = {"count": 30, "k": 4, "power": power, "column": "heat", "click": 311}
    drawn, text = show(viewer, "interpolation", **controls)
    samples = rows(drawn["samples"][0], places)
    near = torch.cdist(points, points[samples]).topk(4, largest=False)
    weights = near.values**-power
    weights = torch.where(weights.isinf().any(1, keepdim=True), weights.isinf().double(), weights)
    weights = weights / weights.sum(1, keepdim=True)
    heat = viewer.sample.cloud.features["heat"].double()
    expected = (weights * heat[samples][near.indices]).sum(1)
    assert bold(float((expected - heat).abs().mean())) in text
    assert 0.01 < float(weights[311].max()) < 0.99  # the point is not a sample
    for weight in weights[311].tolist():
        assert f"| {weight:.3f} |" in text
    widths = {name: entry[2] for name, entry in drawn.items() if name.startswith("weights/line")}
    assert len(widths) == 4
    assert np.allclose(sorted(widths.values()), sorted(3 + 12 * weights[311].numpy()), atol=1e-4)
    labels = {value for name, value in drawn.items() if name.startswith("weights/label")}
    assert labels == {f"{weight:.2f}" for weight in weights[311].tolist() if weight >= 0.01}
    painted = {by: show(viewer, "interpolation", colors=by, **controls)[0]["values"][1] for by in ("actual", "error")}
    assert (painted["actual"] != painted["error"]).any()


def test_interpolation_with_missing_values(see):
    heat = torch.rand(200)
    heat[::4] = torch.nan
    nothing = torch.full((200,), torch.nan)
    kinds = torch.randint(0, 3, (200,))
    viewer = see(Cloud(torch.rand(200, 3), {"heat": heat, "nothing": nothing, "kind": kinds}))
    _, places = sample(viewer)
    drawn, text = show(viewer, "interpolation", column="heat", count=40)
    known = viewer.sample.cloud.features["heat"].isfinite()
    assert known[rows(drawn["samples"][0], places)].all()
    assert "50 points without a finite value" in text
    assert "nan" not in text
    with pytest.raises(ValueError, match="nothing must have at least one finite value to interpolate, got none"):
        show(viewer, "interpolation", column="nothing")
    assert viewer._panels["interpolation"]._column.options == ("height", "heat", "nothing")


@pytest.mark.parametrize("points", [
    torch.rand(1, 3), torch.full((50, 3), 2.5), torch.rand(3, 3), plane(), torch.rand(40, 3) * 1e-6,
    torch.rand(40, 3, dtype=torch.float64) + torch.tensor([5e5, 5e6, 0.0], dtype=torch.float64),
], ids=["one", "equal", "three", "plane", "tiny", "far"])  # fmt: skip
def test_edge_cases(see, points):
    """Few, equal, coplanar, tiny and distant points: the text contains no NaN, and the drawings have a bounded size."""
    viewer = see(points)
    for title in TITLES:
        for kind in ("k nearest", "ball") if title == "neighbours" else (None,):
            drawn, text = show(viewer, title, click=0, **({"kind": kind} if kind else {}))
            assert text
            assert "nan" not in text
            assert "inf" not in text
            for entry in drawn.values():
                assert isinstance(entry, str) or len(entry[0]) <= 24 * len(points) + 12 * 512
    if len(points) == 1:
        assert "**1** found" in show(viewer, "neighbours", click=0, kind="k nearest")[1]
        assert "15 are **-1**" in show(viewer, "neighbours", click=0, kind="k nearest")[1]
        assert bold(0.0) in show(viewer, "farthest points")[1]


def test_panels_update_for_a_new_file(see, tmp_path):
    viewer = see(torch.rand(100, 3))
    before = show(viewer, "neighbours", kind="ball", click=0)[1]
    assert viewer._panels["neighbours"]._radius.max < 20
    data.write(tmp_path / "other.npz", Cloud(torch.rand(80, 3) * 1000))
    viewer.open(tmp_path / "other.npz")
    viewer.wait()
    assert viewer._panels["neighbours"]._text.content == "Click a point."
    after = show(viewer, "neighbours", kind="ball", click=0)[1]
    assert before != after
    assert viewer._panels["neighbours"]._radius.max > 1000


def test_large_clouds_are_sampled(see, monkeypatch):
    monkeypatch.setattr("pointgrad.view.viewer.SAMPLE_POINTS", 500)
    viewer = see(torch.rand(5000, 3))
    assert len(viewer.sample.cloud) == 500
    for title in TITLES:
        assert show(viewer, title, click=0)[1]


def test_overlay(web):
    """Drawing again replaces, zero points are not drawn, and removing a name removes the names below it."""
    overlay = Overlay(web.scene)
    stage = SimpleNamespace(point_size=0.1)
    for count in (0, 5, BEADS + 1, 1, 5):
        overlay.points("a/points", stage, np.zeros((count, 3), np.float32), np.zeros(3, np.uint8))
        overlay.lines("a/lines", np.zeros(3), np.ones((count, 3)), np.zeros(3, np.uint8))
        overlay.balls("a/balls", np.zeros((count, 3)), 1.0, (1, 2, 3))
        assert set(overlay._nodes) == ({"a/points", "a/lines", "a/balls"} if count else set())
    overlay.balls("a/balls", np.zeros((3, 3)), 0.0, (1, 2, 3))
    overlay.label("ab", "hello", np.zeros(3))
    assert set(overlay._nodes) == {"a/points", "a/lines", "ab"}
    overlay.remove("a")
    assert set(overlay._nodes) == {"ab"}
    overlay.clear()
    assert not overlay._nodes


def test_ball_is_round_and_faces_outward():
    corners, faces = _ball(32)
    assert np.allclose(np.linalg.norm(corners, axis=1), 1, atol=1e-6)
    a, b, c = (corners[faces[:, corner]].astype(float) for corner in range(3))
    volume = float((a * np.cross(b, c)).sum() / 6)  # positive if the triangles face outward
    assert volume == pytest.approx(4 / 3 * np.pi, rel=0.03)


def test_zoom_button(see):
    """The camera moves to the clicked point without turning."""
    viewer = see(torch.rand(200, 3))
    camera = SimpleNamespace(position=np.array([0.0, 0.0, 30.0]), look_at=np.zeros(3))
    client = SimpleNamespace(camera=camera, atomic=contextlib.nullcontext)
    panel = viewer._panels["neighbours"]
    show(viewer, "neighbours")
    panel._zoom_in(client)
    assert camera.position.tolist() == [0.0, 0.0, 30.0]  # nothing was clicked
    show(viewer, "neighbours", kind="ball", radius=0.2, click=4)
    panel._zoom_in(client)
    place = viewer.picked.position
    assert np.allclose(camera.look_at, place, atol=1e-5)
    away = camera.position - place
    assert np.allclose(away[:2], 0, atol=1e-5)
    assert 0.2 * viewer.stage.factor < away[2] < 0.2 * viewer.stage.factor * 5


def test_slider_is_bounded_by_the_cloud(see):
    viewer = see(torch.eye(3))  # all distances are equal: the curve is flat
    assert bold(2**0.5) in show(viewer, "farthest points", count=2)[1]
    panel = viewer._panels["farthest points"]
    assert panel._count.max == 3
    assert panel._count.value == 2
    low, high = panel._curve.scales["y"]["range"]
    assert low < 2**0.5 < high


# -- networks ---------------------------------------------------------------------------------------------------------


def trained(name="point_transformer", task="classification", classes=3, width=0.25, **prepare):
    torch.manual_seed(1)
    model = models.build(name, task=task, classes=classes, **({"width": width} if name != "pointnet" else {}))
    for module in model.modules():  # make the statistics differ from their initial values, as after training
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    names = tuple(f"class {number}" for number in range(classes))
    return Trained(model.eval(), task, names, Prepare(**{"normalize": "sphere", **prepare}))


def test_attention_weights_match_the_forward_pass(see):
    network_ = trained(points=64)
    cloud = Cloud(torch.rand(200, 3))
    network_input = network.prepare_input(network_, cloud)
    assert len(network_input.index.unique()) == 64
    found = attention.attention_layers(network_.model)
    assert all(isinstance(layer, VectorAttention) for layer in found.values())
    assert len(found) == 13
    outputs = {}
    hooks = [
        layer.register_forward_hook(lambda module, given, out, name=name: outputs.__setitem__(name, out.features))
        for name, layer in found.items()
    ]
    levels = attention.record_inputs(found, network_.model, network_input)
    for hook in hooks:
        hook.remove()
    assert set(levels) == set(found) == set(outputs)
    for name, layer in found.items():
        level = levels[name]
        points, features = level.points[0], level.features[0]
        rows_ = attention.input_rows(level, network_input)
        assert torch.equal(network_input.points[rows_], points)  # the layer's points are points of the input
        for center in range(min(3, len(points))):
            neighbors, weights = attention.attention_weights(layer, level, center)
            nearest = torch.cdist(points[center : center + 1].double(), points.double())[0]
            assert float(nearest[neighbors].max()) <= float(nearest.sort().values[len(neighbors) - 1]) + 1e-6
            assert weights.shape == (min(layer.k, len(points)), layer.channels // layer.share)
            assert torch.allclose(weights.sum(0), torch.ones(weights.shape[1]), atol=1e-5)
            with torch.inference_mode():
                values = layer.value(features[neighbors]) + layer.position(points[neighbors] - points[center])
            expected = (values * weights.repeat(1, layer.share)).sum(0)
            assert torch.allclose(outputs[name][0, center], expected, atol=1e-5)


def test_recording_ignores_other_threads():
    """The thread that predicts the cloud may run the network at the same time."""
    network_ = trained(points=64)
    network_input, other = (network.prepare_input(network_, Cloud(torch.rand(200, 3))) for _ in range(2))
    this_thread = threading.get_ident()

    def busy(module, given, out):
        if threading.get_ident() == this_thread:
            thread = threading.Thread(target=lambda: network_.model(**other.arguments))
            thread.start()
            thread.join()

    with_hook = network_.model.head.register_forward_hook(busy)
    levels = attention.record_inputs(attention.attention_layers(network_.model), network_.model, network_input)
    with_hook.remove()
    assert torch.equal(levels["blocks.0.0"].points[0], network_input.points)


def test_columns_added_later(see):
    """Columns that a network adds later keep cached results and values of controls."""
    viewer = see(torch.rand(100, 3))
    show(viewer, "neighbours", kind="ball", radius=0.1, click=0)
    show(viewer, "interpolation")
    viewer.levels.add("confidence", torch.rand(100))
    viewer._sample = None
    viewer._panel_changed()
    assert viewer._panels["interpolation"]._column.options == ("height", "confidence")
    assert show(viewer, "interpolation", column="confidence")[1].startswith("confidence at 100 points")
    show(viewer, "neighbours", click=0)
    assert viewer._panels["neighbours"]._radius.value == 0.1


def test_attention_panel(see):
    viewer = see(torch.rand(300, 3) * 5, trained(points=128))
    _, places = sample(viewer)
    assert "Click a point." in show(viewer, "attention")[1]
    drawn, text = show(viewer, "attention", layer="blocks.1.0", click=9)
    assert "**128** of 300 points" in text
    assert "This layer has 32 points" in text
    assert len(rows(drawn["attention/layer"][0], places).unique()) == 32
    assert len(drawn["attention/neighbors"][0]) == 16
    lines = [name for name in drawn if name.startswith("attention/line")]
    assert len(lines) == 16
    panel = viewer._panels["attention"]
    assert panel._channels.options == ("mean of all", "group 0", "group 1")
    show(viewer, "attention", layer="blocks.1.0", channels="group 1", click=9)
    drawn, _ = show(viewer, "attention", layer="blocks.0.0", click=9)  # a layer with one group
    assert panel._channels.value == "mean of all"
    assert len(drawn["attention/neighbors"][0]) == 8


def test_network_without_attention(see):
    viewer = see(torch.rand(50, 3), trained("pointnet"))
    drawn, text = show(viewer, "attention", click=0)
    assert text == "The network pointnet has no attention layers. Use a point_transformer."
    assert not [name for name in drawn if name.startswith("attention")]


def test_network_panels_need_a_network(see):
    assert set(see(torch.rand(9, 3))._panels) == set(TITLES)


class Smooth(torch.nn.Module):
    """Every logit is a smooth function of every point."""

    def __init__(self, task):
        super().__init__()
        self.task = task
        self.first, self.second = torch.nn.Linear(3, 8), torch.nn.Linear(16, 3)

    def forward(self, points, features=None, *, category=None):
        own = torch.tanh(self.first(points))
        mean = own.pow(2).mean(1, keepdim=True)
        logits = self.second(torch.cat([own, mean.expand_as(own)], -1))
        return logits.mean(1) if self.task == "classification" else logits


@pytest.mark.parametrize("task", ["classification", "segmentation", "one point"])
def test_saliency_matches_finite_differences(task):
    model = Smooth(task.replace("one point", "segmentation")).double().eval()
    points = torch.randn(1, 20, 3, dtype=torch.float64)
    network_input = network.NetworkInput(torch.arange(20), points[0], points[0], {"points": points, "features": None})

    def output(logits):
        return logits[4, 1] if task == "one point" else logits[:, 1].sum()

    logits, gradient = saliency.output_gradient(model, network_input, output)
    assert logits.shape == (1 if task == "classification" else 20, 3)
    for row, axis in [(0, 0), (4, 2), (19, 1)]:
        step = torch.zeros_like(points)
        step[0, row, axis] = 1e-5
        with torch.no_grad():
            up, down = (output(model(points + sign * step).reshape(-1, 3)) for sign in (1, -1))
        assert float(gradient[row, axis]) == pytest.approx(float(up - down) / 2e-5, rel=1e-5)


def test_saliency_of_point_transformer_matches_finite_differences():
    """In float64, through neighbor search, pooling and interpolation."""
    network_ = trained(task="segmentation")
    model = network_.model.double()
    points = torch.rand(1, 60, 3, dtype=torch.float64)
    network_input = network.NetworkInput(torch.arange(60), points[0], points[0], {"points": points})
    _, gradient = saliency.output_gradient(model, network_input, lambda logits: logits[:, 2].sum())
    for row, axis in [(0, 0), (30, 1), (59, 2)]:
        step = torch.zeros_like(points)
        step[0, row, axis] = 1e-7
        with torch.no_grad():
            up, down = (model(points + sign * step)[0, :, 2].sum() for sign in (1, -1))
        assert abs(float(gradient[row, axis])) > 1e-3
        assert float(gradient[row, axis]) == pytest.approx(float(up - down) / 2e-7, rel=1e-3)


def test_saliency_panel(see):
    network_ = Trained(Smooth("segmentation").eval(), "segmentation", ("a", "b", "c"), Prepare(normalize="none"))
    viewer = see(torch.randn(200, 3), network_)
    points, places = sample(viewer)
    drawn, text = show(viewer, "saliency", **{"class": "b"})
    moving = points.float()[None].requires_grad_()
    logits = network_.model(moving)[0]
    (expected,) = torch.autograd.grad(logits[:, 1].sum(), moving)
    logits, strength = logits.detach(), expected[0].norm(dim=1)
    top = strength.topk(2).values.sum() / strength.sum()
    assert f"strongest 1% of the points (2) have **{float(top):.1%}** of the total gradient norm" in text
    assert "all 200 points" in text
    assert f"is {float(logits.softmax(1)[:, 1].mean()):.3f} on average" in text
    brightest = rows(drawn["strength 3"][0], places)
    assert float(strength[brightest].min()) > float(strength.median())
    assert sum(len(entry[0]) for name, entry in drawn.items() if name.startswith("strength")) == 200
    assert show(viewer, "saliency", **{"class": "b", "where": saliency.ONE})[1] == "Click a point."
    _, text = show(viewer, "saliency", click=3, **{"class": saliency.PREDICTED, "where": saliency.ONE})
    most_probable = logits[3].softmax(0).max(0)
    assert f"output for **{'abc'[most_probable.indices]}**" in text
    assert f"is {float(most_probable.values):.3f}." in text


def test_saliency_sums_over_repeated_points(see):
    """Points are repeated if the cloud has fewer than the network takes."""
    network_ = Trained(Smooth("classification").eval(), "classification", ("a", "b", "c"), Prepare(70, "none"))
    viewer = see(torch.randn(30, 3), network_)
    drawn, text = show(viewer, "saliency", **{"class": "b"})
    assert "all 30 points" in text
    assert sum(len(entry[0]) for name, entry in drawn.items() if name.startswith("strength")) == 30
    moving = viewer.sample.cloud.points.clone().requires_grad_()
    index = viewer._panels["saliency"].network_input.index
    assert index.bincount().tolist() != [1] * 30
    (expected,) = torch.autograd.grad(network_.model(moving[index][None])[0, 1], moving)
    strength = expected.norm(dim=1)
    share = float(strength.max() / strength.sum())
    assert f"strongest 1% of the points (1) have **{share:.1%}** of the total gradient norm" in text


def test_network_input():
    cloud = Cloud(torch.rand(3000, 3) * 10, {"height": torch.rand(3000)})
    sample = network.prepare_input(trained(points=256), cloud)
    assert len(sample.index.unique()) == 256
    assert float(sample.points.norm(dim=1).max()) == pytest.approx(1.0, rel=1e-5)  # normalised
    near = torch.tensor([[1.0, 9.0, 5.0]])
    scene = trained(task="segmentation", points=256, normalize="center", voxel=0.3)
    piece = network.prepare_input(scene, cloud, near)
    apart = (cloud.points - near).norm(dim=1)
    kept = pointgrad.voxel_sampling(cloud.points, 0.3).index
    assert torch.isin(piece.index, kept).all()
    assert float(apart[piece.index].max()) <= float(apart[kept].sort().values[255])
    assert torch.allclose(piece.points.mean(0), torch.zeros(3), atol=1e-4)
    with_feature = trained(points=64, features=("heat",))
    with pytest.raises(ValueError, match="features must contain heat"):
        network.prepare_input(with_feature, cloud)


def test_scene_input_has_full_density(see, monkeypatch, small_tiles):
    """The input is not taken from the sample that other panels use, but from all points around the clicked one."""
    monkeypatch.setattr("pointgrad.view.viewer.SAMPLE_POINTS", 500)
    monkeypatch.setattr(network, "NEIGHBORHOOD", 2000)
    scene = trained(task="segmentation", points=200, normalize="center")
    viewer = see(torch.rand(6000, 3) * torch.tensor([10.0, 10.0, 1.0]), scene)
    assert len(viewer.levels.counts) > 20
    everything = viewer.levels.sample(10**9).cloud.points
    drawn, text = show(viewer, "saliency", click=77)
    assert "**200** of 6,000 points: those around the clicked point" in text
    places = np.concatenate([entry[0] for name, entry in drawn.items() if name.startswith("strength")])
    apart = (everything - viewer.picked.row.cloud.points).norm(dim=1)
    found = rows(places, viewer.stage.place(everything))
    assert set(found.tolist()) == set(apart.topk(200, largest=False).indices.tolist())
    drawn, text = show(viewer, "attention", click=77)
    assert "This layer has 200 points" in text
    assert len(drawn["attention/layer"][0]) == 200


def test_part_segmentation_needs_a_category(see):
    model = models.build("point_transformer", task="segmentation", classes=4, categories=2, width=0.25).eval()
    parts = Trained(model, "segmentation", ("a", "b", "c", "d"), Prepare(points=64))
    cloud = torch.rand(100, 3)
    with pytest.raises(ValueError, match="start the viewer with --category"):
        show(see(cloud, parts), "saliency")
    assert "**64** of 100" in show(see(cloud, parts, category=1), "saliency")[1]


def test_attend_keeps_packed_clouds_separate():
    layer = VectorAttention(8, k=4, share=2).eval()
    level = Level(torch.rand(9, 3), torch.rand(9, 8), torch.tensor([0, 3, 9]))
    attended = layer.attend(level)
    assert attended.pairs.ends.diff().tolist() == [3] * 3 + [4] * 6
    sums = pointgrad.segment(attended.weights, attended.pairs.ends, "sum")
    assert torch.allclose(sums, torch.ones(9, 4), atol=1e-5)

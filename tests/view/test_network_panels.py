"""The viewer's panels that run a network: attention and saliency."""

import threading

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import models
from pointgrad.data import Cloud, Prepare
from pointgrad.nn import Level, VectorAttention
from pointgrad.train import Trained
from pointgrad.view.panels import attention, network, saliency
from tests.view.panel_helpers import TITLES, rows, sample, show

pytest.importorskip("viser")


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
    viewer.operators.update()
    assert viewer.operators.panels["interpolation"]._column.options == ("height", "confidence")
    assert show(viewer, "interpolation", column="confidence")[1].startswith("confidence at 100 points")
    show(viewer, "neighbours", click=0)
    assert viewer.operators.panels["neighbours"]._radius.value == 0.1


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
    panel = viewer.operators.panels["attention"]
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
    assert set(see(torch.rand(9, 3)).operators.panels) == set(TITLES)


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
    index = viewer.operators.panels["saliency"].network_input.index
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

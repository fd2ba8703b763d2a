"""Networks: published sizes, layouts, compilation, export, low precision and errors."""

import json
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from pointgrad import models
from pointgrad.data import Cloud, collate
from pointgrad.models import options

SEGMENT = {"task": "segmentation", "classes": 13}
PARTS = {"task": "segmentation", "classes": 50, "categories": 16}

# Published numbers of parameters in millions, with their sources:
# PCT: Guo et al. 2021, "PCT: Point cloud transformer", table 8, for 1024 points and 40 classes.
# OpenPoints: headers of the configurations in github.com/guochengqian/PointNeXt, cfgs/.
# PointNeXt: Qian et al. 2022, "PointNeXt", table 1 (Point Transformer, S3DIS).
SIZES = [
    ("pointnet", {}, "3.47", "PCT"),
    ("pointnet2", {"variant": "msg"}, "1.74", "PCT"),
    ("pointnet2", {"classes": 15, "channels": 4}, "1.466", "OpenPoints, scanobjectnn/pointnet++"),
    ("pointnet2", {**SEGMENT, "channels": 4}, "0.965", "OpenPoints, s3dis/pointnet++"),
    ("dgcnn", {}, "1.81", "PCT"),
    ("point_transformer", {**SEGMENT, "channels": 3}, "7.8", "PointNeXt"),
    ("pointnext", {}, "1.374", "OpenPoints, modelnet40ply2048/pointnext-s"),
    ("pointnext", {**SEGMENT, "channels": 1}, "0.792", "OpenPoints, s3dis/pointnext-s"),
    ("pointnext", {**SEGMENT, "channels": 1, "variant": "b"}, "3.828", "OpenPoints, s3dis/pointnext-b"),
]


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(("name", "config", "published", "source"), SIZES, ids=lambda value: str(value))
def test_published_sizes(name, config, published, source):
    with torch.device("meta"):
        network = models.build(name, **config)
    digits = len(published.partition(".")[2])
    assert f"{count(network) / 1e6:.{digits}f}" == published, source


def test_published_sizes_with_biases_before_norms():
    """Published networks with biases that the following norm cancels.

    Table 8 of PCT gives 1.48 for PointNet++ SSG, which has a bias before every norm. The authors' DGCNN
    (github.com/WangYueFt/dgcnn, pytorch/model.py) has one such bias, with 256 values.
    """
    with torch.device("meta"):
        ssg, dgcnn = models.pointnet2(), models.dgcnn()
    canceled = sum(norm.num_features for norm in ssg.modules() if isinstance(norm, nn.BatchNorm1d))
    assert f"{(count(ssg) + canceled) / 1e6:.2f}" == "1.48"
    edges = 6 * 64 + 128 * 64 + 128 * 128 + 256 * 256
    others = 512 * 1024 + 2048 * 512 + (512 * 256 + 256) + (256 * 40 + 40)
    norms = 2 * (64 + 64 + 128 + 256 + 1024 + 512 + 256)
    assert count(dgcnn) + 256 == edges + others + norms == 1_809_576


CONFIGS = {
    f"{name}, {kind}": {"name": name, "width": 0.25, **config}
    for name in models.names()
    for kind, config in (
        ("objects", {"task": "classification", "classes": 5, "channels": 0}),
        ("scenes", {"task": "segmentation", "classes": 4, "channels": 2}),
        ("parts", {"task": "segmentation", "classes": 6, "channels": 0, "categories": 3}),
    )
    if (name, kind) not in (("ptv3", "scenes"), ("sonata", "objects"), ("sonata", "parts"), ("litept", "parts"))
}
DEEP = ("ptv3", "sonata", "litept")
SPARSE = ("minkunet", "spunet", *DEEP)
CONFIGS["pointnet2 msg, objects"] = {"name": "pointnet2", "variant": "msg", "width": 0.25, "classes": 5}
CONFIGS["pointnet2 msg, parts"] = {**CONFIGS["pointnet2, parts"], "variant": "msg"}
CONFIGS["pointnext b, scenes"] = {**CONFIGS["pointnext, scenes"], "variant": "b"}


@pytest.fixture(params=CONFIGS)
def network(request):
    return models.build(**CONFIGS[request.param])


def inputs_of(network, *shape):
    """Inputs of the network for clouds of this shape: (N,) packed or (B, N) padded."""
    config, batch = network.config, shape[0] if len(shape) == 2 else 1
    features = torch.randn(*shape, config["channels"]) if config["channels"] else None
    category = torch.arange(batch) % config["categories"] if config.get("categories") else None
    return {"points": torch.rand(*shape, 3), "features": features, "category": category}


SIZES_OF_CLOUDS = [60, 1, 9, 33]


def uneven(network):
    inputs = inputs_of(network, sum(SIZES_OF_CLOUDS))
    if inputs["category"] is not None:
        inputs["category"] = torch.tensor([0, 2, 1, 1])
    return {**inputs, "offsets": torch.tensor([0, *SIZES_OF_CLOUDS]).cumsum(0)}


def test_uneven_clouds(network):
    """Each cloud gives the same result in a packed batch, in a padded batch and alone."""
    network.eval()
    inputs = uneven(network)
    together = network(**inputs)
    pieces = []
    ends = inputs["offsets"].tolist()
    padded = {"points": torch.zeros(4, 60, 3), "features": None, "category": inputs["category"]}
    if inputs["features"] is not None:
        padded["features"] = torch.zeros(4, 60, inputs["features"].shape[1])
    for cloud, (begin, end) in enumerate(pairwise(ends)):
        own = {name: inputs[name][None, begin:end] for name in ("points", "features") if inputs[name] is not None}
        if inputs["category"] is not None:
            own["category"] = inputs["category"][cloud : cloud + 1]
        out = network(**own)
        pieces.append(out if out.dim() == 2 else out[0])
        for name in ("points", "features"):
            if inputs[name] is not None:
                padded[name][cloud, : end - begin] = inputs[name][begin:end]
    torch.testing.assert_close(together, torch.cat(pieces), rtol=1e-4, atol=1e-5)
    out = network(**padded, lengths=torch.tensor(SIZES_OF_CLOUDS))
    if network.config["task"] == "classification":
        torch.testing.assert_close(out, together, rtol=1e-5, atol=1e-6)
    else:
        real = torch.arange(60) < torch.tensor(SIZES_OF_CLOUDS)[:, None]
        torch.testing.assert_close(out[real], together, rtol=1e-5, atol=1e-6)
        assert not out[~real].any()


def test_clouds_of_equal_size_in_both_layouts(network):
    network.eval()
    inputs = inputs_of(network, 2, 40)
    padded = network(**inputs)
    flat = {name: None if inputs[name] is None else inputs[name].flatten(0, 1) for name in ("points", "features")}
    packed = network(**flat, category=inputs["category"], offsets=torch.tensor([0, 40, 80]))
    assert torch.equal(packed, padded if padded.dim() == 2 else padded.flatten(0, 1))
    assert padded.shape == ((2, network.config["classes"]) if padded.dim() == 2 else (2, 40, network.config["classes"]))


def test_every_parameter_has_a_gradient_and_config_rebuilds_the_network(network):
    network(**uneven(network)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in network.parameters())
    again = models.build(**json.loads(json.dumps(network.config)))
    again.load_state_dict(network.state_dict())
    inputs = inputs_of(network, 2, 20)
    assert torch.equal(network.eval()(**inputs), again.eval()(**inputs))


def test_no_host_reads_for_padded_clouds(network):
    """Reading the values of tensors on the meta device would raise."""
    network.to("meta")
    if network.config["name"] in SPARSE:
        with pytest.raises(
            ValueError, match="points must be on a device that holds values if they are packed, got meta"
        ):
            network(
                **{
                    name: None if value is None else value.to("meta")
                    for name, value in inputs_of(network, 2, 40).items()
                }
            )
        return
    inputs = {name: None if value is None else value.to("meta") for name, value in inputs_of(network, 2, 40).items()}
    assert network(**inputs).is_meta


def test_bfloat16(network):
    """Training and evaluation under autocast."""
    inputs = inputs_of(network, 2, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(**inputs).float().square().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in network.parameters())
        low = network.eval()(**inputs)
    assert low.dtype == torch.bfloat16
    expected = network(**inputs)
    if network.config["name"] in DEEP:  # errors of about 50 residual branches add up
        assert (low.float() - expected).norm() < 0.03 * expected.norm()
    else:
        torch.testing.assert_close(low.float(), expected, rtol=0.05, atol=0.01)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(network):
    """Results agree with the CPU, and training on padded clouds needs no synchronization."""
    inputs = inputs_of(network, 4, 60)
    expected = network.eval()(**inputs)
    network.cuda()
    inputs = {name: None if value is None else value.cuda() for name, value in inputs.items()}
    torch.testing.assert_close(network(**inputs).cpu(), expected, rtol=1e-3, atol=1e-4)
    if network.config["name"] in SPARSE:
        return  # the number of voxels is read from the device
    for _ in range(2):  # compilation and allocation in the first steps may synchronize
        network.train()(**inputs).square().sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        network(**inputs).square().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


@pytest.fixture
def shallow(monkeypatch):
    """Reduce Point Transformer to two levels, which contain all of its parts and are traced in seconds."""
    module = sys.modules["pointgrad.models.point_transformer"]
    for name in ("WIDTHS", "BLOCKS", "NEIGHBORS"):
        monkeypatch.setattr(module, name, (getattr(module, name)[0], getattr(module, name)[1]))
    monkeypatch.setattr(module, "BLOCKS", (1, 1))


# Each network and each task at least once.
TRACED = ["pointnet, parts", "pointnet2, objects", "dgcnn, scenes", "point_transformer, scenes", "pointnext, objects"]


@pytest.mark.parametrize("config", TRACED)
def test_compiled(config, shallow):
    """Compilation in one graph, for one network with gradients, which doubles the time of tracing."""
    network = models.build(**{**CONFIGS[config], "width": 0.125}).eval()
    inputs = inputs_of(network, 2, 24)
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(config == "pointnet2, objects"):
        expected, received = network(**inputs), compiled(**inputs)
    torch.testing.assert_close(received, expected, rtol=1e-4, atol=1e-5)
    if received.requires_grad:
        parameters = list(network.parameters())
        gradients = [torch.autograd.grad(out.square().sum(), parameters) for out in (received, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("config", TRACED)
def test_exported(config, shallow):
    network = models.build(**{**CONFIGS[config], "width": 0.125}).eval()
    inputs = inputs_of(network, 2, 24)
    points = inputs.pop("points")
    program = torch.export.export(network, (points,), inputs)
    torch.testing.assert_close(program.module()(points, **inputs), network(points, **inputs), rtol=1e-4, atol=1e-5)


def test_group_norm_makes_clouds_independent():
    network = models.pointnet2(classes=5, width=0.25, norm="group", dropout=0.0)
    clouds = torch.rand(3, 50, 3)
    torch.testing.assert_close(network(clouds)[:1], network(clouds[:1]), rtol=1e-4, atol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm1d) for module in network.modules())


def test_learns():
    """A network learns to distinguish shells from balls, also in evaluation mode with updated batch statistics."""
    network = models.pointnet2(classes=2, width=0.125, radius=2.5, dropout=0.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)

    def draw(n):
        label = torch.arange(n) % 2
        directions = nn.functional.normalize(torch.randn(n, 64, 3), dim=-1)
        return directions * torch.where(label[:, None, None] == 1, 1.0, torch.rand(n, 64, 1) ** (1 / 3)), label

    for _ in range(20):
        points, label = draw(16)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(points), label).backward()
        optimizer.step()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
            module.momentum = None  # a cumulative mean
    with torch.no_grad():
        for _ in range(4):
            network(draw(16)[0])
    points, label = draw(32)
    assert (network.eval()(points).argmax(1) == label).float().mean() >= 0.9


def test_collated_batches_are_valid_inputs():
    network = models.pointnet2(task="segmentation", classes=3, channels=1, width=0.25).eval()
    for sizes in ((20, 30), (25, 25)):
        clouds = [Cloud(torch.rand(size, 3), {"height": torch.rand(size)}) for size in sizes]
        batch = collate(clouds, ["height"])
        assert network(**batch.inputs()).reshape(-1, 3).shape == (50, 3)


@pytest.mark.parametrize("option", ["width", "radius"])
def test_scale_options(option):
    points = torch.rand(2, 40, 3)
    small, large = (models.pointnet2(classes=5, **{"width": 0.25, option: value}) for value in (0.25, 0.5))
    if option == "width":
        assert count(small) < count(large) < count(models.pointnet2(classes=5))
    else:
        large.load_state_dict(small.state_dict())
        torch.testing.assert_close(small.eval().down[0](_level(points)).points, large.down[0](_level(points)).points)
        assert [stage.radius for stage in large.down] == [[0.1], [0.2], []]
    assert options.scaled(1.0, 196) == 196
    assert options.scaled(0.01, 64) == 8


def _level(points):
    from pointgrad.nn import Level

    return Level(points)


def test_names_have_descriptions():
    assert list(models.names()) == ["pointnet", "pointnet2", "dgcnn", "point_transformer", "pointnext", *SPARSE]
    assert all(line.endswith(".") and ":" in line for line in models.names().values())


@pytest.mark.parametrize("rich", [True, False])
def test_summary(rich, capsys, monkeypatch):
    if rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    network = models.pointnet2(classes=7, width=0.25)
    models.summary(network)
    assert "output" not in capsys.readouterr().out
    models.summary(network, torch.rand(2, 64, 3))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["part", "module", "output", "parameters"]
    assert lines[1].split() == ["down.0", "SetAbstraction", "(2,", "64,", "32)", f"{count(network.down[0]):,}"]
    assert lines[-1].split() == ["PointNet2", "(2,", "7)", f"{count(network):,}"]
    assert network.training
    assert not network._forward_hooks


BAD_OPTIONS = [
    ({"name": "dgcn"}, ValueError, "name must be one of pointnet, pointnet2, .*, got 'dgcn'; did you mean 'dgcnn'"),
    ({"name": "pointnet2", "klasses": 3}, TypeError, "options of pointnet2 must be among .*; did you mean 'classes'"),
    ({"name": "pointnet2", "task": "detection"}, ValueError, "task must be classification or segmentation, got 'det"),
    ({"name": "pointnet2", "variant": "xl"}, ValueError, "variant must be ssg or msg, got 'xl'"),
    ({"name": "pointnext", "variant": "xl"}, ValueError, "variant must be s or b, got 'xl'"),
    ({"name": "dgcnn", "classes": 0}, ValueError, "classes must be at least 1, got 0"),
    ({"name": "dgcnn", "classes": 2.5}, TypeError, "classes must be an int, got float 2.5"),
    ({"name": "dgcnn", "k": 0}, ValueError, "k must be at least 1, got 0"),
    ({"name": "dgcnn", "norm": "layer"}, ValueError, 'norm must be "batch" or "group", got \'layer\''),
    ({"name": "pointnet", "dropout": 1.0}, ValueError, r"dropout must be in \[0, 1\), got 1.0"),
    ({"name": "pointnet", "width": 0}, ValueError, "width must be positive and finite, got 0"),
    ({"name": "pointnet", "categories": 3}, ValueError, "categories must be 0 for classification, got 3"),
]


@pytest.mark.parametrize(("config", "kind", "message"), BAD_OPTIONS, ids=str)
def test_bad_options(config, kind, message):
    with pytest.raises(kind, match=message) as error:
        models.build(**config)
    assert "\n" not in str(error.value)


ROWS, CLOUDS = torch.rand(10, 3), torch.rand(2, 5, 3)
BAD_INPUTS = [
    ({"points": ROWS, "offsets": torch.tensor([0, 4, 4, 10])}, "cloud 1 must have at least one point, got 0"),
    ({"points": ROWS[:0]}, "cloud 0 must have at least one point, got 0"),
    ({"points": ROWS[:0], "offsets": torch.tensor([0])}, "points must contain at least one cloud, got none"),
    ({"points": CLOUDS[:, :0]}, r"points must be \(B, N, 3\) with B and N at least 1, got \(2, 0, 3\)"),
    ({"points": CLOUDS[:0]}, r"points must be \(B, N, 3\) with B and N at least 1, got \(0, 5, 3\)"),
    ({"points": CLOUDS, "lengths": torch.tensor([5, 0])}, r"lengths\[1\] must be in \[1, N = 5\], got 0"),
    ({"points": CLOUDS, "lengths": torch.tensor([5, 6])}, r"lengths\[1\] must be in \[1, N = 5\], got 6"),
    ({"points": ROWS, "offsets": torch.tensor([0, 4, 9])}, r"offsets\[-1\] must equal N = 10, got 9"),
    ({"points": CLOUDS, "features": torch.rand(2, 5, 2)}, "features must be None for a network with channels=0"),
    ({"points": CLOUDS, "category": torch.tensor([0, 1])}, "category must be None for a network without categories"),
    ({"points": CLOUDS[..., :2]}, r"points must be \(N, 3\) or \(B, N, 3\), got \(2, 5, 2\)"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "message"), BAD_INPUTS, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_inputs(inputs, message):
    with pytest.raises(ValueError, match=message):
        models.pointnet2(width=0.25)(**inputs)


def test_bad_features_and_categories():
    network = models.pointnet2(task="segmentation", channels=2, categories=4, width=0.25)
    features, category = torch.rand(2, 5, 2), torch.tensor([0, 3])
    with pytest.raises(ValueError, match="features must be a tensor with 2 channels, got None"):
        network(CLOUDS, category=category)
    with pytest.raises(ValueError, match=r"features must be \(2, 5, 2\), got \(2, 5, 1\)"):
        network(CLOUDS, features[..., :1], category=category)
    with pytest.raises(ValueError, match=r"category must be a tensor \(B,\) with values in \[0, 4\), got None"):
        network(CLOUDS, features)
    with pytest.raises(ValueError, match=r"category must be \(B,\) = \(2,\), got \(1,\)"):
        network(CLOUDS, features, category=category[:1])
    with pytest.raises(ValueError, match=r"category must be in \[0, 4\), got 4"):
        network(CLOUDS, features, category=torch.tensor([0, 4]))

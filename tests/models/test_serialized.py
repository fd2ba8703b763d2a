"""Point Transformer V3, Sonata and LitePT: names and shapes of published weights, batches, curves and drop path.

Names and shapes follow from the published modules: PT-v3m1, PT-v3m2 and LitePT-v1 of Pointcept, the repositories of
Sonata and LitePT, and the linear layer of DefaultSegmentorV2.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from benchmarks import serialized
from pointgrad import models, nn, serialize
from pointgrad.models.serialized import Serialized


def norm(name, width, batch):
    found = {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    if batch:
        found |= {f"{name}.running_mean": (width,), f"{name}.running_var": (width,), f"{name}.num_batches_tracked": ()}
    return found


def linear(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def published(inputs, classes, widths, depths, decoder=(), decoder_depths=(), *, kind="ptv3", patch=None):
    """Names and shapes of a published network."""
    batch, conv = kind != "sonata", "conv" if kind == "litept" else "cpe"
    found = {"backbone.embedding.mask_token": (1, widths[0])} if kind == "sonata" else {}
    if kind == "sonata":
        found |= linear("backbone.embedding.stem.linear", inputs, widths[0])
    else:
        found["backbone.embedding.stem.conv.weight"] = (widths[0], 5, 5, 5, inputs)
    found |= norm("backbone.embedding.stem.norm", widths[0], batch)

    def block(name, stage, width, number_of_heads):
        own = {}
        if kind != "litept" or stage < 3:
            own |= {f"{name}.{conv}.0.weight": (width, 3, 3, 3, width), f"{name}.{conv}.0.bias": (width,)}
            own |= linear(f"{name}.{conv}.1", width, width) | norm(f"{name}.{conv}.2", width, False)
        else:
            own |= norm(f"{name}.norm0.0", width, False)
        if kind != "litept" or stage >= 3:
            own |= norm(f"{name}.norm1.0", width, False) | norm(f"{name}.norm2.0", width, False)
            own |= linear(f"{name}.attn.qkv", width, 3 * width) | linear(f"{name}.attn.proj", width, width)
            own |= linear(f"{name}.mlp.0.fc1", width, 4 * width) | linear(f"{name}.mlp.0.fc2", 4 * width, width)
            if patch:
                rows = 3 * (2 * int((4 * patch) ** (1 / 3) * 2) + 1)
                own[f"{name}.attn.rpe.rpe_table"] = (rows, number_of_heads)
        return own

    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        name = f"backbone.enc.enc{stage}"
        if stage:
            found |= linear(f"{name}.down.proj", widths[stage - 1], width) | norm(f"{name}.down.norm.0", width, batch)
        for number in range(depth):
            found |= block(f"{name}.block{number}", stage, width, width // 16)
    for stage, (width, depth) in enumerate(zip(decoder, decoder_depths, strict=True)):
        name, below = f"backbone.dec.dec{stage}", [*decoder, widths[-1]][stage + 1]
        for part, before in (("proj", below), ("proj_skip", widths[stage])):
            found |= linear(f"{name}.up.{part}.0", before, width) | norm(f"{name}.up.{part}.1", width, batch)
        for number in range(depth):
            found |= block(f"{name}.block{number}", stage, width, width // 16)
    return found | linear("seg_head", decoder[0] if decoder else sum(widths), classes)


PTV3 = (6, 20, (32, 64, 128, 256, 512), (2, 2, 2, 6, 2), (64, 64, 128, 256), (2, 2, 2, 2))
NETWORKS = {  # the published module, our arguments, and the number of parameters without the last layer
    "ptv3 base": (published(*PTV3), {"channels": 6, "coordinates": False}, 46_166_272),
    "ptv3 rpe": (published(*PTV3, patch=128), {"channels": 6, "coordinates": False}, 46_189_708),
    "sonata base": (
        published(9, 20, (48, 96, 192, 384, 512), (3, 3, 3, 12, 3), kind="sonata"),
        {"channels": 6},
        108_461_376 - 48,  # without the mask token of pretraining
    ),
    "sonata small": (published(9, 20, PTV3[2], PTV3[3], kind="sonata"), {"channels": 6}, 38_648_992 - 32),
    "litept s": (
        published(6, 20, (36, 72, 144, 252, 504), (2, 2, 2, 6, 2), (72, 72, 144, 252), (0,) * 4, kind="litept"),
        {"channels": 6, "coordinates": False},
        12_712_932,
    ),
    "litept b": (
        published(6, 20, (54, 108, 216, 432, 576), (3, 3, 3, 12, 3), (72, 108, 216, 432), (0,) * 4, kind="litept"),
        {"channels": 6, "coordinates": False},
        45_112_788,
    ),
}


@pytest.mark.parametrize("title", NETWORKS)
def test_published_names_and_shapes(title):
    """All names and shapes fit, with and without the prefixes of training programs."""
    shapes, options, size = NETWORKS[title]
    name, variant = title.split()
    with torch.device("meta"):
        network = models.build(name, task="segmentation", classes=20, variant=variant, **options)
        weights = {key: torch.empty(shape) for key, shape in shapes.items()}
    for change in (lambda key: key, lambda key: f"module.{key}", lambda key: key.removeprefix("backbone.")):
        assert models.load_published(network, {change(key): value for key, value in weights.items()}) == ([], [], [])
    last = network.head[1]
    count = sum(parameter.numel() for parameter in network.parameters()) - last.weight.numel() - last.bias.numel()
    assert count == size


TINY = {"task": "segmentation", "classes": 3, "width": 0.125, "drop_path": 0.0}


def tiny_weights():
    widths = (16, 16, 16, 32, 64)
    shapes = published(3, 3, widths, (2, 2, 2, 6, 2), (16, 16, 16, 32), (2, 2, 2, 2))
    return {name: torch.rand(shape) for name, shape in shapes.items()}


def test_values_of_published_weights_arrive():
    """Kernels (Cout, kx, ky, kz, Cin) become (K, Cin, Cout), all other weights are unchanged."""
    network, weights = models.ptv3(**TINY), tiny_weights()
    models.load_published(network, {"state_dict": weights})
    block = network.enc[1].blocks[1]
    assert torch.equal(block.mlp[2].weight, weights["backbone.enc.enc1.block1.mlp.0.fc2.weight"])
    assert torch.equal(network.dec[3].up.proj_skip[0].bias, weights["backbone.dec.dec3.up.proj_skip.0.bias"])
    kernel = weights["backbone.enc.enc1.block1.cpe.0.weight"]
    assert torch.equal(block.conv[0].weight[1 * 9 + 2 * 3 + 0], kernel[:, 1, 2, 0].t())
    assert torch.equal(network.head[1].weight, weights["seg_head.weight"])


def test_a_wrong_checkpoint_names_the_keys_that_differ():
    network, weights = models.ptv3(**TINY), tiny_weights()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    weights["backbone.teacher.weight"] = torch.zeros(2)
    weights["seg_head.bias"] = torch.zeros(5)
    del weights["backbone.enc.enc4.block1.attn.qkv.bias"]
    message = (
        "weights must be those of ptv3, got missing enc.enc4.block1.attn.qkv.bias; unexpected teacher.weight; "
        r"wrong shape seg_head.bias \(5,\) for head.1.bias \(3,\)$"
    )
    with pytest.raises(ValueError, match=message):
        models.load_published(network, weights)
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"missing embedding.stem.linear.weight, .* unexpected embedding.stem.conv.we"):
        models.load_published(models.sonata(**TINY, channels=0), weights)


def plain(tensor, order, attention, offsets):
    """Attention of each patch by a loop: full patches, and a last patch that shares points with the patch before it."""
    rows = torch.zeros_like(tensor.features)
    size = tensor.features.shape[1] // attention.heads
    parts = attention.qkv(tensor.features).reshape(-1, 3, attention.heads, size)
    for begin, end in pairwise(offsets.tolist()):
        for first in range(begin, end, attention.patch):
            own = order[first : min(first + attention.patch, end)]
            start = first if first + attention.patch <= end else max(begin, end - attention.patch)
            keys = order[start : start + attention.patch][: end - start]
            query, key, value = parts[own, 0], parts[keys, 1], parts[keys, 2]
            weights = (torch.einsum("qhd,khd->hqk", query, key) / size**0.5).softmax(-1)
            rows[own] = torch.einsum("hqk,khd->qhd", weights, value).flatten(1)
    return attention.proj(rows)


def test_block_equals_a_loop_over_patches():
    offsets = torch.tensor([0, 23, 26, 60])  # one cloud is smaller than a patch
    coordinates = torch.stack(torch.meshgrid(*[torch.arange(4)] * 3, indexing="ij"), -1).reshape(-1, 3)[:60]
    tensor = nn.SparseTensor(coordinates, torch.randn(60, 12, dtype=torch.float64), offsets)
    order = serialize(coordinates, ["hilbert"], bits=2, offsets=offsets).order[0]
    block = nn.PatchBlock(12, 3, 8).double()
    conv, dense, conv_norm = block.conv
    rows = tensor.features + conv_norm(dense(conv(tensor).features))
    rows = rows + plain(tensor.with_features(block.norm1(rows)), order, block.attn, offsets)
    rows = rows + block.mlp(block.norm2(rows))
    torch.testing.assert_close(block(tensor, order).features, rows)


def test_curves_are_drawn_in_training_and_fixed_in_evaluation():
    network = models.ptv3(**TINY, voxel=0.1, norm="group")
    small = Serialized(network.config, replace(network.sizes, patch=8))  # so that curves matter
    small.load_state_dict(network.state_dict())
    points = torch.rand(300, 3)
    with torch.no_grad():
        small.eval()
        assert torch.equal(small(points), small(points))
        small.train()
        torch.manual_seed(0)
        first, second = small(points), small(points)
        assert not torch.allclose(first, second, atol=1e-4)
        torch.manual_seed(0)
        assert torch.equal(small(points), first)


@pytest.mark.parametrize("name", ["ptv3", "sonata", "litept"])
def test_training_on_unequal_clouds(name):
    """One cloud is a single point, and clouds have extents with different numbers of bits."""
    network = models.build(name, **{**TINY, "drop_path": 0.5, "channels": 0}, voxel=0.1)
    points = torch.cat([torch.rand(150, 3) * 3, torch.rand(1, 3), torch.rand(40, 3) - 9])
    offsets = torch.tensor([0, 150, 151, 191])
    logits = network(points, offsets=offsets)
    functional.cross_entropy(logits, torch.randint(0, 3, (191,))).backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())
    assert all(parameter.grad.any() for parameter in network.enc[0].parameters())


def test_too_many_voxels():
    network = models.ptv3(**TINY, voxel=0.01).eval()
    with pytest.raises(ValueError, match="voxel must be so large that a cloud spans at most 65536 voxels, got 100001"):
        network(torch.tensor([[0.0, 0.0, 0.0], [1000.004, 0.0, 0.0]]))


@pytest.mark.parametrize("options", [{"name": "ptv3", "width": 0.125}, {"name": "litept", "width": 0.1}])
def test_equals_the_published_structure_in_plain_operators(options):
    """Logits and gradients in training mode, with curves from the same random numbers."""
    ours, plain = (network.double() for network in serialized.build({**options, "drop_path": 0.0}, "cpu"))
    coordinates, features, labels = serialized.scene(3000, "cpu")
    torch.manual_seed(0)
    received = ours.head(ours.voxel_features(features.double(), ours.grids(coordinates)))
    torch.manual_seed(0)
    expected = plain(coordinates, features.double(), torch.zeros_like(labels))
    torch.testing.assert_close(received, expected, rtol=1e-9, atol=1e-9)
    for logits in (received, expected):
        functional.cross_entropy(logits, labels).backward()
    torch.testing.assert_close(ours.stem[0].weight.grad, plain.first.weight.grad, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["ptv3", "sonata", "litept"])
def test_training_step_on_prepared_grids_reads_nothing_on_the_host(name):
    """Tensors without values raise an error where a value is read, or where a shape depends on one."""
    network = models.build(name, task="segmentation", classes=3, channels=0, width=0.25)
    coordinates, _, _ = serialized.scene(500, "cpu")
    grids = network.grids(coordinates, torch.tensor([0, 200, 500]))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [tree_map_only(torch.Tensor, mode.from_tensor, grid) for grid in grids]
        rows = network.head(network.voxel_features(torch.rand(500, 3), fake))
        functional.cross_entropy(rows, torch.zeros(500, dtype=torch.int64)).backward()
    assert rows.shape == (500, 3)


def test_prepared_grids_serve_several_calls():
    network = models.litept("segmentation", classes=3, width=0.1, voxel=1.0).eval()
    coordinates, _, _ = serialized.scene(300, "cpu")
    offsets = torch.tensor([0, 120, 300])
    grids = network.grids(coordinates.int(), offsets)
    for points in (coordinates + 0.25, coordinates + 0.75):
        with torch.no_grad():
            received = network.head(network.voxel_features(points, grids))
            torch.testing.assert_close(received, network(points, offsets=offsets))
    with pytest.raises(TypeError, match=r"^coordinates must be int64 or int32, got float32$"):
        network.grids(coordinates.float())

"""Layers of networks: layouts, clouds of different sizes, gradients, and comparison with their definitions."""

import doctest
import importlib
import pkgutil

import pytest
import torch
from torch import nn
from torch.nn import functional

import pointgrad
from pointgrad.nn import (
    CloudNorm,
    EdgeConv,
    FeaturePropagation,
    GlobalContext,
    GlobalPool,
    InvResMLP,
    Level,
    PatchEmbedding,
    SetAbstraction,
    SharedMLP,
    TransitionDown,
    TransitionUp,
    VectorAttention,
    edge_conv,
)
from pointgrad.nn.set_abstraction import one_point
from tests.nn.norms import randomize_norms

CHANNELS = 8


class Pair(nn.Module):
    """An upsampling layer with a downsampling layer before it."""

    def __init__(self, up):
        super().__init__()
        self.down = SetAbstraction(CHANNELS, [16], samples=0.5, radius=0.5, k=4)
        self.up = up

    def forward(self, level):
        return self.up(level, self.down(level))


# Every layer, on features with 8 channels.
LAYERS = {
    "shared MLP": lambda: Rowwise(SharedMLP(CHANNELS, [16, 8])),
    "set abstraction": lambda: SetAbstraction(CHANNELS, [16, 16, 24], samples=6, radius=0.4, k=5),
    "set abstraction, several scales": lambda: SetAbstraction(
        CHANNELS, [[8, 16], [24]], samples=0.3, radius=[0.3, 0.6], k=[3, 9]
    ),
    "set abstraction, residual": lambda: SetAbstraction(
        CHANNELS, [16, 24], samples=6, radius=0.4, k=5, normalize=True, residual=True
    ),
    "set abstraction, group norm": lambda: SetAbstraction(CHANNELS, [16], samples=6, radius=0.4, k=5, norm="group"),
    "set abstraction, whole": lambda: SetAbstraction(CHANNELS, [16, 24]),
    "feature propagation": lambda: Pair(FeaturePropagation(CHANNELS + 16, [16])),
    "edge convolution": lambda: EdgeConv(CHANNELS, [16, 24], k=6),
    "edge convolution, many channels": lambda: nn.Sequential(EdgeConv(CHANNELS, [24], k=6), EdgeConv(24, [16], k=6)),
    "vector attention": lambda: VectorAttention(CHANNELS, k=6, share=2),
    "transition down": lambda: TransitionDown(CHANNELS, 16, samples=0.25, k=6),
    "transition up": lambda: Pair(TransitionUp(16, CHANNELS)),
    "global context": lambda: GlobalContext(CHANNELS),
    "inverted residual": lambda: InvResMLP(CHANNELS, radius=0.3, k=6),
    "cloud norm": lambda: CloudNorm(CHANNELS, 2),
    "global pool": lambda: Pooled(GlobalPool(["max", "mean", "sum"])),
    "patches": lambda: PatchEmbedding(16, patches=4, k=6, channels=CHANNELS),
}


class Rowwise(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        self.mlp = mlp

    def forward(self, level):
        return level._replace(features=self.mlp(level.features))


class Pooled(nn.Module):
    """A pooling layer whose rows become a level with one point per cloud."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, level):
        return one_point(level, self.pool(level))


def packed(sizes, channels=CHANNELS, dtype=torch.float32):
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    points = torch.rand(sum(sizes), 3, dtype=dtype)
    return Level(points, torch.randn(sum(sizes), channels, dtype=dtype), offsets)


@pytest.fixture(params=LAYERS)
def layer(request):
    return randomize_norms(LAYERS[request.param]())


def clouds_of(level):
    """Each cloud of a packed level as a padded level."""
    for begin, end in zip(level.offsets[:-1], level.offsets[1:], strict=True):
        yield Level(level.points[None, begin:end], level.features[None, begin:end])


def test_packed_clouds_are_independent(layer):
    """Clouds of different sizes: fewer points than samples, fewer than neighbors, and a single point."""
    layer.eval()
    level = packed([40, 1, 5, 23, 2])
    together = layer(level)
    alone = [layer(cloud) for cloud in clouds_of(level)]
    torch.testing.assert_close(together.features, torch.cat([one.features[0] for one in alone]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(together.points, torch.cat([one.points[0] for one in alone]))
    sizes = [one.points.shape[1] for one in alone]
    assert together.offsets.diff().tolist() == sizes
    assert together.with_sizes().sizes == tuple(sizes)


@pytest.mark.parametrize("training", [True, False])
def test_packed_equals_padded(layer, training):
    layer.train(training)
    level = packed([30] * 3)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    flat = layer(level)
    after = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.load_state_dict(before)
    dense = layer(Level(level.points.reshape(3, 30, 3), level.features.reshape(3, 30, -1)))
    torch.testing.assert_close(flat.features, dense.features.flatten(0, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.state_dict(), after, rtol=1e-5, atol=1e-6)


def test_optimized_and_separate_layers_agree(layer):
    """With hooks on every module, all layers run separately, as on a GPU."""
    level = packed([40, 1, 5, 23])
    level.features.requires_grad_()
    names, parameters = list(dict(layer.named_parameters())), list(layer.parameters())
    start = {name: value.clone() for name, value in layer.state_dict().items()}

    def step():
        layer.load_state_dict(start)
        out = layer(level).features
        weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
        return out, torch.autograd.grad((out * weight).sum(), [level.features, *parameters]), layer.state_dict()

    quick, quick_grads, quick_state = step()
    quick_state = {name: value.clone() for name, value in quick_state.items()}
    called = []
    for name, module in layer.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.append(name))
    plain, plain_grads, plain_state = step()
    assert {name for name, module in layer.named_modules() if isinstance(module, nn.Linear)} <= set(called)
    torch.testing.assert_close(quick, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(quick_state, plain_state, rtol=1e-4, atol=1e-5)
    for name, one, other in zip(("features", *names), quick_grads, plain_grads, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm() + 1e-5, name


def test_gradients(layer):
    """Gradients of points and features in training agree with finite differences."""
    layer.double()
    level = packed([7, 1, 4], dtype=torch.float64)

    def call(points, features):
        return layer(Level(points, features, level.offsets)).features

    inputs = (level.points.requires_grad_(), level.features.requires_grad_())
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True, atol=1e-4)


def test_no_host_reads_with_known_sizes(layer):
    """Reading the values of tensors on the meta device would raise."""
    layer.to("meta")
    level = packed([40, 1, 5, 23]).with_sizes()
    on_meta = Level(*(tensor.to("meta") for tensor in level[:3]), level.sizes)
    assert layer(on_meta).features.is_meta
    dense = Level(torch.rand(2, 30, 3, device="meta"), torch.rand(2, 30, CHANNELS, device="meta"))
    assert layer(dense).features.is_meta


def test_shared_mlp_is_linear_norm_activation():
    mlp = SharedMLP(5, [7, 4])
    first, second = (nn.Linear(*sizes, bias=False) for sizes in ((5, 7), (7, 4)))
    plain = nn.Sequential(first, nn.BatchNorm1d(7), nn.ReLU(), second, nn.BatchNorm1d(4), nn.ReLU())
    first.weight, second.weight = mlp.linears[0].weight, mlp.linears[1].weight
    x = torch.randn(2, 3, 6, 5)
    torch.testing.assert_close(mlp(x), plain(x.reshape(-1, 5)).reshape(2, 3, 6, 4))
    torch.testing.assert_close(mlp.norms[1].running_var, plain[4].running_var)
    assert [linear.bias is None for linear in SharedMLP(5, [7, 4], norm=None).linears] == [False, False]
    assert (SharedMLP(5, [64], last="norm")(x) < 0).any()


def test_group_norm_makes_rows_independent():
    mlp = SharedMLP(5, [16, 24], norm="group")
    x = torch.randn(9, 5)
    torch.testing.assert_close(mlp(x)[2:3], mlp(x[2:3]))
    assert [norm.num_groups for norm in mlp.norms] == [2, 2]


def test_half_precision_without_autocast():
    """Parameters in 16 bits use separate layers."""
    layer = SetAbstraction(0, [16, 8], samples=5, radius=0.2, k=6).to(torch.bfloat16)
    out = layer(Level(torch.rand(2, 30, 3, dtype=torch.bfloat16))).features
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


# Comparison with definitions that use dense distances


@pytest.mark.parametrize("training", [True, False])
def test_set_abstraction_by_definition(training):
    """Balls contain the first points within the radius; the first is repeated where there are fewer than k."""
    layer = randomize_norms(SetAbstraction(CHANNELS, [16, 12], samples=9, radius=0.4, k=6)).train(training)
    points, features = torch.rand(2, 40, 3), torch.randn(2, 40, CHANNELS)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    received = layer(Level(points, features))
    layer.load_state_dict(state)
    centers = pointgrad.gather(points, pointgrad.farthest_point_sampling(points, 9))
    inside = torch.cdist(centers, points) <= 0.4
    assert (inside.sum(-1) < 6).any()
    assert (inside.sum(-1) > 6).any()
    order = torch.where(inside, torch.arange(40), 40).sort(-1).values[..., :6]
    index = torch.where(order == 40, order[..., :1], order)
    batch = torch.arange(2)[:, None, None]
    grouped = torch.cat([points[batch, index] - centers[:, :, None], features[batch, index]], -1)
    expected = layer.mlps[0](grouped).amax(2)
    torch.testing.assert_close(received.features, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(received.points, centers)


def test_relative_positions_are_exact_far_from_the_origin():
    """A shift without rounding errors in float32 changes nothing, although products of such coordinates would round."""
    layer = SetAbstraction(CHANNELS, [16], samples=9, radius=0.3, k=6).eval()
    points = torch.randint(0, 2**10, (40, 3)) / 2.0**10
    features = torch.randn(40, CHANNELS)
    near, far = (layer(Level(points + shift, features)).features for shift in (0.0, 4096.0))
    torch.testing.assert_close(near, far, rtol=0, atol=0)


@pytest.mark.parametrize("channels", [3, 24])
def test_edge_conv_by_definition(channels):
    layer = randomize_norms(EdgeConv(channels, [16, 12], k=5))
    features = torch.randn(2, 30, channels)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    received = layer(Level(torch.rand(2, 30, 3), features)).features
    layer.load_state_dict(state)
    index = torch.cdist(features, features).topk(5, largest=False).indices
    near = features[torch.arange(2)[:, None, None], index]
    own = features[:, :, None].expand_as(near)
    expected = layer.mlp(torch.cat([near - own, own], -1)).amax(2)
    torch.testing.assert_close(received, expected, rtol=1e-4, atol=1e-5)


def test_neighbors_in_blocks(monkeypatch):
    space = torch.randn(2, 50, 20, dtype=torch.float64)
    level = Level(torch.rand(2, 50, 3))
    whole = edge_conv.nearest_in(space, 7, level)
    assert torch.equal(whole, torch.cdist(space, space).topk(7, largest=False).indices)
    monkeypatch.setattr(edge_conv, "_DISTANCES", 500)
    assert torch.equal(edge_conv.nearest_in(space, 7, level), whole)
    parts = edge_conv.nearest_in(space[0], 7, Level(torch.rand(50, 3), None, torch.tensor([0, 47, 50])))
    assert torch.equal(parts[47:, 3:], torch.full((3, 4), -1))
    assert set(parts[47:, :3].flatten().tolist()) == {47, 48, 49}


def test_vector_attention_by_definition():
    layer = randomize_norms(VectorAttention(CHANNELS, k=5, share=4)).eval()
    points, x = torch.rand(12, 3), torch.randn(12, CHANNELS)
    received = layer(Level(points, x)).features
    index = torch.cdist(points, points).topk(5, largest=False).indices
    query, key, value = layer.query(x), layer.key(x), layer.value(x)
    for i in range(12):
        position = layer.position(points[index[i]] - points[i])
        logits = layer.weigh(functional.relu(layer.norm(key[index[i]] - query[i] + position)))
        weights = logits.softmax(0).repeat(1, 4)  # two weights for eight channels
        expected = ((value[index[i]] + position) * weights).sum(0)
        torch.testing.assert_close(received[i], expected, rtol=1e-4, atol=1e-5)


def test_upsampling_by_definition():
    fine, coarse = Level(torch.rand(20, 3), torch.randn(20, 8)), Level(torch.rand(6, 3), torch.randn(6, 16))
    near = torch.cdist(fine.points, coarse.points).topk(3, largest=False)
    weights = (1 / near.values) / (1 / near.values).sum(1, keepdim=True)

    def interpolated(features):
        return (features[near.indices] * weights[..., None]).sum(1)

    layer = randomize_norms(FeaturePropagation(24, [8])).eval()
    expected = layer.mlp(torch.cat([fine.features, interpolated(coarse.features)], 1))
    torch.testing.assert_close(layer(fine, coarse).features, expected, rtol=1e-4, atol=1e-5)
    layer = randomize_norms(TransitionUp(16, 8)).eval()
    expected = layer.own(fine.features) + interpolated(layer.coarse(coarse.features))
    torch.testing.assert_close(layer(fine, coarse).features, expected, rtol=1e-4, atol=1e-5)


def test_inverted_residual_by_definition():
    layer = randomize_norms(InvResMLP(CHANNELS, radius=0.4, k=5)).eval()
    points, features = torch.rand(30, 3), torch.randn(30, CHANNELS)
    expected = []
    for i in range(30):
        index = ((points - points[i]).norm(dim=1) <= 0.4).nonzero()[:5, 0]
        local = layer.local(torch.cat([(points[index] - points[i]) / 0.4, features[index]], 1)).amax(0)
        expected.append(functional.relu(layer.pointwise(local[None])[0] + features[i]))
    torch.testing.assert_close(layer(Level(points, features)).features, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_patches_by_definition():
    layer = randomize_norms(PatchEmbedding(12, patches=5, k=6)).eval()
    points = torch.rand(30, 3)
    received = layer(Level(points))
    for center, token in zip(received.points, received.features, strict=True):
        patch = points[(points - center).norm(dim=1).topk(6, largest=False).indices] - center
        rows = layer.points(patch)
        rows = layer.joint(torch.cat([rows.amax(0).expand_as(rows), rows], 1))
        torch.testing.assert_close(token, rows.amax(0), rtol=1e-4, atol=1e-5)


def test_bad_calls():
    level = Level(torch.rand(4, 3), torch.rand(4, 5))
    with pytest.raises(ValueError, match=r"features must be \(4, 8\), got \(4, 5\)"):
        EdgeConv(8, [4])(level)
    with pytest.raises(ValueError, match="features must be a tensor with 8 channels, got None"):
        EdgeConv(8, [4])(Level(torch.rand(4, 3)))
    with pytest.raises(ValueError, match='norm must be "batch", "group" or None, got \'layer\''):
        SharedMLP(3, [4], norm="layer")
    with pytest.raises(ValueError, match="activation must be relu or leaky_relu or gelu, got 'tanh'"):
        SharedMLP(3, [4], activation="tanh")
    with pytest.raises(ValueError, match="radius, k and widths must be of equal length"):
        SetAbstraction(0, [[4], [4]], samples=2, radius=0.1, k=4)
    with pytest.raises(ValueError, match="channels must be a multiple of share = 8, got 12"):
        VectorAttention(12)


@pytest.mark.parametrize("package", ["nn", "models"])
def test_documented_examples_run(package):
    module = importlib.import_module(f"pointgrad.{package}")
    tried = 0
    for info in pkgutil.iter_modules(module.__path__):
        part = importlib.import_module(f"pointgrad.{package}.{info.name}")
        result = doctest.testmod(part, extraglobs={"torch": torch, "Level": Level})
        assert result.failed == 0
        tried += result.attempted
    assert tried >= 5


LEVEL_LAYERS = [name for name in LAYERS if name != "shared MLP"]


@pytest.mark.parametrize("name", LEVEL_LAYERS)
def test_layers_refuse_a_tensor(name):
    layer = LAYERS[name]()
    if isinstance(layer, Pair):
        with pytest.raises(TypeError, match=r"^fine must be a pointgrad.nn.Level; pass Level\(points, features\), got"):
            layer.up(torch.rand(2, 30, 3), Level(torch.rand(2, 9, 3), torch.rand(2, 9, 16)))
        layer = layer.down
    if isinstance(layer, Pooled):
        layer = layer.pool
    message = r"^level must be a pointgrad.nn.Level; pass Level\(points, features\), got torch.Tensor$"
    with pytest.raises(TypeError, match=message):
        layer(torch.rand(2, 30, 3))


@pytest.mark.parametrize("name", LEVEL_LAYERS)
def test_layers_refuse_transposed_points(name):
    layer = LAYERS[name]()
    layer = {Pair: lambda: layer.down, Pooled: lambda: layer.pool}.get(type(layer), lambda: layer)()
    message = r"got \(2, 3, 30\); they look transposed: pass points.transpose\(-2, -1\)$"
    with pytest.raises(ValueError, match=message):
        layer(Level(torch.rand(2, 3, 30), torch.rand(2, 30, CHANNELS)))


def test_global_pool_by_definition():
    level = packed([40, 1, 5])
    parts = [cloud.features[0] for cloud in clouds_of(level)]
    expected = torch.stack([torch.cat([part.amax(0), part.mean(0), part.sum(0)]) for part in parts])
    torch.testing.assert_close(GlobalPool(["max", "mean", "sum"])(level), expected)
    compiled = torch.compile(GlobalPool("mean"), fullgraph=True, backend="aot_eager")
    dense = Level(torch.rand(2, 9, 3), torch.rand(2, 9, 4))
    torch.testing.assert_close(compiled(dense), dense.features.mean(1))


def test_global_pool_refuses():
    with pytest.raises(ValueError, match=r"^reduce must be .* or a list of them, got 'median'$"):
        GlobalPool("median")
    with pytest.raises(ValueError, match=r"^features must be \(N, C\) or \(B, N, C\) with points \(5, 3\), got"):
        GlobalPool()(Level(torch.rand(5, 3), torch.rand(4, 8)))

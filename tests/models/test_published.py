"""Weights in the layouts of MinkowskiEngine and spconv, compared with dense networks in float64.

Names and shapes follow from the published modules: examples/minkunet.py of MinkowskiEngine and SpUNet-v1m1 of
Pointcept. The dense networks read the weights by these names. MinkowskiEngine counts kernel positions with the first
axis fastest (`kernel_region::coordinate_at` in src/kernel_region.hpp); an even kernel starts at its output voxel, and a
transposed kernel has the positions of the strided one. In spconv, the last axis is the fastest.
"""

import pytest
import torch
from torch.nn import functional

from pointgrad import models

INPUTS, CLASSES, GRID = 3, 5, 16
WIDTHS = (32, 32, 64, 128, 256, 256, 128, 96, 96)  # of the first layer and of all levels
COMMON = {
    "task": "segmentation",
    "classes": CLASSES,
    "channels": INPUTS,
    "coordinates": False,
    "width": 0.25,
    "voxel": 0.5,
}


class Published:
    """Names and shapes of a published network."""

    def __init__(self, mink, blocks=(2, 3, 4, 6, 2, 2, 2, 2), width=0.25):
        self.mink, self.blocks = mink, blocks
        self.base, *self.widths = (int(width * size) for size in WIDTHS)
        self.parts = (
            ("norm1.bn", "norm2.bn", "downsample.0", "downsample.1.bn") if mink else ("bn1", "bn2", "proj.0", "proj.1")
        )
        self.stem = ("conv0p1s1", "bn0.bn") if mink else ("conv_input.0", "conv_input.1")

    def down(self, level):
        if self.mink:
            return f"conv{level + 1}p{2**level}s2", f"bn{level + 1}.bn"
        return f"down.{level}.0", f"down.{level}.1"

    def up(self, level):
        """Names of the layers that lead up to a level."""
        if self.mink:
            return f"convtr{7 - level}p{2 ** (level + 1)}s2", f"bntr{7 - level}.bn"
        return f"up.{level}.0", f"up.{level}.1"

    def block(self, level, number, up):
        if self.mink:
            return f"block{8 - level if up else level + 1}.{number}"
        return f"{'dec' if up else 'enc'}.{level}.block{number}"

    def shapes(self):
        """Name, kernel size, input and output channels of convolutions; (name, None, None, channels) of norms."""
        found = [(self.stem[0], 5, INPUTS, self.base), (self.stem[1], None, None, self.base)]

        def blocks(level, before, after, up):
            for number in range(self.blocks[7 - level if up else level]):
                name, own = self.block(level, number, up), before if number == 0 else after
                found.extend([(f"{name}.conv1", 3, own, after), (f"{name}.{self.parts[0]}", None, None, after)])
                found.extend([(f"{name}.conv2", 3, after, after), (f"{name}.{self.parts[1]}", None, None, after)])
                if own != after:
                    found.extend(
                        [(f"{name}.{self.parts[2]}", 1, own, after), (f"{name}.{self.parts[3]}", None, None, after)]
                    )

        width, skips = self.base, []
        for level in range(4):
            skips.append(width)
            strided = width if self.mink else self.widths[level]
            conv, norm = self.down(level)
            found.extend([(conv, 2, width, strided), (norm, None, None, strided)])
            blocks(level, strided, self.widths[level], False)
            width = self.widths[level]
        for level in reversed(range(4)):
            after = self.widths[7 - level]
            conv, norm = self.up(level)
            found.extend([(conv, 2, width, after), (norm, None, None, after)])
            blocks(level, after + skips[level], after, True)
            width = after
        return [*found, ("final", 1, width, CLASSES)]

    def state(self):
        """A random state dictionary."""
        state = {}
        for name, size, inputs, outputs in self.shapes():
            if size is None:
                state[f"{name}.weight"], state[f"{name}.running_var"] = 0.5 + torch.rand(2, outputs).double()
                state[f"{name}.bias"], state[f"{name}.running_mean"] = torch.randn(2, outputs).double() / 4
                state[f"{name}.num_batches_tracked"] = torch.tensor(7)
            elif self.mink:
                shape = (inputs, outputs) if size == 1 else (size**3, inputs, outputs)
                state[f"{name}.kernel"] = torch.randn(shape).double() / (size**3 * inputs) ** 0.5
            else:
                state[f"{name}.weight"] = (
                    torch.randn(outputs, size, size, size, inputs).double() / (size**3 * inputs) ** 0.5
                )
        state["final.bias"] = torch.randn((1, CLASSES) if self.mink else CLASSES).double()
        return state

    def weight(self, state, name, size):
        """A kernel as (Cout, Cin, kx, ky, kz)."""
        if not self.mink:
            weight = state[f"{name}.weight"]
            if size == 1:  # spconv multiplies by `weight.view(in_channels, out_channels)`
                return weight.reshape(weight.shape[4], -1).t()[..., None, None, None]
            return weight.permute(0, 4, 1, 2, 3)
        kernel = state[f"{name}.kernel"].reshape(size**3, *state[f"{name}.kernel"].shape[-2:])
        out = kernel.new_zeros(kernel.shape[2], kernel.shape[1], size, size, size)
        for number, matrix in enumerate(kernel):
            out[:, :, number % size, number // size % size, number // size**2] = matrix.t()
        return out

    def run(self, state, image, mask):
        """Logits (1, CLASSES, X, Y, Z) of a dense image (1, C, X, Y, Z) whose voxels (1, 1, X, Y, Z) are occupied."""
        masks = [mask]
        for _ in range(4):
            masks.append(functional.max_pool3d(masks[-1], 2))
        eps = 1e-5 if self.mink else 1e-3

        def normed(x, name):
            names = (f"{name}.running_mean", f"{name}.running_var", f"{name}.weight", f"{name}.bias")
            return functional.batch_norm(x, *(state[each] for each in names), eps=eps)

        def conv(x, name, size, level):
            return functional.conv3d(x, self.weight(state, name, size), padding=size // 2) * masks[level]

        def blocks(x, level, count, up):
            for number in range(count):
                name = self.block(level if up else level - 1, number, up)
                out = (
                    functional.relu(normed(conv(x, f"{name}.conv1", 3, level), f"{name}.{self.parts[0]}"))
                    * masks[level]
                )
                out = normed(conv(out, f"{name}.conv2", 3, level), f"{name}.{self.parts[1]}")
                if f"{name}.{self.parts[3]}.weight" in state:
                    x = normed(conv(x, f"{name}.{self.parts[2]}", 1, level), f"{name}.{self.parts[3]}")
                x = functional.relu(out + x) * masks[level]
            return x

        x = functional.relu(normed(conv(image, self.stem[0], 5, 0), self.stem[1])) * mask
        skips = []
        for level in range(4):
            skips.append(x)
            name, norm = self.down(level)
            x = functional.conv3d(x, self.weight(state, name, 2), stride=2)
            x = blocks(functional.relu(normed(x, norm)) * masks[level + 1], level + 1, self.blocks[level], False)
        for level in reversed(range(4)):
            name, norm = self.up(level)
            x = functional.conv_transpose3d(x, self.weight(state, name, 2).transpose(0, 1), stride=2)
            x = functional.relu(normed(x, norm)) * masks[level]
            x = blocks(torch.cat([x, skips[level]], 1), level, self.blocks[7 - level], True)
        return functional.conv3d(x, self.weight(state, "final", 1), state["final.bias"].reshape(-1))


def network_for(published, **options):
    name = {"name": "minkunet", "variant": "34c"} if published.mink else {"name": "spunet"}
    return models.build(**name, **{**COMMON, **options})


@pytest.fixture(params=["MinkowskiEngine", "spconv 2", "spconv 1"])
def layout(request):
    """The published network, its weights, and the weights in the layout of the library."""
    published = Published(request.param == "MinkowskiEngine")
    state = published.state()
    stored = dict(state)
    if request.param == "spconv 1":
        for name, value in state.items():
            if value.dim() == 5:
                outputs, size, *_, inputs = value.shape
                shape = (size, size, size, inputs, outputs)
                stored[name] = value.reshape(shape) if size == 1 else value.permute(1, 2, 3, 4, 0)
    return published, state, stored


def test_equal_to_dense_networks(layout):
    published, state, stored = layout
    network = network_for(published).double().eval()
    stored = {f"module.backbone.{name}": value for name, value in stored.items()}
    unloaded = models.load_published(network, {"state_dict": stored, "epoch": 3})
    assert unloaded == ([], [], [])
    torch.manual_seed(0)
    mask = torch.rand(GRID, GRID, GRID) < 0.2
    where, features = mask.nonzero(), torch.randn(int(mask.sum()), INPUTS).double()
    image = torch.zeros(GRID, GRID, GRID, INPUTS).double()
    image[mask] = features
    expected = published.run(state, image.permute(3, 0, 1, 2)[None], mask[None, None].double())
    order = torch.randperm(len(where))
    with torch.no_grad():
        received = network((where[order] + 0.5) * 0.5, features[order])
    assert received.std() > 0.1
    torch.testing.assert_close(received, expected[0].permute(1, 2, 3, 0)[mask][order], rtol=1e-9, atol=1e-9)


SMALL = (2,) * 8
SIZES = [
    ("minkunet", "18", SMALL, 21_704_244),
    ("minkunet", "34c", None, 37_856_052),
    ("spunet", None, None, 39_145_844),
]


@pytest.mark.parametrize(("name", "variant", "blocks", "size"), SIZES)
def test_sizes(name, variant, blocks, size):
    """Numbers of parameters for 20 classes of points with colors, which follow from the published modules."""
    published = Published(name == "minkunet", **({"blocks": blocks} if blocks else {}), width=1)
    rows = [(kernel or 1, ins or 2, outs) for _, kernel, ins, outs in published.shapes()]  # norms: weight and bias
    learned = sum(kernel**3 * ins * outs for kernel, ins, outs in rows[:-1]) + rows[-1][1] * 20 + 20
    options = {"variant": variant} if variant else {}
    with torch.device("meta"):
        network = models.build(name, task="segmentation", classes=20, channels=3, coordinates=False, **options)
    assert sum(parameter.numel() for parameter in network.parameters()) == learned == size


def test_what_does_not_fit_is_named(layout):
    published, _, stored = layout
    network = network_for(published, classes=CLASSES + 1)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    stored = {name: value for name, value in stored.items() if "num_batches_tracked" not in name}  # optional
    final = "final.kernel" if published.mink else "final.weight"
    stem = f"{published.stem[1]}.bias"
    extra = {**stored, "other.weight": torch.zeros(2)}
    del extra[stem]
    with pytest.raises(ValueError, match="weights must be those of") as error:
        models.load_published(network, extra)
    message = str(error.value)
    shape = tuple(stored[final].shape)
    wrong = f"{final} {shape} for head.1.weight (6, 24), final.bias"
    assert f"got missing {stem}; unexpected other.weight; wrong shape {wrong}" in message
    assert "\n" not in message
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)

    unloaded = models.load_published(network, extra, strict=False)
    assert unloaded.missing == [stem]
    assert unloaded.unexpected == ["other.weight"]
    assert len(unloaded.mismatched) == 2
    after = network.state_dict()
    torch.testing.assert_close(after["head.1.weight"], before["head.1.weight"], rtol=0, atol=0)
    assert not torch.equal(after["stem.0.weight"], before["stem.0.weight"])


def test_bad_calls():
    with pytest.raises(TypeError, match=r"network must be minkunet, spunet, ptv3, sonata or litept, got .*pointnet2"):
        models.load_published(models.pointnet2(width=0.25), {})
    with pytest.raises(ValueError, match=r"missing conv0p1s1\.kernel, bn0\.bn\.weight, bn0\.bn\.bias and \d+ more$"):
        models.load_published(models.minkunet(width=0.25), {})
    network = models.spunet(width=0.25)
    with pytest.raises(ValueError, match=r"wrong shape final.bias \(\) for head.1.bias \(40,\)"):
        models.load_published(network, {"final.bias": "text"})
    for weights, message in (
        ("file.pth", "weights must be a state_dict, got str 'file.pth'"),
        ({"state_dict": None}, r"weights\['state_dict'\] must be a dictionary, got NoneType"),
        ({1: torch.zeros(1)}, "names of weights must be strings, got int 1"),
    ):
        with pytest.raises(TypeError, match=message):
            models.load_published(network, weights)
    with pytest.raises(TypeError, match=r"network must be minkunet, spunet, ptv3, sonata or litept, got .*Linear"):
        models.load_published(torch.nn.Linear(1, 1), {})

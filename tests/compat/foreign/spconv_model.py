"""Three networks written for spconv without any reference to pointgrad: detection, segmentation, decoding.

Trains one of them for a few steps on random surfaces and prints the loss before each step.
"""

import argparse
import itertools
from collections import OrderedDict
from functools import partial

import numpy as np
import spconv
import torch
from torch import nn

spconv.constants.SPCONV_USE_DIRECT_TABLE = False
import cumm.tensorview as tv  # noqa: E402
import spconv.pytorch as spconv  # noqa: E402
from spconv.core import ConvAlgo  # noqa: E402
from spconv.pytorch.utils import PointToVoxel  # noqa: E402
from spconv.utils import Point2VoxelCPU3d  # noqa: E402

norm = partial(nn.BatchNorm1d, eps=1e-3, momentum=0.01)


def block(cin, cout, key, kind="subm", **options):
    if kind == "subm":
        conv = spconv.SubMConv3d(cin, cout, 3, bias=False, indice_key=key)
    elif kind == "down":
        conv = spconv.SparseConv3d(cin, cout, options.pop("kernel", 3), bias=False, indice_key=key, **options)
    else:
        conv = spconv.SparseInverseConv3d(cin, cout, 2, indice_key=key, bias=False)
    return spconv.SparseSequential(conv, norm(cout), nn.ReLU())


class Detector(nn.Module):
    """Encoder in the style of SECOND: four levels, then a flat map of features seen from above."""

    def __init__(self, channels, grid):
        super().__init__()
        self.grid = np.array(grid[::-1]) + np.array([1, 0, 0])
        self.stem = block(channels, 8, "subm1")
        self.levels = nn.ModuleList(
            spconv.SparseSequential(
                block(cin, cout, f"down{level}", "down", stride=2, padding=padding),
                block(cout, cout, f"subm{level}"),
                block(cout, cout, f"subm{level}"),
            )
            for level, (cin, cout, padding) in enumerate(((8, 8, 1), (8, 16, 1), (16, 16, (0, 1, 1))), 2)
        )
        self.flat = block(16, 16, "flat", "down", kernel=(3, 1, 1), stride=(2, 1, 1), padding=0)
        self.head = nn.LazyConv2d(2, 1)

    def forward(self, features, coords, batch_size):
        x = self.stem(spconv.SparseConvTensor(features, coords.int(), self.grid, batch_size))
        for level in self.levels:
            x = level(x)
        dense = self.flat(x).dense()
        return self.head(dense.flatten(1, 2)).mean((2, 3))


class Residual(spconv.SparseModule):
    def __init__(self, cin, cout, key):
        super().__init__()
        same = spconv.Identity() if cin == cout else spconv.SubMConv3d(cin, cout, kernel_size=1, bias=False)
        self.shortcut = spconv.SparseSequential(same) if cin == cout else spconv.SparseSequential(same, norm(cout))
        self.conv1 = spconv.SubMConv3d(cin, cout, kernel_size=3, padding=1, bias=False, indice_key=key)
        self.norm1, self.relu = norm(cout), nn.ReLU()
        self.conv2 = spconv.SubMConv3d(cout, cout, kernel_size=3, padding=1, bias=False, indice_key=key)
        self.norm2 = norm(cout)

    def forward(self, x):
        out = self.conv1(x)
        out = out.replace_feature(self.relu(self.norm1(out.features)))
        out = self.conv2(out)
        out = out.replace_feature(self.norm2(out.features))
        out = out.replace_feature(out.features + self.shortcut(x).features)
        return out.replace_feature(self.relu(out.features))


class UNet(nn.Module):
    """Segmentation network in the style of SpUNet, with inverse convolutions and skip connections."""

    def __init__(self, channels, classes, widths=(8, 12, 16)):
        super().__init__()
        self.stem = spconv.SparseSequential(
            spconv.SubMConv3d(channels, widths[0], kernel_size=5, padding=1, bias=False, indice_key="stem"),
            norm(widths[0]),
            nn.ReLU(),
        )
        self.down, self.encode = nn.ModuleList(), nn.ModuleList()
        self.up, self.decode = nn.ModuleList(), nn.ModuleList()
        for level, (cin, cout) in enumerate(itertools.pairwise(widths)):
            self.down.append(block(cin, cout, f"down{level}", "down", kernel=2, stride=2))
            self.up.append(block(cout, cin, f"down{level}", "up"))
            self.encode.append(spconv.SparseSequential(OrderedDict(block0=Residual(cout, cout, f"subm{level + 1}"))))
            self.decode.append(spconv.SparseSequential(block0=Residual(2 * cin, cin, f"subm{level}")))
        self.final = spconv.SubMConv3d(widths[0], classes, kernel_size=1, padding=1, bias=True)

    def forward(self, features, coords, batch_size):
        shape = torch.add(coords[:, 1:].max(0).values, 96).tolist()
        x = self.stem(spconv.SparseConvTensor(features, coords.int().contiguous(), shape, batch_size))
        skips = []
        for down, encode in zip(self.down, self.encode, strict=True):
            skips.append(x)
            x = encode(down(x))
        for up, decode in zip(reversed(self.up), reversed(self.decode), strict=True):
            x, skip = up(x), skips.pop()
            x = decode(x.replace_feature(torch.cat((x.features, skip.features), dim=1)))
        return self.final(x).features


class Decoder(nn.Module):
    """Decoder block in the style of TRELLIS: each voxel becomes eight, then two convolutions with a shortcut."""

    def __init__(self, channels, width):
        super().__init__()
        self.width = width
        self.first = spconv.SubMConv3d(channels, width, 3, indice_key="fine", algo=ConvAlgo.Native)
        self.second = spconv.SubMConv3d(width, width, 3, indice_key="fine", algo=ConvAlgo.Native)
        self.skip = nn.Linear(channels, width)
        self.out = nn.Linear(width, 3)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)

    def forward(self, features, coords, batch_size):
        corners = torch.tensor([[0, i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)], device=coords.device)
        scale = torch.tensor([1, 2, 2, 2], device=coords.device)
        fine = (coords[:, None] * scale + corners).flatten(0, 1).int()
        values = features.repeat_interleave(8, 0)
        shape = list(fine.max(0)[0] + 1)[1:]
        x = spconv.SparseConvTensor(nn.functional.silu(values).reshape(len(values), -1), fine, shape, batch_size)
        h = self.first(x)
        new = spconv.SparseConvTensor(
            h.features, h.indices, h.spatial_shape, h.batch_size, h.grid, h.voxel_num, h.indice_dict
        )
        new._features = nn.functional.silu(nn.functional.layer_norm(h.features, (self.width,)))
        new.benchmark, new.benchmark_record = h.benchmark, h.benchmark_record
        new.thrust_allocator, new._timer = h.thrust_allocator, h._timer
        new.force_algo, new.int8_scale = h.force_algo, h.int8_scale
        return self.out(self.second(new).features + self.skip(values))


def voxels(size, batch):
    """Mean point, indices of the voxel, and class of the voxels of noisy spheres."""
    make = PointToVoxel([2 / size] * 3, [-1, -1, -1, 1, 1, 1], 3, 5000, 4, torch.device("cpu"))
    same = Point2VoxelCPU3d([2 / size] * 3, [-1, -1, -1, 1, 1, 1], 3, 5000, 4)
    features, coords = [], []
    for number in range(batch):
        points = nn.functional.normalize(torch.randn(400, 3), dim=1) * (0.4 + 0.2 * number)
        found, indices, count = make(points)
        again = same.point_to_voxel(tv.from_numpy(points.numpy()))
        assert np.array_equal(again[1].numpy(), indices.numpy())
        features.append(found.sum(1) / count[:, None])
        coords.append(nn.functional.pad(indices, (1, 0), value=number))
    return torch.cat(features), torch.cat(coords)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("detector", "unet", "decoder"), default="unet")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    size = 16
    features, coords = (part.to(args.device) for part in voxels(size, 2))
    if args.model == "detector":
        model, target = Detector(3, [size, size, 2 * size]), torch.tensor([0, 1])
    elif args.model == "unet":
        model, target = UNet(3, 2), (coords[:, 1] > size // 2).long()
    else:
        model, target = Decoder(3, 8), features.repeat_interleave(8, 0)
    model, target = model.to(args.device), target.to(args.device)
    model(features, coords, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(args.steps):
        out = model(features, coords, 2)
        loss = (
            nn.functional.mse_loss(out, target) if args.model == "decoder" else nn.functional.cross_entropy(out, target)
        )
        print(f"loss {loss.item():.6f}")
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()


if __name__ == "__main__":
    main()

"""SPVCNN written for TorchSparse without any reference to pointgrad.

Trains it for a few steps on random surfaces and prints the loss before each step.
"""

import argparse

import numpy as np
import torch
import torch_scatter
import torchsparse
import torchsparse.nn as spnn
import torchsparse.nn.functional as spf
from torch import nn
from torchsparse import SparseTensor
from torchsparse.nn.functional.devoxelize import calc_ti_weights
from torchsparse.utils import make_ntuple, make_tensor
from torchsparse.utils.collate import sparse_collate_fn
from torchsparse.utils.quantize import sparse_quantize


class PointTensor(SparseTensor):
    """Points that keep the results of searches in their cache."""

    def __init__(self, feats, coords, stride=1):
        super().__init__(feats=feats, coords=coords, stride=stride)
        self._caches.idx_query = {}
        self._caches.idx_query_devox = {}
        self._caches.weights_devox = {}


def search(query, target, kernel_size=1):
    """Row of `target` at each query, or at the corners of its cell; -1 for none."""
    size = 2 * target.shape[0]
    keys = torch.zeros(size, dtype=torch.int64, device=target.device)
    table = torchsparse.backend.GPUHashTable(keys, torch.zeros(size, dtype=torch.int32, device=target.device))
    table.insert_coords(target[:, [1, 2, 3, 0]])
    sizes = make_tensor(make_ntuple(kernel_size, 3), device=target.device, dtype=torch.int32)
    stride = make_tensor((1, 1, 1), device=target.device, dtype=torch.int32)
    found = table.lookup_coords(query[:, [1, 2, 3, 0]], sizes, stride, kernel_size**3)
    return (found - 1)[: query.shape[0]]


def initial_voxelize(z, init_res, after_res):
    position = torch.cat([z.C[:, :1], z.C[:, 1:] * init_res / after_res], 1)
    cell = torch.floor(position).int()
    voxels = torch.unique(cell, dim=0)
    index = search(cell, voxels).reshape(-1)
    z._caches.idx_query[z.s] = index
    z.C = position
    return SparseTensor(torch_scatter.scatter_mean(z.F, index.long(), dim=0), voxels, 1)


def point_to_voxel(x, z):
    if z._caches.idx_query.get(x.s) is None:
        cell = torch.cat([z.C[:, :1].int(), torch.floor(z.C[:, 1:] / x.s[0]).int()], 1)
        z._caches.idx_query[x.s] = search(cell, x.C).reshape(-1)
    index = z._caches.idx_query[x.s].clamp_(0)
    out = SparseTensor(torch_scatter.scatter_mean(z.F, index.long(), dim=0), x.C, x.s)
    out._caches = x._caches
    return out


def voxel_to_point(x, z, nearest=False):
    if z._caches.idx_query_devox.get(x.s) is None:
        position = torch.cat([z.C[:, :1], z.C[:, 1:] / x.s[0]], 1)
        index = search(torch.floor(position).int(), x.C, kernel_size=2)
        weights = calc_ti_weights(position[:, 1:], index, scale=1)
        if nearest:
            weights[:, 1:] = 0.0
            index[:, 1:] = -1
        z._caches.idx_query_devox[x.s], z._caches.weights_devox[x.s] = index, weights
    feats = spf.spdevoxelize(x.F, z._caches.idx_query_devox[x.s], z._caches.weights_devox[x.s])
    out = PointTensor(feats, z.C)
    out._caches = z._caches
    return out


class ConvolutionBlock(nn.Module):
    def __init__(self, inc, outc, ks=3, stride=1, transposed=False):
        super().__init__()
        conv = spnn.Conv3d(inc, outc, kernel_size=ks, stride=stride, transposed=transposed)
        self.net = nn.Sequential(conv, spnn.BatchNorm(outc), spnn.ReLU(True))

    def forward(self, x):
        return self.net(x)


class ResidualBlock(nn.Module):
    def __init__(self, inc, outc):
        super().__init__()
        self.net = nn.Sequential(
            spnn.Conv3d(inc, outc, kernel_size=3, dilation=1, stride=1),
            spnn.BatchNorm(outc),
            spnn.ReLU(True),
            spnn.Conv3d(outc, outc, kernel_size=3, dilation=1, stride=1),
            spnn.BatchNorm(outc),
        )
        self.downsample = nn.Identity()
        if inc != outc:
            self.downsample = nn.Sequential(spnn.Conv3d(inc, outc, kernel_size=1), spnn.BatchNorm(outc))
        self.relu = spnn.ReLU(True)

    def forward(self, x):
        return self.relu(self.net(x) + self.downsample(x))


class SPVCNN(nn.Module):
    """U-Net on voxels with a network of points beside it."""

    def __init__(self, num_classes, cr=1.0, pres=0.05, vres=0.05):
        super().__init__()
        cs = [int(cr * width) for width in (32, 32, 64, 128, 256, 256, 128, 96, 96)]
        self.pres, self.vres = pres, vres
        self.stem = nn.Sequential(
            spnn.Conv3d(4, cs[0], kernel_size=3, stride=1), spnn.BatchNorm(cs[0]), spnn.ReLU(True),
            spnn.Conv3d(cs[0], cs[0], kernel_size=3, stride=1), spnn.BatchNorm(cs[0]), spnn.ReLU(True),
        )  # fmt: skip
        for level in range(1, 5):
            inc, outc = cs[level - 1], cs[level]
            blocks = ConvolutionBlock(inc, inc, 2, 2), ResidualBlock(inc, outc), ResidualBlock(outc, outc)
            setattr(self, f"stage{level}", nn.Sequential(*blocks))
        for level in range(1, 5):
            inc, outc, skip = cs[level + 3], cs[level + 4], cs[4 - level]
            blocks = nn.Sequential(ResidualBlock(outc + skip, outc), ResidualBlock(outc, outc))
            setattr(self, f"up{level}", nn.ModuleList([ConvolutionBlock(inc, outc, 2, 2, transposed=True), blocks]))
        self.classifier = nn.Sequential(nn.Linear(cs[8], num_classes))
        self.point_transforms = nn.ModuleList(
            nn.Sequential(nn.Linear(inc, outc), nn.BatchNorm1d(outc), nn.ReLU(True))
            for inc, outc in ((cs[0], cs[4]), (cs[4], cs[6]), (cs[6], cs[8]))
        )
        self.dropout = nn.Dropout(0.3, True)

    def forward(self, x):
        z = PointTensor(x.F, x.C.float())
        x0 = self.stem(initial_voxelize(z, self.pres, self.vres))
        z0 = voxel_to_point(x0, z)
        x1 = self.stage1(point_to_voxel(x0, z0))
        x2 = self.stage2(x1)
        x3 = self.stage3(x2)
        x4 = self.stage4(x3)
        z1 = voxel_to_point(x4, z0)
        z1.F = z1.F + self.point_transforms[0](z0.F)
        y = point_to_voxel(x4, z1)
        y.F = self.dropout(y.F)
        y = self.up1[1](torchsparse.cat([self.up1[0](y), x3]))
        y = self.up2[1](torchsparse.cat([self.up2[0](y), x2]))
        z2 = voxel_to_point(y, z1)
        z2.F = z2.F + self.point_transforms[1](z1.F)
        y = point_to_voxel(y, z2)
        y.F = self.dropout(y.F)
        y = self.up3[1](torchsparse.cat([self.up3[0](y), x1]))
        y = self.up4[1](torchsparse.cat([self.up4[0](y), x0]))
        z3 = voxel_to_point(y, z2)
        z3.F = z3.F + self.point_transforms[2](z2.F)
        return self.classifier(z3.F)


def sample(random, radius):
    points = random.normal(size=(90, 3))
    points = (points * radius / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    block = np.concatenate([points, random.random((90, 1), dtype=np.float32)], 1)
    voxels, index = sparse_quantize(points - points.min(0), 0.05, return_index=True)
    labels = torch.tensor(points[index, 2] > 0).long()
    feats = torch.tensor(block[index], dtype=torch.float)
    return {"input": SparseTensor(feats, torch.tensor(voxels)), "label": SparseTensor(labels, torch.tensor(voxels))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    batch = sparse_collate_fn([sample(random, 0.4), sample(random, 0.5)])
    inputs, labels = batch["input"].to(args.device), batch["label"].feats.to(args.device)
    net = SPVCNN(num_classes=2, cr=0.125).to(args.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(args.steps):
        loss = nn.functional.cross_entropy(net(SparseTensor(inputs.F, inputs.C)), labels)
        print(f"loss {loss.item():.6f}")
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
        optimizer.step()
    return net


if __name__ == "__main__":
    trained = main()

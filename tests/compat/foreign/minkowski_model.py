"""MinkUNet written for MinkowskiEngine without any reference to pointgrad.

Trains it for a few steps on random surfaces and prints the loss before each step.
"""

import argparse

import MinkowskiEngine as ME
import numpy as np
import torch
from MinkowskiEngine.modules.resnet_block import BasicBlock
from torch import nn


class MinkUNet(ME.MinkowskiNetwork):
    """U-Net with five levels and residual blocks."""

    PLANES = (8, 16, 32, 64, 64, 32, 24, 24)
    LAYERS = (2, 2, 2, 2, 2, 2, 2, 2)
    INIT_DIM = 8

    def __init__(self, in_channels, out_channels, D=3):
        super().__init__(D)
        self.inplanes = self.INIT_DIM
        self.conv0p1s1 = ME.MinkowskiConvolution(in_channels, self.inplanes, kernel_size=5, dimension=D)
        self.bn0 = ME.MinkowskiBatchNorm(self.inplanes)
        skips = [self.inplanes]
        for level in range(4):
            width = self.inplanes
            conv = ME.MinkowskiConvolution(width, width, kernel_size=2, stride=2, dimension=D)
            setattr(self, f"conv{level + 1}p{2**level}s2", conv)
            setattr(self, f"bn{level + 1}", ME.MinkowskiBatchNorm(width))
            setattr(self, f"block{level + 1}", self.make_layer(self.PLANES[level], self.LAYERS[level]))
            skips.append(self.inplanes)
        skips.pop()
        for level in range(4, 8):
            width = self.PLANES[level]
            conv = ME.MinkowskiConvolutionTranspose(self.inplanes, width, kernel_size=2, stride=2, dimension=D)
            setattr(self, f"convtr{level}p{2 ** (8 - level)}s2", conv)
            setattr(self, f"bntr{level}", ME.MinkowskiBatchNorm(width))
            self.inplanes = width + skips.pop()
            setattr(self, f"block{level + 1}", self.make_layer(width, self.LAYERS[level]))
        self.final = ME.MinkowskiConvolution(self.inplanes, out_channels, kernel_size=1, bias=True, dimension=D)
        self.relu = ME.MinkowskiReLU(inplace=True)
        for module in self.modules():
            if isinstance(module, ME.MinkowskiConvolution):
                ME.utils.kaiming_normal_(module.kernel, mode="fan_out", nonlinearity="relu")
            if isinstance(module, ME.MinkowskiBatchNorm):
                nn.init.constant_(module.bn.weight, 1)
                nn.init.constant_(module.bn.bias, 0)

    def make_layer(self, planes, blocks):
        downsample = None
        if self.inplanes != planes * BasicBlock.expansion:
            downsample = nn.Sequential(
                ME.MinkowskiConvolution(self.inplanes, planes, kernel_size=1, stride=1, dimension=self.D),
                ME.MinkowskiBatchNorm(planes),
            )
        layers = [BasicBlock(self.inplanes, planes, downsample=downsample, dimension=self.D)]
        self.inplanes = planes * BasicBlock.expansion
        layers += [BasicBlock(self.inplanes, planes, stride=1, dilation=1, dimension=self.D) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def forward(self, x):
        out = self.relu(self.bn0(self.conv0p1s1(x)))
        skips = []
        for level in range(1, 5):
            skips.append(out)
            conv, bn = getattr(self, f"conv{level}p{2 ** (level - 1)}s2"), getattr(self, f"bn{level}")
            out = getattr(self, f"block{level}")(self.relu(bn(conv(out))))
        for level in range(4, 8):
            conv, bn = getattr(self, f"convtr{level}p{2 ** (8 - level)}s2"), getattr(self, f"bntr{level}")
            out = ME.cat(self.relu(bn(conv(out))), skips.pop())
            out = getattr(self, f"block{level + 1}")(out)
        return self.final(out)


def scenes(count):
    """Coordinates, features and labels of noisy spheres."""
    random = np.random.default_rng(0)
    samples = []
    for number in range(count):
        points = random.normal(size=(90, 3))
        points *= (0.4 + 0.1 * number) / np.linalg.norm(points, axis=1, keepdims=True)
        labels = (points[:, 2] > 0).astype(np.int32)
        features = points.astype(np.float32)
        samples.append(ME.utils.sparse_quantize(points, features, labels, quantization_size=0.05))
    return ME.utils.sparse_collate(*zip(*samples, strict=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    coords, feats, labels = scenes(2)
    labels = labels.long().to(args.device)
    net = MinkUNet(3, 2).to(args.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    for _ in range(args.steps):
        field = ME.TensorField(feats, coords, device=args.device)
        out = net(field.sparse()).slice(field)
        loss = criterion(out.F, labels)
        print(f"loss {loss.item():.6f}")
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
        optimizer.step()
    return net, coords, feats


if __name__ == "__main__":
    trained, coords, feats = main()

"""Rasterization of projected points: round dots with depth test and eye-dome lighting."""

import math

import numpy as np
import torch
from torch import Tensor

from pointgrad.render.camera import Seen

FINE = 2  # supersampling factor along both sides
STEP = 1.3  # ratio of consecutive dot sizes, to which sizes are rounded
EMPTY = torch.iinfo(torch.int64).max
COLOR = 24  # bits of a color; the bits above hold the depth
FAR = 1e30  # depth of empty pixels
RINGS = ((1.0, 0.45), (3.0, 0.35))  # distances in pixels at which depth is compared, and maximum darkening of each


class Canvas:
    """An image to which dots are added. The result does not depend on their order.

    A pixel is one number with depth in the upper bits and color in the lower ones. The minimum is the nearest dot, and
    ties are resolved by color.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width * FINE, height * FINE
        self._layers: dict[float, Tensor] = {}  # one layer per dot radius; dots are drawn at the end

    def add(self, seen: Seen, colors: np.ndarray, radius: float, distance: float) -> None:
        """Add dots with colors (N, 3), uint8. `radius` is in pixels, for dots at `distance` from the camera."""
        if not len(colors):
            return
        column = (seen.across * FINE).long().clamp(0, self.width - 1)
        row = (seen.down * FINE).long().clamp(0, self.height - 1)
        red, green, blue = torch.from_numpy(colors).long().unbind(1)
        depth = seen.depth.contiguous().view(torch.int32).long()  # bits of positive floats sort like the floats
        keys = depth << COLOR | red << 16 | green << 8 | blue
        pixel = row * self.width + column
        level = ((distance / seen.depth).log() / math.log(STEP)).round().int()
        for number in range(int(level.min()), int(level.max()) + 1):
            chosen = level == number
            size = max(round(4 * FINE * radius * STEP**number) / 4, 0.5)  # rounding merges small sizes
            if size not in self._layers:
                self._layers[size] = torch.full((self.height * self.width,), EMPTY)
            self._layers[size].scatter_reduce_(0, pixel[chosen], keys[chosen], "amin")

    def image(self, softness: float) -> np.ndarray:
        """Return the image (height, width, 4), float32 from 0 to 1: colors multiplied by opacity, and opacity.

        `softness` is the difference of depth that gives the maximum darkening.
        """
        front = torch.full((self.height, self.width), EMPTY)
        for radius, layer in self._layers.items():
            _spread(layer.view(self.height, self.width), radius, front)
        filled = front < EMPTY
        depth = torch.where(filled, (front >> COLOR).int().view(torch.float32) / softness, FAR)
        light = _light(depth).mul_(filled)
        image = torch.empty(4, self.height, self.width)
        for part, shift in zip(image, (16, 8, 0), strict=False):
            torch.mul((front >> shift).to(torch.uint8), light, out=part)
        image[:3] /= 255
        image[3] = filled
        return torch.nn.functional.avg_pool2d(image, FINE).permute(1, 2, 0).numpy()


def _spread(layer: Tensor, radius: float, front: Tensor) -> None:
    """Draw every pixel of a layer as a disc into `front`, with depth test.

    The rows of a disc have few distinct lengths. For each, a minimum along rows is widened step by step.
    """
    reach = int(radius)
    lengths = [int(math.sqrt(radius**2 - y**2)) for y in range(reach + 1)]
    rows = layer.clone() if reach else layer
    for length in range(reach + 1):
        if length:
            torch.minimum(rows[:, length:], layer[:, :-length], out=rows[:, length:])
            torch.minimum(rows[:, :-length], layer[:, length:], out=rows[:, :-length])
        for y in (y for y in range(reach + 1) if lengths[y] == length):
            torch.minimum(front[y:], rows[: len(rows) - y], out=front[y:])
            if y:
                torch.minimum(front[:-y], rows[y:], out=front[:-y])


def _light(depth: Tensor) -> Tensor:
    """Eye-dome lighting: darken a pixel if the pixels around it are nearer, to show edges and cavities."""
    light = torch.ones_like(depth)
    height, width = depth.shape
    for distance, strength in RINGS:
        step = round(distance * FINE)
        darkness = torch.zeros_like(depth)
        for y, x in ((0, step), (step, 0), (step, step), (step, -step)):
            above = (slice(0, height - y), slice(max(-x, 0), width - max(x, 0)))
            below = (slice(y, height), slice(max(x, 0), width - max(-x, 0)))
            rise = depth[below] - depth[above]
            darkness[below] += rise.clamp(0, 1)
            darkness[above] -= rise.clamp_(-1, 0)
        light -= darkness.div_(4).clamp_(max=1).mul_(light).mul_(strength)
    return light

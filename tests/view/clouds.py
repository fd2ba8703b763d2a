"""Clouds for the tests of the viewer."""

import torch

from pointgrad import data
from tests.support.scenes import scene


def uneven(count=4000, nan=0):
    points = scene(count) + torch.tensor([5e6, 5e6, 0])
    points[:nan] = torch.nan
    labels = torch.arange(count) % 5 - 1
    features = {"number": torch.arange(count), "normal": torch.rand(count, 3), "row": torch.rand(count)}
    return data.Cloud(points, features, labels, source="uneven")


def in_chunks(cloud, size=700):
    return lambda: [cloud.select(rows) for rows in torch.arange(len(cloud)).split(size)]

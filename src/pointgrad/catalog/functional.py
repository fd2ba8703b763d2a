"""Elementary operators of pointgrad.functional, which are plain PyTorch with a backward of their own."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pointgrad import functional

from .base import Build, OpInfo, Precision
from .inputs import Make


def elementary(name: str, grads: tuple[str, ...], plain: Callable[..., Any], build: Build) -> OpInfo:
    return OpInfo(name, getattr(functional, name), (), grads, plain, registered=False, precision=[Precision(build)])


NORM = ("input", "weight", "bias")


def affine(m: Make, channels: int) -> dict[str, Tensor]:
    return {"weight": m.floats(channels), "bias": m.floats(channels)}


def running(m: Make, channels: int) -> dict[str, Tensor]:
    return {"running_mean": m.floats(channels), "running_var": m.positive(channels)}


OPERATORS = [
    elementary("softmax", ("input",), F.softmax, lambda m: {"input": m.floats(m.rows, 20), "dim": 1}),
    elementary("log_softmax", ("input",), F.log_softmax, lambda m: {"input": m.floats(m.rows, 20), "dim": 1}),
    elementary("log", ("input",), torch.log, lambda m: {"input": m.positive(m.rows, 20)}),
    elementary("relu", ("input",), F.relu, lambda m: {"input": m.floats(m.rows, 20)}),
    elementary("mean", ("input",), torch.mean, lambda m: {"input": m.floats(m.rows, 20), "dim": 0}),
    OpInfo(
        "cat", functional.cat, (), ("a", "b"), torch.cat, registered=False,
        precision=[Precision(lambda m: {"a": m.floats(m.rows, 3), "b": m.floats(m.rows, 4)}, call=lambda a, b: functional.cat([a, b], 1), plain=lambda a, b: torch.cat([a, b], 1))],
    ),
    elementary("linear", ("input", "weight", "bias"), F.linear, lambda m: {"input": m.floats(m.rows, 64), "weight": m.floats(16, 64), "bias": m.floats(16)}),
    elementary("group_norm", NORM, F.group_norm, lambda m: {"input": m.floats(m.rows, 8, 5), "num_groups": 2, **affine(m, 8)}),
    elementary("layer_norm", NORM, F.layer_norm, lambda m: {"input": m.floats(m.rows, 20), "normalized_shape": (20,), **affine(m, 20)}),
    elementary("batch_norm", NORM, F.batch_norm, lambda m: {"input": m.floats(m.rows, 8, 5), **running(m, 8), **affine(m, 8), "training": True}),
    OpInfo(
        "batch_norm, evaluation", functional.batch_norm, (), NORM, F.batch_norm, registered=False,
        precision=[Precision(lambda m: {"input": m.floats(m.rows, 8, 5), **running(m, 8), **affine(m, 8)})],
    ),
    elementary("cosine_similarity", ("x1", "x2"), F.cosine_similarity, lambda m: {"x1": m.floats(m.rows, 20), "x2": m.floats(m.rows, 20)}),
]  # fmt: skip

"""Elementary operators of pointgrad.functional, which are plain PyTorch with a backward of their own."""

import torch
import torch.nn.functional as F

from pointgrad import functional

from .base import OpInfo, Precision
from .inputs import Make
from .magnitudes import Arguments


def rows(m: Make) -> Arguments:
    return {"input": m.floats(m.rows, 20)}


OPERATORS = [
    OpInfo(
        "softmax", functional.softmax, (), ("input",), F.softmax, registered=False,
        precision=[Precision(lambda m: {**rows(m), "dim": 1})],
    ),
    OpInfo(
        "log_softmax", functional.log_softmax, (), ("input",), F.log_softmax, registered=False,
        precision=[Precision(lambda m: {**rows(m), "dim": 1})],
    ),
    OpInfo(
        "log", functional.log, (), ("input",), torch.log, registered=False,
        precision=[Precision(lambda m: {"input": m.positive(m.rows, 20)})],
    ),
    OpInfo("relu", functional.relu, (), ("input",), F.relu, registered=False, precision=[Precision(rows)]),
    OpInfo(
        "mean", functional.mean, (), ("input",), torch.mean, registered=False,
        precision=[Precision(lambda m: {**rows(m), "dim": 0})],
    ),
    OpInfo(
        "cat", functional.cat, (), ("a", "b"), torch.cat, registered=False,
        precision=[
            Precision(
                lambda m: {"a": m.floats(m.rows, 3), "b": m.floats(m.rows, 4)},
                call=lambda a, b: functional.cat([a, b], 1), plain=lambda a, b: torch.cat([a, b], 1),
            ),
        ],
    ),
    OpInfo(
        "linear", functional.linear, (), ("input", "weight", "bias"), F.linear, registered=False,
        precision=[Precision(lambda m: {"input": m.floats(m.rows, 64), "weight": m.floats(16, 64), "bias": m.floats(16)})],
    ),
    OpInfo(
        "cosine_similarity", functional.cosine_similarity, (), ("x1", "x2"), F.cosine_similarity, registered=False,
        precision=[Precision(lambda m: {"x1": m.floats(m.rows, 20), "x2": m.floats(m.rows, 20)})],
    ),
]  # fmt: skip

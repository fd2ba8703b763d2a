"""Copying rows by index, and adding their gradients back."""

import torch

import pointgrad
from benchmarks.harness import Row
from pointgrad.ops.gather.register import gather_backward


def rows(device: str) -> list[Row]:
    num_rows, picks, channels = 100_000, 1_600_000, 64
    features = torch.randn(num_rows, channels, device=device)
    index = torch.randint(0, num_rows, (picks // 16, 16), device=device)
    flat = index.view(-1)
    grad = torch.randn(picks // 16, 16, channels, device=device)

    def check_forward() -> None:
        assert torch.equal(pointgrad.group(features, index), features[index])

    def check_backward() -> None:
        truth = torch.zeros(num_rows, channels, dtype=torch.float64, device=device)
        truth.index_add_(0, flat, grad.view(-1, channels).double())
        assert (gather_backward(grad, index, num_rows, False) - truth).norm() < 1e-6 * truth.norm()

    gpu = device == "cuda"
    return [
        Row(
            "group 100k x 16 x 64 forward",
            check_forward,
            lambda: pointgrad.group(features, index),
            {"index_select": lambda: features.index_select(0, flat), "indexing": lambda: features[index]},
            at_least=None if gpu else 3.0,
            at_most=0.16 if gpu else None,
            against="index_select",
            moved=4 * channels * (picks + num_rows) + 8 * picks,
        ),
        Row(
            "group 100k x 16 x 64 backward",
            check_backward,
            lambda: gather_backward(grad, index, num_rows, False),
            {"index_add": lambda: torch.zeros_like(features).index_add_(0, flat, grad.view(-1, channels))},
            at_least=None if gpu else 3.0,
            at_most=0.25 if gpu else None,
            moved=4 * channels * (picks + num_rows) + 8 * picks,
        ),
    ]

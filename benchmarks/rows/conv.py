"""Windows of images, beside PyTorch's own operators of the same names.

PyTorch convolves without columns (oneDNN, cuDNN), and on a GPU by default in TF32, which ours leaves to
`torch.backends.cuda.matmul`; its other form, in full float32, is measured as well.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pointgrad
from benchmarks.harness import Row
from pointgrad.functional import max_pool2d


def close(received: Tensor, expected: Tensor) -> None:
    assert (received - expected).norm() <= 1e-5 * expected.norm()


def rows(device: str) -> list[Row]:
    gpu = device == "cuda"
    images, channels, side = (32, 64, 56) if gpu else (4, 64, 56)
    image = torch.randn(images, channels, side, side, device=device)
    weight = torch.randn(channels, channels, 3, 3, device=device)
    columns = torch.randn(images, channels * 9, side * side, device=device)
    size, work = (side, side), f"{images} x {channels} x {side}^2"

    def check_unfold() -> None:
        assert torch.equal(pointgrad.unfold(image, 3, padding=1), F.unfold(image, 3, padding=1))

    def check_fold() -> None:
        close(pointgrad.fold(columns, size, 3, padding=1), F.fold(columns.double(), size, 3, padding=1))

    def check_pool() -> None:
        received = max_pool2d(image, 3, 2, 1, return_indices=True)
        expected = F.max_pool2d(image, 3, 2, 1, return_indices=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(received, expected, strict=True))

    moved = 4 * (image.numel() + columns.numel())
    return [
        Row(
            f"unfold {work}, kernel 3",
            check_unfold,
            lambda: pointgrad.unfold(image, 3, padding=1),
            {"F.unfold": lambda: F.unfold(image, 3, padding=1)},
            moved=moved,
        ),
        Row(
            f"fold {work}, kernel 3",
            check_fold,
            lambda: pointgrad.fold(columns, size, 3, padding=1),
            {"F.fold": lambda: F.fold(columns, size, 3, padding=1)},
            moved=moved,
        ),
        *convolutions(f"conv2d {work}, kernel 3", image, weight, {"padding": 1}),
        *convolutions(f"conv2d {work}, kernel 3, depthwise", image, weight[:, :1], {"padding": 1, "groups": channels}),
        Row(
            f"max_pool2d {work}, kernel 3, stride 2",
            check_pool,
            lambda: max_pool2d(image, 3, 2, 1),
            {"F.max_pool2d": lambda: F.max_pool2d(image, 3, 2, 1)},
        ),
        backward_row(
            f"max_pool2d {work}, kernel 3, stride 2, backward",
            lambda x: max_pool2d(x, 3, 2, 1),
            {"F.max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1)},
            (image,),
        ),
    ]


def convolutions(name: str, image: Tensor, weight: Tensor, settings: dict[str, Any]) -> list[Row]:
    def ours(x: Tensor, w: Tensor) -> Tensor:
        return pointgrad.conv2d(x, w, **settings)

    def theirs(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, **settings)

    def in_full_precision(x: Tensor, w: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return F.conv2d(x, w, **settings)

    def check() -> None:
        close(ours(image, weight), F.conv2d(image.double(), weight.double(), **settings))

    gpu = image.is_cuda
    peers = {"F.conv2d, TF32": theirs, "F.conv2d": in_full_precision} if gpu else {"F.conv2d": theirs}
    calls = {peer: lambda call=call: call(image, weight) for peer, call in peers.items()}
    return [
        Row(name, check, lambda: ours(image, weight), calls, against="F.conv2d"),
        # Backward runs outside of the block that asks for full precision, so on a GPU it is TF32's.
        backward_row(f"{name}, backward", ours, {"F.conv2d, TF32" if gpu else "F.conv2d": theirs}, (image, weight)),
    ]


def backward_row(
    name: str, ours: Callable[..., Tensor], peers: dict[str, Callable[..., Tensor]], inputs: tuple[Tensor, ...]
) -> Row:
    sources = [value.detach().requires_grad_() for value in inputs]
    outputs = {"ours": ours(*sources)} | {peer: call(*sources) for peer, call in peers.items()}
    upstream = torch.randn_like(outputs["ours"])

    def back(name: str) -> Callable[[], tuple[Tensor, ...]]:
        return lambda: torch.autograd.grad(outputs[name], sources, upstream, retain_graph=True)

    def check() -> None:
        exact = next(iter(peers.values()))(*(source.double() for source in sources))
        truth = torch.autograd.grad(exact, sources, upstream.double())
        for received, expected in zip(back("ours")(), truth, strict=True):
            close(received, expected)

    return Row(name, check, back("ours"), {peer: back(peer) for peer in peers})

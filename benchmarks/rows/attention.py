"""Attention over lists of neighbours, against the forms that build the neighbourhoods."""

from collections.abc import Callable

import torch
from torch import Tensor

import pointgrad
from benchmarks.harness import Row

Form = Callable[..., Tensor]


def aggregate_unfused(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    """Index, multiply, sum; -1 must not occur."""
    if index.dim() == 2:
        return (weights.unsqueeze(-1) * values[index]).sum(-2)
    cloud = torch.arange(len(index), device=index.device)[:, None, None]
    return (weights.unsqueeze(-1) * values[cloud, index]).sum(-2)


def attention_unfused(query: Tensor, key: Tensor, value: Tensor, index: Tensor) -> Tensor:
    """Index, dot products, softmax, index, sum; -1 must not occur."""
    logits = (query.unsqueeze(1) * key[index]).sum(-1) * query.shape[-1] ** -0.5
    return (torch.softmax(logits, 1).unsqueeze(-1) * value[index]).sum(1)


def _backward(form: Form, arguments: tuple[Tensor, ...], sources: tuple[Tensor, ...]) -> Callable[[], object]:
    output = form(*arguments)
    upstream = torch.ones_like(output)
    return lambda: torch.autograd.grad(output, sources, upstream, retain_graph=True)


def _both(form: Form, arguments: tuple[Tensor, ...], sources: tuple[Tensor, ...]) -> Callable[[], object]:
    upstream = torch.ones_like(form(*arguments))
    return lambda: torch.autograd.grad(form(*arguments), sources, upstream)


def _check(ours: Form, plain: Form, arguments: tuple[Tensor, ...], sources: tuple[Tensor, ...]) -> Callable[[], None]:
    def check() -> None:
        mine, exact = ours(*arguments), plain(*arguments)
        upstream = torch.randn_like(exact)
        assert (mine - exact).norm() < 1e-5 * exact.norm()
        truth = torch.autograd.grad(exact, sources, upstream)
        for received, expected in zip(torch.autograd.grad(mine, sources, upstream), truth, strict=True):
            assert (received - expected).norm() < 1e-4 * expected.norm()

    return check


def rows(device: str) -> list[Row]:
    gpu = device == "cuda"
    size, count, heads, depth = (100_000 if gpu else 10_000), 16, 8, 16
    index = torch.randint(0, size, (size, count), device=device)
    weights = torch.rand(size, count, device=device, requires_grad=True)
    values = torch.randn(size, heads * depth, device=device, requires_grad=True)
    query, key, value = (torch.randn(size, heads, depth, device=device, requires_grad=True) for _ in range(3))
    rows = []
    for name, ours, plain, arguments in (
        ("aggregate", pointgrad.aggregate, aggregate_unfused, (weights, values, index)),
        ("attention", pointgrad.neighbor_attention, attention_unfused, (query, key, value, index)),
    ):
        sources = arguments[:-1]
        rows.append(
            Row(
                f"{name} {size // 1000}k x 16 x 128 forward + backward",
                _check(ours, plain, arguments, sources),
                _both(ours, arguments, sources),
                {"PyTorch": _both(plain, arguments, sources)},
                at_least=3.0,
                memory_at_least=4.0 if gpu else None,
            )
        )
    batch = 16 if gpu else 2
    index = torch.randint(0, 1024, (batch, 4096, 3), device=device)
    weights = torch.rand(batch, 4096, 3, device=device, requires_grad=True)
    values = torch.randn(batch, 1024, 256, device=device, requires_grad=True)
    arguments, sources = (weights, values, index), (weights, values)
    check = _check(pointgrad.aggregate, aggregate_unfused, arguments, sources)
    fixed = tuple(tensor.detach() for tensor in arguments)
    rows.append(
        Row(
            f"aggregate {batch} x 4096 of 3 among 1024 x 256 forward",
            check,
            lambda: pointgrad.aggregate(*fixed),
            {"PyTorch": lambda: aggregate_unfused(*fixed)},
            at_most=0.15 if gpu else None,
        )
    )
    rows.append(
        Row(
            f"aggregate {batch} x 4096 of 3 among 1024 x 256 backward",
            check,
            _backward(pointgrad.aggregate, arguments, sources),
            {"PyTorch": _backward(aggregate_unfused, arguments, sources)},
            at_most=0.3 if gpu else None,
        )
    )
    return rows

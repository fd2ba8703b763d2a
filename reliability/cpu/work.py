"""Calls that `concurrency.py` makes in threads and processes, whose results are compared bit for bit."""

import hashlib
import os
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog import FAMILIES, Case, Make

_generator = threading.RLock()  # torch's generator is shared by all threads
# The thread that holds the lock may not exist in a forked child.
os.register_at_fork(before=_generator.acquire, after_in_parent=_generator.release, after_in_child=_generator.release)


def _digest(tensors: list[Tensor]) -> str:
    """A hash of dtype, shape and bits for each tensor."""
    digests = []
    for tensor in tensors:
        summary = hashlib.blake2b(str((tensor.dtype, tuple(tensor.shape))).encode(), digest_size=8)
        summary.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
        digests.append(summary.hexdigest())
    return " ".join(digests)


@dataclass
class Work:
    """One call and its gradients."""

    name: str
    case: Case
    arguments: dict[str, Any]

    def digest(self) -> str:
        if self.case.sample.seeded:
            with _generator:
                return self._digest()
        return self._digest()

    def _digest(self) -> str:
        return _digest(self.case.with_gradients(self.arguments))


def families(most: int) -> list[list[Work]]:
    """At most `most` calls per family: samples with work for several threads, or the first of an operator without."""
    found = []
    for operators in FAMILIES.values():
        cases = [case for op in operators for case in op.cases()]
        has_large = {case.op.name for case in cases if case.sample.large}
        chosen = [case for case in cases if case.sample.large or case.op.name not in has_large]
        firsts = {case.op.name: case for case in reversed(chosen)}
        chosen = [case for case in chosen if case.sample.large or case is firsts[case.op.name]]
        works = []
        for case in chosen[:most]:
            torch.manual_seed(0)
            works.append(Work(case.name, case, (case.sample.large or case.sample.build)(Make())))
        found += [works] if works else []
    return found


def network(seed: int, layers: int = 3) -> tuple[Tensor, list[Tensor]]:
    """A deep graph with operators of most families, and its inputs."""
    random = torch.Generator().manual_seed(seed)
    points = torch.rand(2, 700, 3, generator=random).requires_grad_()
    features = torch.rand(2, 700, 16, generator=random).requires_grad_()
    index = pointgrad.knn(points, 8).index
    x = features
    for _ in range(layers):
        heads = x.reshape(2, 700, 2, 8)
        x = x + pointgrad.neighbor_attention(heads, heads, heads, index).flatten(2)
        picked = pointgrad.farthest_point_sampling(points, 150)
        centers = pointgrad.gather(points, picked)
        found = pointgrad.knn(points, 8, centers)
        pooled = pointgrad.group(x, found.index).amax(2) + found.distance2.mean(-1, keepdim=True)
        x = torch.tanh(x + pointgrad.interpolate(pooled, centers, points))
    return pointgrad.scatter(x, index[..., 0], 700, "mean"), [points, features]


def backward_of_a_network(output: Tensor, inputs: list[Tensor]) -> str:
    return _digest(list(torch.autograd.grad(output.square().sum(), inputs, retain_graph=True)))


class _Nested(torch.autograd.Function):
    """A function whose backward runs another backward pass, nested `depth` times."""

    @staticmethod
    def forward(ctx, features, index, depth):
        ctx.save_for_backward(features, index)
        ctx.depth = depth
        return pointgrad.gather(features, index)

    @staticmethod
    def backward(ctx, grad):
        features, index = ctx.saved_tensors
        with torch.enable_grad():
            inner = features.detach().requires_grad_()
            output = _Nested.apply(inner, index, ctx.depth - 1) if ctx.depth else pointgrad.gather(inner, index)
            (again,) = torch.autograd.grad(output, inner, grad)
        return again, None, None


def deep_backward(depth: int = 70) -> str:
    """Backward passes nested so deeply (60 or more) that torch runs the inner ones in autograd's own threads."""
    features = torch.linspace(0, 1, 4000 * 32).reshape(4000, 32).requires_grad_()
    index = torch.arange(30000).remainder(4001) - 1
    output = _Nested.apply(features, index, depth)
    return _digest(list(torch.autograd.grad(output.square().sum(), features)))

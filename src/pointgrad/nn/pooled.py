"""Batch norm, activation and linear layers over lists of neighbours, then the maximum of each list: a training step
on the CPU that passes over large tensors as seldom as it can.

`(E, C)` rows for all pairs of a centre and a neighbour are by far the largest tensors of a network, and every pass
over them costs as much as a matrix product: memory is slow, and fresh memory slower. Plain layers write six such
tensors per layer, forward and backward. Here:

- Rows are taken in blocks that stay in the cache. Only the outputs of linear layers are kept: what lies between two of
  them is computed again where it is needed, block by block.
- The last norm and activation rise or fall with their input, so the maximum is taken before them: they then see one
  row per centre. The gradient of that layer has one entry per centre and channel, and is never written as rows.
- A neighbour that stands for several (a list that repeats its first) is one row with a weight in the statistics.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.shared_mlp import SharedMLP, is_plain
from pointgrad.ops.scatter import segment

BLOCK = 2**19  # numbers in a block of rows: two megabytes of float32. Smaller ones wait for threads too often.


def applies(mlp: SharedMLP) -> bool:
    """Whether the short way does what the layers of `mlp` would do one after another, and nobody looks at them."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    norms = all(is_plain(norm, nn.BatchNorm1d) and norm.training and norm.affine for norm in mlp.norms)
    linears = all(is_plain(linear, nn.Linear) and linear.bias is None for linear in mlp.linears)
    active = is_plain(mlp.activation, nn.ReLU) or is_plain(mlp.activation, nn.LeakyReLU)
    return norms and linears and active and mlp.last != "linear"


def pooled_mlp(mlp: SharedMLP, rows: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    """All of `mlp` after its first linear layer, and the maximum of each list.

    rows: (E, C), the first linear layer's output; list s is `rows[offsets[s]:offsets[s + 1]]`.
    weights: (E,) how many equal rows each stands for in batch statistics; None: itself only.
    returns: (S, out_channels), 0 for an empty list.
    """
    norms: list[Any] = list(mlp.norms)
    slope = mlp.activation.negative_slope if isinstance(mlp.activation, nn.LeakyReLU) else 0.0
    slopes = [slope] * (len(norms) - 1) + [slope if mlp.last == "full" else 1.0]
    parameters = [linear.weight for linear in mlp.linears[1:]]
    parameters += [p for norm in norms for p in (norm.weight, norm.bias)]
    total = float(rows.shape[0]) if weights is None else float(weights.sum())
    if total <= 1:
        raise ValueError(f"batch norm in training must have more than one row, got {int(total)}")
    out, *moments = _PooledMLP.apply(rows, offsets, weights, total, slopes, [norm.eps for norm in norms], *parameters)
    for norm, mean, variance in zip(norms, moments[: len(norms)], moments[len(norms) :], strict=True):
        update_statistics(norm, mean, variance * (total / (total - 1)))
    return out


def update_statistics(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor) -> None:
    """Running statistics, as `torch.nn.BatchNorm1d` keeps them."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        share = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
        norm.running_var.lerp_(variance.to(norm.running_var.dtype), share)


def plain(
    rows: Tensor, offsets: Tensor, weights: Tensor | None, total: float, slopes: Sequence[float], eps: Sequence[float],
    *parameters: Tensor,
) -> Tensor:  # fmt: skip
    """The same by the book, differentiable to any order: what the blocks below compute."""
    linears, gains, shifts = _split(parameters, len(eps))
    share = torch.full_like(rows[:, :1], 1 / total) if weights is None else (weights / total).unsqueeze(1)
    for layer in range(len(eps)):
        if layer:
            rows = functional.linear(rows, linears[layer - 1])
        mean = (share * rows).sum(0)
        variance = (share * (rows - mean).square()).sum(0)
        rows = (rows - mean) * (variance + eps[layer]).rsqrt() * gains[layer] + shifts[layer]
        rows = functional.leaky_relu(rows, slopes[layer])
    return segment(rows, offsets, "max")


class _PooledMLP(torch.autograd.Function):
    """Outputs: the maxima, then mean and variance (biased) of each layer."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, offsets: Tensor, weights: Tensor | None, total: float, slopes: Sequence[float],
        eps: Sequence[float], *parameters: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        linears, gains, shifts = _split(parameters, len(eps))
        blocks = blocks_of(offsets, max(gain.shape[0] for gain in gains))
        blocks = [block for block in blocks if block.rows.stop > block.rows.start]
        work = _Workspace(blocks, rows)
        sign = torch.where(gains[-1] < 0, -1.0, 1.0).to(rows.dtype)  # a falling norm has its maximum at the minimum
        falls = bool((sign < 0).any())
        highest = rows.new_zeros(len(offsets) - 1, len(sign))
        arg = torch.full(highest.shape, -1)
        kept = [rows]
        scales: list[Tensor] = []
        biases: list[Tensor] = []
        means: list[Tensor] = []
        variances: list[Tensor] = []
        for layer in range(len(eps)):
            if layer:
                kept.append(rows.new_empty(rows.shape[0], gains[layer].shape[0]))
            sums = _Moments(kept[layer], weights)
            for block in blocks:
                here = kept[layer][block.rows]
                if layer:
                    before = kept[layer - 1][block.rows]
                    active = _activate(before, scales[-1], biases[-1], slopes[layer - 1], work.like(before))
                    torch.mm(active, linears[layer - 1].t(), out=here)
                sums.add(here, block.rows, work.like(here))
                if layer == len(eps) - 1:
                    turned = torch.mul(here, sign, out=work.like(here)) if falls else here
                    found = segment(turned, block.offsets, "max", return_arg=True)
                    highest[block.lists], arg[block.lists] = found
            mean, variance = sums.result(total)
            scales.append(gains[layer] * (variance + eps[layer]).rsqrt())
            biases.append(shifts[layer] - scales[-1] * mean)
            means.append(mean)
            variances.append(variance)
        highest.mul_(sign)
        out = _activate(highest, scales[-1], biases[-1], slopes[-1]).masked_fill_(arg < 0, 0)
        moments = [*means, *variances]
        ctx.save_for_backward(offsets, weights, out, highest, arg, *kept, *scales, *biases, *moments, *parameters)
        ctx.settings = total, slopes, eps
        ctx.blocks = blocks
        ctx.mark_non_differentiable(*moments)
        return (out, *moments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        total, slopes, eps = ctx.settings
        offsets, weights, out, highest, arg, *rest = ctx.saved_tensors
        count = len(eps)
        kept, scales, biases, means, variances = (rest[i * count : (i + 1) * count] for i in range(5))
        parameters = rest[5 * count :]
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            again = plain(kept[0], offsets, weights, total, slopes, eps, *parameters)
            first, *others = torch.autograd.grad(again, [kept[0], *parameters], grad, create_graph=True)
            return first, None, None, None, None, None, *others
        linears, gains, _shifts = _split(parameters, count)
        work, scratch = _Workspace(ctx.blocks, grad), _Workspace(ctx.blocks, grad)
        inverses = [(variance + e).rsqrt() for variance, e in zip(variances, eps, strict=True)]
        grad_linears = [torch.zeros_like(linear) for linear in linears]
        grad_gains, grad_shifts = ([torch.zeros_like(gain) for gain in gains] for _ in range(2))
        # Of the last norm's output, only where the maximum was.
        grad = _leaky_backward(grad, out, slopes[-1]).masked_fill_(arg < 0, 0)
        grad_shifts[-1] += grad.sum(0)
        grad_gains[-1] += (grad * (highest - means[-1])).sum(0) * inverses[-1]
        picked, arg = grad * scales[-1], arg.clamp(min=0)
        current: Any = torch.empty_like(kept[0]) if count == 1 else None  # of the norm's output; at last of its input
        for layer in reversed(range(count)):
            # With g the gradient of the norm's output, that of its input z is scale * g + weight * (level + tilt * z).
            tilt = -scales[layer] * inverses[layer] * grad_gains[layer] / total
            level = -scales[layer] * grad_shifts[layer] / total - tilt * means[layer]
            below = None
            if layer:  # fresh memory is slow: what is read block by block may be written over
                same = current is not None and current.shape == kept[layer - 1].shape
                below = current if same else torch.empty_like(kept[layer - 1])
            for block in ctx.blocks:
                values = kept[layer][block.rows]
                share = None if weights is None else weights[block.rows].unsqueeze(1)
                here = scratch.like(values) if layer else current[block.rows]
                if layer == count - 1:
                    torch.addcmul(level, values, tilt, out=here)
                    here = here if share is None else here.mul_(share)
                    here.scatter_add_(0, arg[block.lists], picked[block.lists])
                else:
                    spread = torch.addcmul(level, values, tilt, out=work.like(values))
                    torch.mul(current[block.rows], scales[layer], out=here)
                    here = here.add_(spread) if share is None else here.addcmul_(spread, share)
                if below is None:
                    continue
                before, flowing = kept[layer - 1][block.rows], below[block.rows]
                active = _activate(before, scales[layer - 1], biases[layer - 1], slopes[layer - 1], work.like(before))
                grad_linears[layer - 1].addmm_(here.t(), active)
                torch.mm(here, linears[layer - 1], out=flowing)
                _leaky_backward(flowing, active, slopes[layer - 1], out=flowing)
                grad_shifts[layer - 1] += flowing.sum(0)
                centered = torch.sub(before, means[layer - 1], out=work.like(before))
                grad_gains[layer - 1] += centered.mul_(flowing).sum(0) * inverses[layer - 1]
            current = current if below is None else below
        grad_norms = [part for pair in zip(grad_gains, grad_shifts, strict=True) for part in pair]
        return current, None, None, None, None, None, *grad_linears, *grad_norms


class Block(NamedTuple):
    """Some whole lists. rows, lists: where they lie. offsets: of the lists, counted from the block's first row."""

    rows: slice
    lists: slice
    offsets: Tensor


def blocks_of(offsets: Tensor, width: int) -> list[Block]:
    """All lists, in blocks of about `BLOCK` numbers if rows have `width` channels."""
    lists = offsets.shape[0] - 1
    longest = max(1, int(offsets[-1]) // max(1, lists))
    step = max(1, BLOCK // (longest * width))
    bounds = [*offsets[:-1:step].tolist(), int(offsets[-1])]
    return [
        Block(
            slice(begin, end),
            slice(i * step, min((i + 1) * step, lists)),
            offsets[i * step : (i + 1) * step + 1] - begin,
        )
        for i, (begin, end) in enumerate(pairwise(bounds))
    ]


class _Workspace:
    """Memory for one block at a time: asking for it anew for every block costs more than what is done in it."""

    def __init__(self, blocks: list[Block], like: Tensor) -> None:
        self.longest = max(block.rows.stop - block.rows.start for block in blocks)
        self.parts: dict[int, Tensor] = {}
        self.new = like.new_empty

    def like(self, rows: Tensor) -> Tensor:
        width = rows.shape[1]
        if width not in self.parts:
            self.parts[width] = self.new(self.longest, width)
        return self.parts[width][: rows.shape[0]]


class _Moments:
    """Sums over rows, relative to a row of the same size, so that a large mean hides no small variance."""

    def __init__(self, rows: Tensor, weights: Tensor | None) -> None:
        self.weights = weights
        self.origin: Tensor | None = None
        self.first = rows.new_zeros(rows.shape[1])
        self.second = rows.new_zeros(rows.shape[1])

    def add(self, block: Tensor, place: slice, work: Tensor) -> None:
        if self.origin is None:
            self.origin = block.mean(0)
        centered = torch.sub(block, self.origin, out=work)
        if self.weights is None:
            self.first += centered.sum(0)
            self.second += centered.square_().sum(0)
        else:
            share = self.weights[place]
            self.first += share @ centered
            self.second += share @ centered.square_()

    def result(self, total: float) -> tuple[Tensor, Tensor]:
        assert self.origin is not None
        first = self.first / total
        return self.origin + first, self.second / total - first.square()


def _split(parameters: Sequence[Tensor], count: int) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """Weights of linear layers, gains and shifts of norms."""
    return parameters[: count - 1], parameters[count - 1 :: 2], parameters[count::2]


def _activate(rows: Tensor, scale: Tensor, bias: Tensor, slope: float, out: Tensor | None = None) -> Tensor:
    """A norm with known statistics, and the activation."""
    return functional.leaky_relu_(torch.addcmul(bias, rows, scale, out=out), slope)


def _leaky_backward(grad: Tensor, active: Tensor, slope: float, out: Tensor | None = None) -> Tensor:
    """Through the activation, whose result has the sign of its input."""
    backward = torch.ops.aten.leaky_relu_backward
    if out is None:
        return backward(grad, active, slope, True)
    return backward.grad_input(grad, active, slope, True, grad_input=out)

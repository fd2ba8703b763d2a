"""Maximum of an MLP with batch norm over lists of neighbors, for training on the CPU with little memory traffic.

The rows `(E, C)` of all pairs of a center and a neighbor are by far the largest tensors of a network, and every pass
over them costs as much as a matrix product; newly allocated memory is slower still. Separate layers write six such
tensors per layer, forward and backward. Here:

- Rows are processed in blocks that fit into the cache. Only the outputs of linear layers are saved; everything between
  is recomputed block by block.
- The last norm and activation are monotonic in their input, so the maximum is taken before them, and they process one
  row per center. The gradient of the last layer has one entry per center and channel and is never expanded to rows.
- A repeated neighbor is a single row with a weight in the batch statistics.
- Each block is processed by one thread.
"""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.shared_mlp import SharedMLP, is_plain
from pointgrad.ops.scatter import segment

BLOCK = 2**20  # values per block: small enough for the cache, large enough to keep a thread busy


def applies(mlp: SharedMLP) -> bool:
    """Whether `pooled_mlp` can replace the layers of `mlp`: supported types, no hooks, not compiling."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    norms = all(is_plain(norm, nn.BatchNorm1d) and norm.training and norm.affine for norm in mlp.norms)
    linears = all(is_plain(linear, nn.Linear) and linear.bias is None for linear in mlp.linears)
    active = is_plain(mlp.activation, nn.ReLU) or is_plain(mlp.activation, nn.LeakyReLU)
    wide = all(linear.weight.dtype in (torch.float32, torch.float64) for linear in mlp.linears)
    return norms and linears and active and wide and mlp.last != "linear"


def pooled_mlp(mlp: SharedMLP, rows: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    """Apply everything in `mlp` after its first linear layer, and take the maximum of each list.

    Args:
        mlp: An MLP in training mode for which `applies` is True.
        rows: (E, C), the output of the first linear layer.
        offsets: (S + 1,). List s is `rows[offsets[s]:offsets[s + 1]]`.
        weights: (E,), the multiplicity of each row in batch statistics; None if all are 1.

    Returns:
        (S, out_channels), 0 for an empty list.

    Raises:
        ValueError: If there is only one row.
    """
    norms: list[Any] = list(mlp.norms)
    slope = mlp.activation.negative_slope if isinstance(mlp.activation, nn.LeakyReLU) else 0.0
    slopes = [slope] * (len(norms) - 1) + [slope if mlp.last == "full" else 1.0]
    parameters = [linear.weight for linear in mlp.linears[1:]]
    parameters += [p for norm in norms for p in (norm.weight, norm.bias)]
    total = float(rows.shape[0]) if weights is None else float(weights.sum())
    if total <= 1:
        raise ValueError(f"batch norm in training requires more than one row, got {int(total)}")
    out, *moments = _PooledMLP.apply(rows, offsets, weights, total, slopes, [norm.eps for norm in norms], *parameters)
    for norm, mean, variance in zip(norms, moments[: len(norms)], moments[len(norms) :], strict=True):
        update_statistics(norm, mean, variance * (total / (total - 1)))
    return out


def update_statistics(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor) -> None:
    """Update running statistics as `torch.nn.BatchNorm1d` does."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        momentum = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
        norm.running_var.lerp_(variance.to(norm.running_var.dtype), momentum)


def reference(
    rows: Tensor, offsets: Tensor, weights: Tensor | None, total: float, slopes: Sequence[float], eps: Sequence[float],
    *parameters: Tensor,
) -> Tensor:  # fmt: skip
    """The same computation without blocks, differentiable to any order."""
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
    """Returns the maxima, then the means, then the biased variances of all layers."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, offsets: Tensor, weights: Tensor | None, total: float, slopes: Sequence[float],
        eps: Sequence[float], *parameters: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        linears, gains, shifts = _split(parameters, len(eps))
        blocks = blocks_of(offsets, max(gain.shape[0] for gain in gains))
        blocks = [block for block in blocks if block.rows.stop > block.rows.start]
        buffers = _Buffers(blocks, rows)
        sign = torch.where(gains[-1] < 0, -1.0, 1.0).to(rows.dtype)  # a decreasing norm is largest at the minimum
        decreasing = bool((sign < 0).any())
        highest = rows.new_zeros(len(offsets) - 1, len(sign))
        arg = torch.full(highest.shape, -1)
        kept = [rows]
        scales: list[Tensor] = []
        biases: list[Tensor] = []
        means: list[Tensor] = []
        variances: list[Tensor] = []

        def run(layer: int, origin: Tensor, block: Block) -> tuple[Tensor, ...]:
            """Write the output of the layer; return the sums of values and of squares relative to an origin."""
            values = kept[layer][block.rows]
            work = buffers.like(values)
            if layer:
                before = kept[layer - 1][block.rows]
                active = _activate(before, scales[-1], biases[-1], slopes[layer - 1], buffers.like(before))
                torch.mm(active, linears[layer - 1].t(), out=values)
            if layer == len(eps) - 1:
                signed = torch.mul(values, sign, out=work) if decreasing else values
                highest[block.lists], arg[block.lists] = segment(signed, block.offsets, "max", return_arg=True)
            centered = torch.sub(values, origin, out=work)
            share = None if weights is None else weights[block.rows]
            return _sum(centered, share), _sum(centered.square_(), share)

        for layer in range(len(eps)):
            few = kept[-1][:64]
            if layer:
                kept.append(rows.new_empty(rows.shape[0], gains[layer].shape[0]))
                few = _activate(few, scales[-1], biases[-1], slopes[layer - 1]) @ linears[layer - 1].t()
            # Subtract the mean of a few rows before squaring, since a large mean would hide a small variance.
            origin = few.mean(0)
            parts = zip(*_map_blocks(functools.partial(run, layer, origin), blocks), strict=True)
            first, second = (torch.stack(column).sum(0) / total for column in parts)
            means.append(origin + first)
            variances.append(second - first.square())
            scales.append(gains[layer] * (variances[-1] + eps[layer]).rsqrt())
            biases.append(shifts[layer] - scales[-1] * means[-1])
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
        if torch.is_grad_enabled():  # double backward
            again = reference(kept[0], offsets, weights, total, slopes, eps, *parameters)
            first, *others = torch.autograd.grad(again, [kept[0], *parameters], grad, create_graph=True)
            return first, None, None, None, None, None, *others
        linears = _split(parameters, count)[0]
        buffers, scratch = _Buffers(ctx.blocks, grad), _Buffers(ctx.blocks, grad)
        inverses = [(variance + e).rsqrt() for variance, e in zip(variances, eps, strict=True)]
        grad_linears: list[Tensor] = []
        # The gradient of the output of the last norm, at the maxima only.
        grad = _leaky_backward(grad, out, slopes[-1]).masked_fill_(arg < 0, 0)
        grad_shift, grad_gain = grad.sum(0), (grad * (highest - means[-1])).sum(0) * inverses[-1]
        grad_norms = [grad_gain, grad_shift]
        picked, arg = grad * scales[-1], arg.clamp(min=0)
        # The gradient of the output of a norm; finally of the rows.
        current: Any = torch.empty_like(kept[0]) if count == 1 else None

        def run(layer: int, tilt: Tensor, level: Tensor, below: Any, block: Block) -> tuple[Tensor, ...]:
            """Compute the gradient of the output of the norm below from that of this norm.

            Returns the gradient of the linear layer between, and the sums for the parameters of the norm below. With g
            the gradient of a norm's output, that of its input z is scale * g + weight * (level + tilt * z).
            """
            values = kept[layer][block.rows]
            share = None if weights is None else weights[block.rows].unsqueeze(1)
            grad_values = scratch.like(values) if layer else current[block.rows]
            if layer == count - 1:
                torch.addcmul(level, values, tilt, out=grad_values)
                grad_values = grad_values if share is None else grad_values.mul_(share)
                grad_values.scatter_add_(0, arg[block.lists], picked[block.lists])
            else:
                spread = torch.addcmul(level, values, tilt, out=buffers.like(values))
                torch.mul(current[block.rows], scales[layer], out=grad_values)
                grad_values = grad_values.add_(spread) if share is None else grad_values.addcmul_(spread, share)
            if not layer:
                return ()
            before, grad_below = kept[layer - 1][block.rows], below[block.rows]
            active = _activate(before, scales[layer - 1], biases[layer - 1], slopes[layer - 1], buffers.like(before))
            grad_linear = grad_values.t() @ active
            torch.mm(grad_values, linears[layer - 1], out=grad_below)
            _leaky_backward(grad_below, active, slopes[layer - 1], out=grad_below)
            centered = torch.sub(before, means[layer - 1], out=buffers.like(before))
            return grad_linear, grad_below.sum(0), centered.mul_(grad_below).sum(0)

        for layer in reversed(range(count)):
            tilt = -scales[layer] * inverses[layer] * grad_norms[0] / total
            level = -scales[layer] * grad_norms[1] / total - tilt * means[layer]
            below = None
            if layer:  # reuse `current`, which is read and overwritten block by block: new memory is slow
                same = current is not None and current.shape == kept[layer - 1].shape
                below = current if same else torch.empty_like(kept[layer - 1])
            parts = _map_blocks(functools.partial(run, layer, tilt, level, below), ctx.blocks)
            if layer:
                grad_linear, grad_shift, grad_gain = (torch.stack(column).sum(0) for column in zip(*parts, strict=True))
                grad_linears.insert(0, grad_linear)
                grad_norms = [grad_gain * inverses[layer - 1], grad_shift, *grad_norms]
                current = below
        return current, None, None, None, None, None, *grad_linears, *grad_norms


class Block(NamedTuple):
    """Consecutive complete lists, with their offsets relative to the first row of the block."""

    rows: slice
    lists: slice
    offsets: Tensor


def blocks_of(offsets: Tensor, width: int) -> list[Block]:
    """Split all lists into blocks of about `BLOCK` values, for rows with `width` channels."""
    lists = offsets.shape[0] - 1
    mean_length = max(1, int(offsets[-1]) // max(1, lists))
    step = max(1, BLOCK // (mean_length * width))
    bounds = [*offsets[:-1:step].tolist(), int(offsets[-1])]
    blocks = []
    for i, (begin, end) in enumerate(pairwise(bounds)):
        last = min((i + 1) * step, lists)
        blocks.append(Block(slice(begin, end), slice(i * step, last), offsets[i * step : last + 1] - begin))
    return blocks


def _map_blocks(work: Callable[[Block], tuple[Tensor, ...]], blocks: list[Block]) -> list[tuple[Tensor, ...]]:
    """Process each block in one thread.

    With all threads on one small operation at a time, as torch does by default, they synchronize thousands of times per
    step, which is slow if other programs use the cores.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(blocks) <= 1:
        return [work(block) for block in blocks]

    def without_grad(block: Block) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return work(block)

    return list(_pool(os.getpid(), threads).map(without_grad, blocks))


@functools.cache  # per process, since a fork does not have the threads
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    """Threads that run torch operations with one thread each."""
    started = threading.Barrier(threads)

    def start() -> None:
        torch.get_num_threads()  # copies the global setting to this thread, which must happen before the next line
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(threads, "pointgrad", start)
    list(pool.map(lambda _: None, range(threads)))
    torch.set_num_threads(threads)  # restore the global setting
    return pool


class _Buffers:
    """Reusable memory for one block per width and thread; allocating it for every block would dominate the time."""

    def __init__(self, blocks: list[Block], like: Tensor) -> None:
        self.longest = max(block.rows.stop - block.rows.start for block in blocks)
        self.parts: dict[tuple[int, int], Tensor] = {}
        self.new = like.new_empty

    def like(self, rows: Tensor) -> Tensor:
        """A buffer of the shape of `rows`, shared by calls with the same width in the same thread."""
        key = threading.get_ident(), rows.shape[1]
        if key not in self.parts:
            self.parts[key] = self.new(self.longest, rows.shape[1])
        return self.parts[key][: rows.shape[0]]


def _sum(rows: Tensor, share: Tensor | None) -> Tensor:
    return rows.sum(0) if share is None else share @ rows


def _split(parameters: Sequence[Tensor], count: int) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """Split into the weights of linear layers, and the gains and shifts of norms."""
    return parameters[: count - 1], parameters[count - 1 :: 2], parameters[count::2]


def _activate(rows: Tensor, scale: Tensor, bias: Tensor, slope: float, out: Tensor | None = None) -> Tensor:
    """Apply a norm with known statistics, and the activation."""
    return functional.leaky_relu_(torch.addcmul(bias, rows, scale, out=out), slope)


def _leaky_backward(grad: Tensor, active: Tensor, slope: float, out: Tensor | None = None) -> Tensor:
    """Backward of the activation from its result, which has the sign of its input."""
    backward = torch.ops.aten.leaky_relu_backward
    if out is None:
        return backward(grad, active, slope, True)
    return backward.grad_input(grad, active, slope, True, grad_input=out)

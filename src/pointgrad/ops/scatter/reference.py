"""The operators of this family in plain PyTorch. The formulas are derived in docs/operators/scatter.md.

`values` is (E, C) with `index` (E,), or (B, E, C) with (B, E). `offsets` (S + 1,) divide rows (E, C) into segments.
"""

import torch
from torch import Tensor

from ..sums import sum_dtype


def histogram(index: Tensor, size: int) -> Tensor:
    counts = torch.zeros((*index.shape[:-1], size + 1), dtype=torch.int64, device=index.device)
    row = _row_or_last(index, size)
    return counts.scatter_add_(-1, row, torch.ones_like(row))[..., :size].clone()


def scatter_extreme(values: Tensor, index: Tensor, num_rows: int, largest: bool) -> tuple[Tensor, Tensor]:
    wide, entries = _wide(values), values.shape[-2]
    row = _row_or_last(index, num_rows).unsqueeze(-1).expand_as(values)
    extreme = wide.new_zeros((*values.shape[:-2], num_rows + 1, values.shape[-1]))
    extreme = extreme.scatter_reduce(-2, row, wide, "amax" if largest else "amin", include_self=False).gather(-2, row)
    is_extreme = (wide == extreme) | (wide.isnan() & extreme.isnan())
    place = torch.arange(entries, device=values.device).unsqueeze(-1).expand_as(values)
    first = torch.full((*values.shape[:-2], num_rows + 1, values.shape[-1]), entries, device=values.device)
    first = first.scatter_reduce(-2, row, torch.where(is_extreme, place, entries), "amin")[..., :num_rows, :]
    arg = torch.where(first == entries, -1, first)
    return pick_elements(values, arg), arg


def pick_elements(values: Tensor, arg: Tensor) -> Tensor:
    zero_row = values.new_zeros((*values.shape[:-2], 1, values.shape[-1]))
    return torch.cat([values, zero_row], dim=-2).gather(-2, _row_or_last(arg, values.shape[-2]))


def place_elements(grad: Tensor, arg: Tensor, num_rows: int) -> Tensor:
    out = grad.new_zeros((*grad.shape[:-2], num_rows + 1, grad.shape[-1]))
    return out.scatter_(-2, _row_or_last(arg, num_rows), grad)[..., :num_rows, :].clone()


def segment_sum(values: Tensor, offsets: Tensor, mean: bool) -> Tensor:
    segments = offsets.shape[0] - 1
    segment = _segments(offsets, values.shape[0]).unsqueeze(-1).expand_as(values)
    total = _wide(values).new_zeros((segments, values.shape[1])).scatter_add_(0, segment, _wide(values))
    if mean:
        total = total / _sizes(offsets)
    return total.to(values.dtype)


def segment_spread(grad: Tensor, offsets: Tensor, num_rows: int, mean: bool) -> Tensor:
    share = _wide(grad) / _sizes(offsets) if mean else grad
    return share.to(grad.dtype)[_segments(offsets, num_rows)]


def segment_extreme(values: Tensor, offsets: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    return scatter_extreme(values, _segments(offsets, values.shape[0]), offsets.shape[0] - 1, largest)


def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    wide, segment = _wide(logits), _segments(offsets, logits.shape[0])
    highest = segment_extreme(wide, offsets, True)[0]
    highest = torch.where(highest == -torch.inf, 0, highest)  # all -inf: exp gives 0 everywhere
    power = (wide - highest[segment]).exp()
    total = segment_sum(power, offsets, False)
    return (power / torch.where(total == 0, 1, total)[segment]).to(logits.dtype)


def segment_softmax_backward(grad: Tensor, output: Tensor, offsets: Tensor) -> Tensor:
    wide_grad, wide_output = _wide(grad), _wide(output)
    mean = segment_sum(wide_grad * wide_output, offsets, False)[_segments(offsets, grad.shape[0])]
    return (wide_output * (wide_grad - mean)).to(grad.dtype)


def _row_or_last(index: Tensor, rows: int) -> Tensor:
    """-1 and indices out of range become row `rows`."""
    return torch.where((index >= 0) & (index < rows), index, rows)


def _segments(offsets: Tensor, rows: int) -> Tensor:
    """(E,) the segment of each row."""
    place = torch.arange(rows, device=offsets.device)
    last = max(offsets.shape[0] - 2, 0)
    return (torch.searchsorted(offsets.contiguous(), place, right=True) - 1).clamp(0, last)


def _sizes(offsets: Tensor) -> Tensor:
    """(S, 1) the number of rows of each segment, 1 if it is empty."""
    return offsets.diff().clamp(min=1).unsqueeze(-1)


def _wide(values: Tensor) -> Tensor:
    return values.to(sum_dtype(values.dtype))

"""Registration of this family's operators: fake outputs, value checks and gradients.

`sparse_conv` and `sparse_conv_weight` are closed under differentiation (docs/operators/sparse.md): the convolution is
bilinear, and its gradient by the features is the convolution along the inverse map with transposed matrices.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .. import checks, clouds, native
from ..registry import operator
from . import reference

_INDEXED = 2**31  # rows are numbered with 32 bits


def _fit_coordinates(coordinates: Tensor, sizes: Tensor | None) -> bool:
    return coordinates.dtype == torch.int64 and clouds.layout_fits(coordinates, sizes) and coordinates.shape[-1] == 3


def _fits_table(
    coordinates: Tensor,
    sizes: Tensor | None,
    outputs: Tensor | None,
    output_sizes: Tensor | None,
    readers: Tensor | None,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> bool:
    if not _fit_windows(kernel, stride, padding, dilation):
        return False
    if not _fit_coordinates(coordinates, sizes) or coordinates.numel() >= 3 * _INDEXED:
        return False
    if outputs is None:
        if output_sizes is not None or stride != [1, 1, 1]:
            return False
    elif (
        not _fit_coordinates(outputs, output_sizes)
        or outputs.numel() >= 3 * _INDEXED
        or outputs.dim() != coordinates.dim()
        or clouds.batch_size(outputs, output_sizes) != clouds.batch_size(coordinates, sizes)
    ):
        return False
    if readers is None:
        return True
    ways = reference.most_ways(kernel, stride, dilation)
    shape = (*coordinates.shape[:-2], coordinates.shape[-2] * ways**3)
    return outputs is not None and readers.dtype == torch.int64 and readers.shape == shape


def _fit_windows(kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> bool:
    numbers = (kernel, stride, padding, dilation)
    return (
        all(len(values) == 3 and max(map(abs, values)) < 2**15 for values in numbers)
        and min(*kernel, *stride, *dilation) >= 1
        and kernel[0] * kernel[1] * kernel[2] < 2**15
    )


def _check_table(
    coordinates: Tensor, sizes: Tensor | None, outputs: Tensor | None, output_sizes: Tensor | None
) -> None:
    check_voxels("coordinates", coordinates, sizes, "")
    if outputs is not None:
        check_voxels("outputs", outputs, output_sizes, "output_")


def check_voxels(name: str, values: Tensor, sizes: Tensor | None, prefix: str) -> None:
    """Check the values of coordinates and of their offsets or lengths, whose names begin with the prefix."""
    clouds.check_values(values, sizes, prefix)
    if values.numel():
        lowest, highest = native.bounds(values)
        worst = lowest if lowest < -_INDEXED else highest
        checks.value(-_INDEXED <= worst < _INDEXED, name, "in the range of int32", worst)


def _fake_table(
    coordinates: Tensor, outputs: Tensor | None, kernel: list[int], padding: list[int], dilation: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = math.prod(coordinates.shape[:-1])  # torch.Size.numel() fails for sizes that depend on data
    rows = inputs if outputs is None else math.prod(outputs.shape[:-1])
    volume = kernel[0] * kernel[1] * kernel[2]
    mirrored = outputs is None and reference.is_symmetric(kernel, padding, dilation)
    inverse, inverse_size = (0, 0) if mirrored else (inputs, reference.schedule_size(inputs, volume))
    sources, targets = (coordinates.new_empty((count, volume), dtype=torch.int32) for count in (rows, inverse))
    schedules = [
        coordinates.new_empty((size,), dtype=torch.int32)
        for size in (reference.schedule_size(rows, volume), inverse_size)
    ]
    return sources, schedules[0], targets, schedules[1]


def _fits_readers(
    coordinates: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> bool:
    return _fit_coordinates(coordinates, None) and _fit_windows(kernel, stride, padding, dilation)


def _fake_readers(
    coordinates: Tensor, kernel: list[int], stride: list[int], dilation: list[int]
) -> tuple[Tensor, Tensor]:
    *batch, inputs, _ = coordinates.shape
    rows = inputs * reference.most_ways(kernel, stride, dilation) ** 3
    return coordinates.new_empty((*batch, rows, 3)), coordinates.new_empty((*batch, rows), dtype=torch.bool)


sparse_readers = operator(
    reference.sparse_readers,
    contract="int64 coordinates (N, 3) or (B, N, 3), and three numbers each for kernel, stride, padding and dilation",
    fits=_fits_readers,
    fake=_fake_readers,
    kernels=("triton",),
)


kernel_table = operator(
    reference.kernel_table,
    contract=(
        "int64 coordinates and outputs (N, 3) with offsets or (B, N, 3) with lengths, of equally many clouds and fewer "
        "than 2^31 rows, and three numbers each for kernel, stride, padding and dilation; without outputs, stride 1; "
        "and int64 readers (N * R,) or (B, N * R) or None, only with outputs"
    ),
    fits=_fits_table,
    fake=_fake_table,
    check=_check_table,
)


_TABLES = "int32 sources (M, K) and targets (N, K) or None, each with its int32 schedule; M = N without targets"


def _fit_tables(
    inputs: int,
    outputs: int,
    sources: Tensor,
    source_schedule: Tensor,
    targets: Tensor | None,
    target_schedule: Tensor | None,
) -> bool:
    """Whether the tables belong to this number of input and output rows."""
    shape = sources.shape
    if len(shape) != 2 or shape[0] != outputs or sources.dtype != torch.int32 or not 0 < shape[1] < 2**15:
        return False
    if max(inputs, outputs) >= _INDEXED or not _fits_schedule(source_schedule, outputs, shape[1]):
        return False
    if targets is None or target_schedule is None:
        return targets is None and target_schedule is None and inputs == outputs
    return (
        targets.shape == (inputs, shape[1])
        and targets.dtype == torch.int32
        and _fits_schedule(target_schedule, inputs, shape[1])
    )


def _fits_schedule(schedule: Tensor, rows: int, volume: int) -> bool:
    return schedule.dtype == torch.int32 and schedule.shape == (reference.schedule_size(rows, volume),)


def _fits_conv(
    features: Tensor,
    weight: Tensor,
    sources: Tensor,
    source_schedule: Tensor,
    targets: Tensor | None,
    target_schedule: Tensor | None,
    groups: int,
) -> bool:
    rows, matrices = features.shape, weight.shape
    return (
        len(rows) == 2
        and len(matrices) == 3
        and features.dtype in checks.FLOATS
        and weight.dtype == features.dtype
        and groups > 0
        and rows[1] == matrices[1] * groups
        and matrices[2] % groups == 0
        and sources.dim() == 2
        and matrices[0] == sources.shape[1]
        and _fit_tables(rows[0], sources.shape[0], sources, source_schedule, targets, target_schedule)
    )


def _check_rows(name: str, rows: Tensor, count: int) -> None:
    if rows.numel():
        values = rows.numpy()  # torch would start its own threads, which spin while the kernel needs the cores
        lowest, highest = int(values.min()), int(values.max())
        worst = lowest if lowest < -1 else highest
        checks.value(-1 <= worst < count, name, f"in [-1, {count})", worst)


def _check_sources(features: Tensor, sources: Tensor) -> None:
    _check_rows("sources", sources, len(features))


def _fake_conv(features: Tensor, weight: Tensor, sources: Tensor) -> Tensor:
    return features.new_empty((sources.shape[0], weight.shape[2]))


def _save_conv(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(
        inputs.features if ctx.needed.weight else None,
        inputs.weight if ctx.needed.features else None,
        inputs.sources,
        inputs.source_schedule,
        inputs.targets,
        inputs.target_schedule,
    )
    ctx.flip, ctx.groups = inputs.flip, inputs.groups


def _adjoint(
    grad: Tensor, weight: Tensor, tables: tuple[Tensor, Tensor, Tensor | None, Tensor | None], flip: bool, groups: int
) -> Tensor:
    """The gradient of `sparse_conv` by its features: a convolution along the inverse map."""
    sources, source_schedule, targets, target_schedule = tables
    matrices = _transposed(weight, groups)
    if targets is None:
        return sparse_conv(grad, matrices, sources, source_schedule, None, None, not flip, groups)
    return sparse_conv(grad, matrices, targets, target_schedule, sources, source_schedule, flip, groups)


def _transposed(weight: Tensor, groups: int) -> Tensor:
    """(K, C / groups, D) with each group's matrix transposed: (K, D / groups, C)."""
    if groups == 1:
        return weight.transpose(1, 2)
    volume, inputs, outputs = weight.shape
    by_group = weight.reshape(volume, inputs, groups, outputs // groups)
    return by_group.permute(0, 3, 2, 1).reshape(volume, outputs // groups, groups * inputs)


def _grad_conv(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    features, weight, *tables = ctx.saved_tensors
    needed = ctx.needed
    return {
        "features": _adjoint(grad, weight, tuple(tables), ctx.flip, ctx.groups) if needed.features else None,
        "weight": sparse_conv_weight(features, grad, *tables, ctx.flip, ctx.groups) if needed.weight else None,
    }


sparse_conv = operator(
    reference.sparse_conv,
    contract=(
        f"features (N, C) and weight (K, C / groups, D) of one floating dtype, where groups divides D, and {_TABLES}"
    ),
    fits=_fits_conv,
    fake=_fake_conv,
    check=_check_sources,
    save=_save_conv,
    backward=_grad_conv,
    autocast="lower",
)


def _fits_weight(
    features: Tensor,
    grad: Tensor,
    sources: Tensor,
    source_schedule: Tensor,
    targets: Tensor | None,
    target_schedule: Tensor | None,
    groups: int,
) -> bool:
    rows, grads = features.shape, grad.shape
    return (
        len(rows) == len(grads) == 2
        and features.dtype in checks.FLOATS
        and grad.dtype == features.dtype
        and groups > 0
        and rows[1] % groups == 0
        and grads[1] % groups == 0
        and _fit_tables(rows[0], grads[0], sources, source_schedule, targets, target_schedule)
    )


def _fake_weight(features: Tensor, grad: Tensor, sources: Tensor, groups: int) -> Tensor:
    return features.new_empty((sources.shape[1], features.shape[1] // groups, grad.shape[1]))


def _save_weight(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(
        inputs.features if ctx.needed.grad else None,
        inputs.grad if ctx.needed.features else None,
        inputs.sources,
        inputs.source_schedule,
        inputs.targets,
        inputs.target_schedule,
    )
    ctx.flip, ctx.groups = inputs.flip, inputs.groups


def _grad_weight(ctx: Any, grad_weight: Tensor) -> dict[str, Tensor | None]:
    features, grad, *tables = ctx.saved_tensors
    needed = ctx.needed
    return {
        "features": _adjoint(grad, grad_weight, tuple(tables), ctx.flip, ctx.groups) if needed.features else None,
        "grad": sparse_conv(features, grad_weight, *tables, ctx.flip, ctx.groups) if needed.grad else None,
    }


sparse_conv_weight = operator(
    reference.sparse_conv_weight,
    contract=f"features (N, C) and grad (M, D) of one floating dtype, where groups divides C and D, and {_TABLES}",
    fits=_fits_weight,
    fake=_fake_weight,
    check=_check_sources,
    save=_save_weight,
    backward=_grad_weight,
    autocast="lower",
)


def _fit_pool(inputs: int, outputs: int, sources: Tensor, targets: Tensor | None) -> bool:
    shape = sources.shape
    fits = len(shape) == 2 and shape[0] == outputs and sources.dtype == torch.int32 and shape[1] > 0
    if not fits or max(inputs, outputs) >= _INDEXED:
        return False
    if targets is None:
        return inputs == outputs
    return targets.shape == (inputs, shape[1]) and targets.dtype == torch.int32


def _fits_max(features: Tensor, sources: Tensor, targets: Tensor | None) -> bool:
    shape = features.shape
    return (
        len(shape) == 2
        and features.dtype in checks.FLOATS
        and sources.dim() == 2
        and _fit_pool(shape[0], sources.shape[0], sources, targets)
    )


def _fake_max(features: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    best = features.new_empty((sources.shape[0], features.shape[1]))
    return best, torch.empty_like(best, dtype=torch.int32)


def _save_max(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], inputs.sources, inputs.targets)


def _grad_max(ctx: Any, grad: Tensor, _: Any) -> dict[str, Tensor | None]:
    return {"features": sparse_max_backward(grad, *ctx.saved_tensors)}


sparse_max = operator(
    reference.sparse_max,
    contract="features (N, C) of floats, int32 sources (M, K), and int32 targets (N, K) or, if M = N, None",
    fits=_fits_max,
    fake=_fake_max,
    check=_check_sources,
    save=_save_max,
    backward=_grad_max,
)


def _fits_max_backward(grad: Tensor, arg: Tensor, sources: Tensor, targets: Tensor | None) -> bool:
    shape = grad.shape
    return (
        len(shape) == 2
        and grad.dtype in checks.FLOATS
        and arg.dtype == torch.int32
        and arg.shape == shape
        and _fit_pool(shape[0] if targets is None else targets.shape[0], shape[0], sources, targets)
    )


def _check_max_backward(grad: Tensor, sources: Tensor, targets: Tensor | None) -> None:
    _check_rows("sources" if targets is None else "targets", sources if targets is None else targets, len(grad))


def _fake_max_backward(grad: Tensor, sources: Tensor, targets: Tensor | None) -> Tensor:
    return grad.new_empty((len(sources if targets is None else targets), grad.shape[1]))


def _save_max_backward(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.arg)


def _grad_max_backward(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    (arg,) = ctx.saved_tensors
    if len(grad) == 0:
        return {"grad": grad.new_zeros(arg.shape)}
    return {"grad": torch.where(arg >= 0, grad.gather(0, arg.long().clamp(min=0)), 0)}


sparse_max_backward = operator(
    reference.sparse_max_backward,
    contract=(
        "grad (M, C) of floats, int32 arg (M, C), int32 sources (M, K), and int32 targets (N, K) or, if M = N, None"
    ),
    fits=_fits_max_backward,
    fake=_fake_max_backward,
    check=_check_max_backward,
    save=_save_max_backward,
    backward=_grad_max_backward,
)

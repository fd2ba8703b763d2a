"""Sparse convolution followed by a norm and ReLU.

For inference on a CPU, batch norm, the residual connection and ReLU are applied to the sums of the convolution before
they are written. As separate layers, each of them would read and write all features.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from pointgrad.nn.shared_mlp import is_plain
from pointgrad.nn.sparse_conv import Conv, InverseConv, OnFeatures, SparseConv, SubmanifoldConv
from pointgrad.nn.sparse_tensor import SparseTensor, assume_rows
from pointgrad.ops import checks, registry
from pointgrad.ops.sparse import cpu
from pointgrad.ops.sums import sum_dtype

_LAYERS = (SubmanifoldConv, SparseConv, InverseConv, nn.Linear)


class ConvNorm(nn.Sequential):
    """A convolution, a norm and ReLU, as `nn.Sequential(conv, OnFeatures(norm, nn.ReLU()))`."""

    def __init__(self, conv: Conv, norm: nn.Module) -> None:
        super().__init__(conv, OnFeatures(norm, nn.ReLU(inplace=True)))

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        conv: Any
        after: Any
        conv, after = self
        if is_plain(after, OnFeatures) and is_plain(after[-1], nn.ReLU):
            return conv_norm(conv, after[0], tensor)
        return after(conv(tensor))


class LinearNorm(nn.Sequential):
    """A linear layer without bias, and a norm."""

    def __init__(self, inputs: int, outputs: int, norm: nn.Module) -> None:
        super().__init__(nn.Linear(inputs, outputs, bias=False), norm)

    def forward(self, rows: Tensor) -> Tensor:
        linear: Any
        norm: Any
        linear, norm = self
        if not _is_fusible(linear, norm, rows, (linear.out_features, *rows.shape[1:]), linear.out_features):
            return norm(linear(rows))
        scale, shift = _affine(norm, linear.bias)
        own = torch.arange(rows.shape[0], dtype=torch.int32)[:, None]  # a convolution with a single position
        return cpu.finished_conv(rows, linear.weight.t()[None], own, False, 1, scale=scale, shift=shift)


def conv_norm(conv: Conv, norm: nn.Module, tensor: SparseTensor, added: Tensor | None = None) -> SparseTensor:
    """Return `relu(norm(conv(tensor)) + added)`."""
    rows = tensor.features
    shape = (math.prod(conv.kernel_size), *rows.shape[1:], conv.out_channels)
    fusible = conv.groups == 1 and _is_fusible(conv, norm, rows, shape, conv.out_channels)
    if fusible and len(rows) == len(tensor.coordinates):
        map, convolved = conv.step_from(tensor)
        scale, shift = _affine(norm, conv.bias)
        return convolved(
            cpu.finished_conv(
                rows, conv.weight, map.sources, map.flipped, 1, scale=scale, shift=shift, added=added, relu=True
            )
        )
    out = conv(tensor)
    assume_rows(out.features)
    normed = norm(out.features)
    return out.with_features(functional.relu(normed if added is None else normed + added, inplace=True))


def join(left: Tensor, right: Tensor) -> Tensor:
    """Return `torch.cat([left, right], 1)`."""
    if _is_inference(left) and _is_inference(right) and left.dtype == right.dtype and len(left) == len(right):
        return cpu.join_rows(left, right)
    return torch.cat([left, right], 1)


def _is_inference(rows: Tensor) -> bool:
    """Whether C++ kernels can be called directly: no gradient, no tracing, plain tensors on the CPU."""
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and type(rows) is Tensor
        and rows.is_cpu
        and rows.dtype in checks.FLOATS
        and registry.chosen(rows.device) == "cpu"
        and torch._C._functorch.peek_interpreter_stack() is None
        and not torch._C._len_torch_dispatch_stack()
        and forward_ad._current_level < 0
    )


def _is_fusible(layer: Any, norm: Any, rows: Tensor, shape: tuple[int, ...], outputs: int) -> bool:
    """Whether a layer with a weight of this shape and a norm can be fused. Otherwise torch checks sizes."""
    return bool(
        _is_inference(rows)
        and any(is_plain(layer, kind) for kind in _LAYERS)
        and is_plain(norm, nn.BatchNorm1d)
        and not norm.training
        and norm.running_mean is not None
        and norm.affine
        and layer.weight.shape == shape
        and norm.weight.shape == (outputs,)
        and layer.weight.dtype == norm.weight.dtype == rows.dtype
        and layer.weight.is_cpu
        and norm.weight.is_cpu
        and not torch.is_autocast_enabled("cpu")
    )


def _affine(norm: Any, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scale and shift of batch norm in inference, after a bias."""
    wide = sum_dtype(norm.weight.dtype)
    scale = norm.weight.to(wide) * (norm.running_var.to(wide) + norm.eps).rsqrt()
    mean = norm.running_mean.to(wide)
    return scale, torch.addcmul(norm.bias.to(wide), mean if bias is None else mean - bias.to(wide), scale, value=-1)

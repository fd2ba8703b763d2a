"""Sparse convolutions. Weights have the layout of spconv 2: (Cout, kz, ky, kx, Cin)."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.ops import checks

from ...cumm.tensorview.gemm import Activation
from .. import constants
from ..core import ConvAlgo
from . import _maps
from .core import IndiceData, SparseConvTensor, expand_nd
from .modules import SparseModule

__all__ = [
    "SparseConv1d",
    "SparseConv2d",
    "SparseConv3d",
    "SparseConv4d",
    "SparseConvTranspose1d",
    "SparseConvTranspose2d",
    "SparseConvTranspose3d",
    "SparseConvTranspose4d",
    "SparseConvolution",
    "SparseInverseConv1d",
    "SparseInverseConv2d",
    "SparseInverseConv3d",
    "SparseInverseConv4d",
    "SubMConv1d",
    "SubMConv2d",
    "SubMConv3d",
    "SubMConv4d",
]

COUNT = "max_num_voxels_during_training"  # name of a buffer in state dicts


class CountsVoxels(SparseModule):
    """Layer with a buffer for the largest number of outputs, if `record_voxel_count` is set."""

    def _record_voxel_count(self, enabled: bool, device: Any = None) -> None:
        if enabled:
            self.register_buffer(COUNT, torch.zeros(1, dtype=torch.int32, device=device))

    def _count_voxels(self, count: int) -> None:
        buffer = self.get_max_num_voxels()
        if buffer is not None:
            buffer.clamp_(min=count)

    def get_max_num_voxels(self) -> Tensor | None:
        """Return the largest number of outputs so far, (1,) int32, or None without `record_voxel_count`."""
        return self._buffers.get(COUNT)


class SparseConvolution(CountsVoxels):
    """Convolution of sparse tensors, the base class of all sparse convolutions.

    Args:
        ndim: Number of axes, 1 to 3.
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        kernel_size: Number of kernel positions, or one number per axis.
        stride: Distance between the windows of adjacent outputs. Ignored if `subm`.
        padding: Distance of the first window from voxel 0. Ignored if `subm`.
        dilation: Distance between adjacent kernel positions.
        groups: Must be 1.
        bias: Add a learned bias.
        subm: The outputs are the input voxels (submanifold convolution).
        output_padding: Increases the grid after a transposed convolution.
        transposed: Transposed convolution.
        inverse: Return to the input voxels of the layer that created the kernel map `indice_key`.
        indice_key: Name of the kernel map. A submanifold convolution uses the map if it exists.
        algo: Kept as an attribute, not used.
        fp32_accum: Ignored; sums are accumulated in at least float32.
        record_voxel_count: Record the largest number of outputs in a buffer.
        act_type: Activation, from `cumm.tensorview.gemm.Activation`.
        act_alpha: Slope of LeakyReLU.
        act_beta: Ignored.
        large_kernel_fast_algo: Ignored.
        name: Kept as an attribute, not used.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    def __init__(
        self,
        ndim: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        subm: bool = False,
        output_padding: Any = 0,
        transposed: bool = False,
        inverse: bool = False,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        act_type: Any = Activation.None_,
        act_alpha: float = 0,
        act_beta: float = 0,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not 1 <= ndim <= 3:
            raise NotImplementedError(f"pointgrad.compat.spconv supports 1 to 3 axes, got {ndim}")
        super().__init__(name)
        checks.value(groups == 1, "groups", "1", groups)
        self.ndim = ndim
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = expand_nd(ndim, kernel_size)
        self.stride = expand_nd(ndim, stride)
        self.padding = expand_nd(ndim, padding)
        self.dilation = expand_nd(ndim, dilation)
        self.output_padding = expand_nd(ndim, output_padding)
        self.groups = groups
        self.subm = subm
        self.transposed = transposed
        self.inverse = inverse
        self.indice_key = indice_key
        self.algo = default_algo(self.kernel_size) if algo is None else algo
        self.fp32_accum = fp32_accum
        self.record_voxel_count = record_voxel_count
        self.act_type = act_type
        self.act_alpha = act_alpha
        self.act_beta = act_beta
        single = math.prod(self.kernel_size) == 1 and not inverse
        self.conv1x1 = single and (subm or math.prod(self.stride) == 1)
        if self.conv1x1 and not subm:
            checks.value(not any(self.padding), "padding", "0 if kernel_size and stride are 1", self.padding)
        self._record_voxel_count(record_voxel_count and not subm and not inverse, device)
        self.weight_shape = [out_channels, *self.kernel_size, in_channels]
        self.weight = nn.Parameter(torch.empty(self.weight_shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()
        self._register_load_state_dict_pre_hook(self._convert_state)

    def reset_parameters(self) -> None:
        """Draw weight and bias, in this order, from the uniform distribution of torch's convolutions."""
        bound = 1 / math.sqrt(max(1, self.in_channels * math.prod(self.kernel_size)))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def is_inverseable(self) -> bool:
        """Return whether an inverse convolution can use the kernel map of this layer."""
        return self.indice_key is not None and not self.subm

    def extra_repr(self) -> str:
        """Describe the settings."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, output_padding={self.output_padding}"
        )
        return f"{text}{', bias=False' if self.bias is None else ''}, algo={self.algo}"

    def forward(self, input: SparseConvTensor, add_input: SparseConvTensor | None = None) -> SparseConvTensor:
        """Convolve a sparse tensor.

        Args:
            input: Sparse tensor with `in_channels` channels.
            add_input: Sparse tensor with the output voxels, whose features are added before the activation.

        Returns:
            Sparse tensor with `out_channels` channels and the kernel map as `indice_dict[indice_key]`. New voxels are
            sorted by batch index and coordinates.
        """
        checks.kind(isinstance(input, SparseConvTensor), "input", "a SparseConvTensor", input)
        features = input.features
        fits = features.dim() == 2 and features.shape[1] == self.in_channels
        checks.shape(fits, "features", f"(N, in_channels) = (N, {self.in_channels})", features)
        out = input.shadow_copy()
        if self.conv1x1:
            # As in spconv: the memory of the weight is read as (Cin, Cout), although its shape is (Cout, 1, 1, 1, Cin).
            out._features = features @ self.weight.reshape(self.in_channels, self.out_channels)
            if self.bias is not None:
                out._features = out._features + self.bias.to(out._features.dtype)
        else:
            weight = self.weight.flatten(1, -2).permute(1, 2, 0)  # (K, Cin, Cout)
            data = self._map_back(input) if self.inverse else self._map(input)
            if self.inverse:
                out._features = data.convolve_back(features, weight, self.bias)
                out.indices, out.spatial_shape = data.indices, data.spatial_shape
            else:
                out._features = data.convolve(features, weight, self.bias)
                out.indices, out.spatial_shape = data.out_indices, data.out_spatial_shape
                self._count_voxels(len(out.indices))
            if self.indice_key is not None:
                out.indice_dict = {**input.indice_dict, self.indice_key: data}
        if add_input is not None:
            out._features = out._features + add_input.features
        out._features = _activate(out._features, self.act_type, self.act_alpha)
        return out

    def _map(self, input: SparseConvTensor) -> IndiceData:
        """The kernel map of `indice_key`, if it exists, or a new one."""
        data = input.find_indice_pair(self.indice_key)
        if data is None:
            settings = (self.kernel_size, self.stride, self.padding, self.dilation, self.output_padding)
            return _maps.build(input, self.algo, *settings, self.subm, self.transposed)
        key = f"indice_key {self.indice_key!r}"
        if not (self.subm and data.is_subm):
            raise ValueError(f"{key} already exists: only submanifold convolutions can use a kernel map again")
        for name, expected, received in (
            ("kernel_size", data.ksize, self.kernel_size),
            ("dilation", data.dilation, self.dilation),
            ("spatial_shape", data.spatial_shape, input.spatial_shape),
        ):
            if expected != received:
                raise ValueError(f"{name} must equal {expected}, which created {key}, got {received}")
        _check_voxels(key, data.indices, input.indices)
        return data

    def _map_back(self, input: SparseConvTensor) -> IndiceData:
        """The kernel map of `indice_key`, which must end at the voxels of the input."""
        data = input.find_indice_pair(self.indice_key)
        if data is None:
            raise ValueError(f"indice_key must be in {sorted(input.indice_dict)}, got {self.indice_key!r}")
        key = f"indice_key {self.indice_key!r}"
        if data.is_subm:
            raise ValueError(f"{key} must belong to a strided convolution or a pool, got a submanifold convolution")
        if data.ksize != self.kernel_size:
            raise ValueError(f"kernel_size must equal {data.ksize}, which created {key}, got {self.kernel_size}")
        if data.out_spatial_shape != input.spatial_shape:
            expected = f"{data.out_spatial_shape}, the output of the layer that created {key}"
            raise ValueError(f"spatial_shape must equal {expected}, got {input.spatial_shape}")
        _check_voxels(key, data.out_indices, input.indices)
        return data

    def _convert_state(self, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        """Complete and convert the state dict of another version of spconv."""
        if COUNT in self._buffers and prefix + COUNT not in state_dict:
            state_dict[prefix + COUNT] = torch.zeros(1, dtype=torch.int32)
        layout, key, axes = constants.SAVED_WEIGHT_LAYOUT, prefix + "weight", self.ndim
        if layout in ("", "KRSC") or key not in state_dict:
            return
        weight = state_dict[key]
        if layout == "RSKC":
            weight = weight.movedim(axes, 0)
        elif layout != "RSCK":
            raise ValueError(f"SAVED_WEIGHT_LAYOUT must be 'KRSC', 'RSKC' or 'RSCK', got {layout!r}")
        elif self.conv1x1:
            weight = weight.reshape(self.weight_shape)  # the memory has the order that `forward` expects
        else:
            weight = weight.movedim(axes + 1, 0)
        state_dict[key] = weight.contiguous()


def default_algo(kernel_size: list[int]) -> ConvAlgo:
    """The algorithm that spconv would use."""
    return ConvAlgo.MaskImplicitGemm if math.prod(kernel_size) <= 32 else ConvAlgo.Native


def _check_voxels(key: str, expected: Tensor, received: Tensor) -> None:
    """Check that a kernel map belongs to these voxels. On a GPU only their number is checked, which does not wait."""
    if expected is received:
        return
    if expected.shape != received.shape:
        raise ValueError(f"indices must have the {len(expected)} voxels of {key}, got {len(received)}")
    if not received.is_cuda and not torch.equal(expected, received):
        raise ValueError(f"indices must be the voxels of {key} in the same order, got others")


def _activate(features: Tensor, act_type: Any, alpha: float) -> Tensor:
    if act_type.name == "None_":
        return features
    if act_type.name == "ReLU":
        return functional.relu(features)
    if act_type.name == "Sigmoid":
        return features.sigmoid()
    if act_type.name == "LeakyReLU":
        return functional.leaky_relu(features, alpha)
    raise NotImplementedError(f"act_type must be None_, ReLU, Sigmoid or LeakyReLU, got {act_type.name}")


class _SparseConv(SparseConvolution):
    """Convolution whose outputs are all voxels that read an input; see `SparseConvolution`."""

    _ndim: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self._ndim, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            indice_key=indice_key, algo=algo, fp32_accum=fp32_accum, record_voxel_count=record_voxel_count, name=name,
        )  # fmt: skip


class _SparseConvTranspose(SparseConvolution):
    """Transposed convolution whose outputs are all voxels that an input reaches; see `SparseConvolution`."""

    _ndim: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
        output_padding: Any = 0,
    ) -> None:
        super().__init__(
            self._ndim, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            output_padding=output_padding, transposed=True, indice_key=indice_key, algo=algo, fp32_accum=fp32_accum,
            record_voxel_count=record_voxel_count, name=name,
        )  # fmt: skip


class _SparseInverseConv(SparseConvolution):
    """Convolution that returns to the input voxels of the layer with the same `indice_key`; see `SparseConvolution`."""

    _ndim: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        indice_key: str | None,
        bias: bool = True,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self._ndim, in_channels, out_channels, kernel_size, bias=bias, inverse=True, indice_key=indice_key,
            algo=algo, fp32_accum=fp32_accum, name=name,
        )  # fmt: skip


class _SubMConv(SparseConvolution):
    """Submanifold convolution, whose outputs are the input voxels; see `SparseConvolution`."""

    _ndim: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self._ndim, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, True,
            indice_key=indice_key, algo=algo, fp32_accum=fp32_accum, name=name,
        )  # fmt: skip


class SparseConv1d(_SparseConv):
    __doc__ = _SparseConv.__doc__
    _ndim = 1


class SparseConv2d(_SparseConv):
    __doc__ = _SparseConv.__doc__
    _ndim = 2


class SparseConv3d(_SparseConv):
    __doc__ = _SparseConv.__doc__
    _ndim = 3


class SparseConv4d(_SparseConv):
    __doc__ = _SparseConv.__doc__
    _ndim = 4


class SparseConvTranspose1d(_SparseConvTranspose):
    __doc__ = _SparseConvTranspose.__doc__
    _ndim = 1


class SparseConvTranspose2d(_SparseConvTranspose):
    __doc__ = _SparseConvTranspose.__doc__
    _ndim = 2


class SparseConvTranspose3d(_SparseConvTranspose):
    __doc__ = _SparseConvTranspose.__doc__
    _ndim = 3


class SparseConvTranspose4d(_SparseConvTranspose):
    __doc__ = _SparseConvTranspose.__doc__
    _ndim = 4


class SparseInverseConv1d(_SparseInverseConv):
    __doc__ = _SparseInverseConv.__doc__
    _ndim = 1


class SparseInverseConv2d(_SparseInverseConv):
    __doc__ = _SparseInverseConv.__doc__
    _ndim = 2


class SparseInverseConv3d(_SparseInverseConv):
    __doc__ = _SparseInverseConv.__doc__
    _ndim = 3


class SparseInverseConv4d(_SparseInverseConv):
    __doc__ = _SparseInverseConv.__doc__
    _ndim = 4


class SubMConv1d(_SubMConv):
    __doc__ = _SubMConv.__doc__
    _ndim = 1


class SubMConv2d(_SubMConv):
    __doc__ = _SubMConv.__doc__
    _ndim = 2


class SubMConv3d(_SubMConv):
    __doc__ = _SubMConv.__doc__
    _ndim = 3


class SubMConv4d(_SubMConv):
    __doc__ = _SubMConv.__doc__
    _ndim = 4

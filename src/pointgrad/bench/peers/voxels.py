"""Libraries of sparse convolution: spconv, spconv-triton with the same API, and FlexGEMM."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..comparison import Implementation
from . import Adapter, Peer


def placed(coordinates: Tensor) -> tuple[Tensor, list[int]]:
    """(N, 4) int32 cloud and coordinates from 0, and the grid. The shift is even, so that stride 2 is the same."""
    lowest = torch.div(coordinates.min(0).values, 2, rounding_mode="floor") * 2
    moved = coordinates - lowest
    # Two more voxels: a dense grid would have no outputs beyond its last window.
    return torch.nn.functional.pad(moved, (1, 0)).int().contiguous(), (moved.max(0).values + 3).tolist()


def channels_last(weight: Tensor) -> Tensor:
    """(27, C, D) as (D, 3, 3, 3, C)."""
    return weight.unflatten(0, (3, 3, 3)).permute(4, 0, 1, 2, 3).contiguous()


def with_gradients(call: Callable[[], Tensor], sources: list[Tensor], grad: Tensor) -> Callable[[], Any]:
    def both() -> tuple[Tensor, ...]:
        out = call()
        return out.detach(), *torch.autograd.grad(out, sources, grad)

    return both


def read_gradients(received: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    out, features, weight = received
    if weight.shape[0] != 3:
        weight = weight.permute(1, 2, 3, 4, 0)
    return out, features, weight.flatten(0, 2)


# spconv


def layer(library: Any, name: str, weight: Tensor, **settings: Any) -> Any:
    """A convolution without a bias, with a given weight in whichever layout the layer has."""
    made = getattr(library, name)(weight.shape[1], weight.shape[2], 3, bias=False, **settings).to(weight)
    krsc = channels_last(weight)
    made.weight.data = krsc if made.weight.shape == krsc.shape else weight.reshape(made.weight.shape)
    return made


def convolution(
    library: Any, features: Tensor, weight: Tensor, coordinates: Tensor
) -> tuple[Callable[[], Tensor], Any]:
    """A call that uses a stored map, and the layer."""
    made = layer(library, "SubMConv3d", weight, indice_key="map")
    voxels = library.SparseConvTensor(features, *placed(coordinates), 1)
    made(voxels)  # stores the map
    return lambda: made(voxels.replace_feature(features)).features, made


def submanifold(library: Any, features: Tensor, weight: Tensor, coordinates: Tensor) -> Implementation:
    call, made = convolution(library, features, weight, coordinates)
    made.weight.requires_grad_(False)
    return Implementation(call)


def submanifold_both(
    library: Any, features: Tensor, weight: Tensor, coordinates: Tensor, grad: Tensor
) -> Implementation:
    source = features.detach().requires_grad_()
    call, made = convolution(library, source, weight, coordinates)
    return Implementation(with_gradients(call, [source, made.weight], grad), read_gradients)


def strided(library: Any, features: Tensor, weight: Tensor, coordinates: Tensor) -> Implementation:
    made = layer(library, "SparseConv3d", weight, stride=2, padding=1).requires_grad_(False)
    indices, shape = placed(coordinates)

    def read(received: Any) -> Tensor:
        """The outputs in the order of x, y and z."""
        place = received.indices.long()
        order = ((place[:, 1] * shape[1] + place[:, 2]) * shape[2] + place[:, 3]).argsort()
        return received.features[order]

    return Implementation(lambda: made(library.SparseConvTensor(features, indices, shape, 1)), read)


# FlexGEMM; written from its documentation.


def flex_call(features: Tensor, weight: Tensor, coordinates: Tensor) -> Callable[[], Tensor]:
    operators = importlib.import_module("flex_gemm.ops.spconv")
    indices, sides = placed(coordinates)
    shape = torch.Size([1, features.shape[1], *sides])
    _, cache = operators.sparse_submanifold_conv3d(features, indices, shape, weight)
    return lambda: operators.sparse_submanifold_conv3d(features, indices, shape, weight, neighbor_cache=cache)[0]


def flex(library: Any, features: Tensor, weight: Tensor, coordinates: Tensor) -> Implementation:
    return Implementation(flex_call(features, channels_last(weight), coordinates))


def flex_both(library: Any, features: Tensor, weight: Tensor, coordinates: Tensor, grad: Tensor) -> Implementation:
    source, matrices = features.detach().requires_grad_(), channels_last(weight).requires_grad_()
    call = flex_call(source, matrices, coordinates)
    return Implementation(with_gradients(call, [source, matrices], grad), read_gradients)


SPCONV: dict[str, Adapter] = {"submanifold": submanifold, "submanifold_both": submanifold_both, "strided": strided}
PEERS = [
    Peer("spconv", "spconv.pytorch", "spconv", "pip install spconv", SPCONV),
    Peer("spconv_triton", "spconv_triton.pytorch", "spconv_triton", "pip install spconv_triton", SPCONV, ("cuda",)),
    Peer(
        "flex_gemm", "flex_gemm", "flex_gemm", "pip install git+https://github.com/JeffreyXiang/FlexGEMM",
        {"submanifold": flex, "submanifold_both": flex_both}, ("cuda",),
    ),
]  # fmt: skip

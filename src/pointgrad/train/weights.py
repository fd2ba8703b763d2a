"""Weights and optimizer state as plain dictionaries on the CPU: whole, also where processes hold parts of them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def get_weights(module: nn.Module) -> dict[str, Any]:
    """All processes must ask. Where weights are distributed, only the first gets them."""
    if _sharded(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(module, options=whole)
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}


def set_weights(module: nn.Module, state: dict[str, Any]) -> None:
    """The other way."""
    if _sharded(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        set_model_state_dict(module, state, options=StateDictOptions(full_state_dict=True))
    else:
        module.load_state_dict(state)


def get_optimizer(module: nn.Module, optimizer: Any) -> dict[str, Any]:
    if _sharded(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_optimizer_state_dict(module, optimizer.optimizer, options=whole)
    state = optimizer.optimizer.state_dict()
    values = {
        number: {name: value.cpu() if isinstance(value, Tensor) else value for name, value in each.items()}
        for number, each in state["state"].items()
    }
    return {**state, "state": values}


def set_optimizer(module: nn.Module, optimizer: Any, state: dict[str, Any]) -> None:
    if _sharded(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        whole = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(module, optimizer.optimizer, state, options=whole)
    else:
        optimizer.optimizer.load_state_dict(state)


@contextlib.contextmanager
@torch.no_grad()
def using(module: nn.Module, state: dict[str, Any]) -> Iterator[None]:
    """The module has other weights inside. All processes must have them."""
    own = local_tensors(module)
    kept = [tensor.clone() for tensor in own]
    set_weights(module, state)
    try:
        yield
    finally:
        for tensor, before in zip(own, kept, strict=True):
            tensor.copy_(before)


def finite(state: dict[str, Any]) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(tensor.isfinite().all()) for tensor in state.values())


def local_tensors(module: nn.Module) -> list[Tensor]:
    """All weights and buffers, without gradients; where they are distributed, the part that is here."""
    detached = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in detached]


def _sharded(module: nn.Module) -> bool:
    return any(hasattr(parameter, "to_local") for parameter in module.parameters())

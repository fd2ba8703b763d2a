"""Complete weights and optimizer states as plain dictionaries on the CPU, also of sharded modules."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def get_weights(module: nn.Module) -> dict[str, Any]:
    """Copy the weights to the CPU. Collective: call on every rank. If they are sharded, only rank 0 receives them."""
    if _is_sharded(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        complete = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(module, options=complete)
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}


def set_weights(module: nn.Module, state: dict[str, Any]) -> None:
    """Load weights returned by `get_weights`. Collective: call on every rank."""
    if _is_sharded(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        set_model_state_dict(module, state, options=StateDictOptions(full_state_dict=True))
    else:
        module.load_state_dict(state)


def get_optimizer(module: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Copy the state of the optimizer to the CPU. Collective: call on every rank."""
    if _is_sharded(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        complete = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_optimizer_state_dict(module, optimizer.optimizer, options=complete)
    state = optimizer.optimizer.state_dict()
    values = {
        number: {name: value.cpu() if isinstance(value, Tensor) else value for name, value in each.items()}
        for number, each in state["state"].items()
    }
    return {**state, "state": values}


def set_optimizer(module: nn.Module, optimizer: Any, state: dict[str, Any]) -> None:
    """Load a state returned by `get_optimizer`. Collective: call on every rank."""
    if _is_sharded(module):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        complete = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(module, optimizer.optimizer, state, options=complete)
    else:
        optimizer.optimizer.load_state_dict(state)


@contextlib.contextmanager
@torch.no_grad()
def temporary_weights(module: nn.Module, state: dict[str, Any]) -> Iterator[None]:
    """Use other weights inside the context. Collective: call on every rank, with the same weights."""
    tensors = local_tensors(module)
    saved = [tensor.clone() for tensor in tensors]
    set_weights(module, state)
    try:
        yield
    finally:
        for tensor, before in zip(tensors, saved, strict=True):
            tensor.copy_(before)


def all_finite(state: dict[str, Any]) -> bool:
    """Return whether no weight is NaN or infinite."""
    return all(bool(tensor.isfinite().all()) for tensor in state.values())


def local_tensors(module: nn.Module) -> list[Tensor]:
    """Return all parameters and buffers, detached; of sharded ones, the shard of this process."""
    detached = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in detached]


def _is_sharded(module: nn.Module) -> bool:
    return any(hasattr(parameter, "to_local") for parameter in module.parameters())

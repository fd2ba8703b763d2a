"""Weights and optimizer state as plain dictionaries on the CPU: whole, also where processes hold parts of them."""

from typing import Any

from torch import Tensor, nn


def get_weights(model: Any, module: nn.Module) -> dict[str, Any]:
    """model: as set up by fabric. module: the network itself, inside. All processes must ask."""
    if _sharded(model):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(model._forward_module, options=whole)
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}


def set_weights(model: Any, module: nn.Module, state: dict[str, Any]) -> None:
    """The other way."""
    if _sharded(model):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        set_model_state_dict(model._forward_module, state, options=StateDictOptions(full_state_dict=True))
    else:
        module.load_state_dict(state)


def get_optimizer(model: Any, optimizer: Any) -> dict[str, Any]:
    if _sharded(model):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_optimizer_state_dict(model._forward_module, optimizer.optimizer, options=whole)
    state = optimizer.optimizer.state_dict()
    values = {
        number: {name: value.cpu() if isinstance(value, Tensor) else value for name, value in each.items()}
        for number, each in state["state"].items()
    }
    return {**state, "state": values}


def set_optimizer(model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    if _sharded(model):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

        whole = StateDictOptions(full_state_dict=True)
        set_optimizer_state_dict(model._forward_module, optimizer.optimizer, state, options=whole)
    else:
        optimizer.optimizer.load_state_dict(state)


def _sharded(model: Any) -> bool:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return any(isinstance(each, FullyShardedDataParallel) for each in model.modules())

"""Starting the processes of a run with lightning-fabric, and collectives over them."""

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from . import processes
from .config import TrainConfig
from .files import WriteError

T = TypeVar("T")
PRECISIONS: dict[str, Any] = {"32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def launch(config: TrainConfig) -> Any:
    """Start the processes of a run.

    With several devices, and without torchrun, the program is started again for each further device; every copy
    continues from this call.

    Args:
        config: Devices, strategy and precision of the run.

    Returns:
        A launched `lightning_fabric.Fabric`.

    Raises:
        ValueError: The configuration does not fit this machine.
        ModuleNotFoundError: lightning-fabric is not installed.
        ProcessLost: A process died while the processes were connecting.

    Example:
        >>> launch(TrainConfig(accelerator="cpu")).world_size
        1
    """
    config.check()
    try:
        from lightning_fabric import Fabric
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"training needs {error.name}: pip install 'pointgrad[train]'", name=error.name
        ) from error
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it logs every process and precision
    accelerator = config.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise ValueError("accelerator must be cpu where torch finds no GPU, got cuda")
    if accelerator == "cpu" and config.precision == "fp16":
        raise ValueError("precision must be 32 or bf16 on the CPU, got fp16")
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", config.devices))  # set by torchrun
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", config.nodes))
    if accelerator == "cuda" and devices > torch.cuda.device_count():
        raise ValueError(f"devices must be at most {torch.cuda.device_count()}, the number of GPUs, got {devices}")
    no_fsdp = accelerator == "cpu" and not hasattr(torch.cpu.Stream, "record_event")  # which FSDP calls
    if config.strategy == "fsdp" and no_fsdp:
        raise ValueError(f"strategy must be ddp on the CPU with torch {torch.__version__}, got fsdp")
    count = devices * nodes
    strategy: Any = "auto"
    if config.strategy == "fsdp":
        from lightning_fabric.strategies import ModelParallelStrategy

        strategy = ModelParallelStrategy(
            _shard, data_parallel_size=count, tensor_parallel_size=1, timeout=processes.TIMEOUT
        )
    elif config.strategy == "ddp" or count > 1:
        from lightning_fabric.strategies import DDPStrategy

        strategy = DDPStrategy(timeout=processes.TIMEOUT)
    torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        precision=PRECISIONS[config.precision],
    )
    if nodes == 1:
        processes.start_processes(fabric)
    with processes.explain_lost_process(count):
        fabric.launch()
    return fabric


def _shard(model: nn.Module, mesh: Any) -> nn.Module:
    """Shard weights, gradients and optimizer state with FSDP 2, as one unit: layers may use each other's weights."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh["data_parallel"])
    return model


def synchronize_batch_norm(model: nn.Module, fabric: Any) -> nn.Module:
    """Normalize over the batches of all processes on GPUs; torch does not support this on the CPU."""
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model


def broadcast_result(fabric: Any, function: Callable[[], T]) -> T:
    """Call `function` on rank 0 and return its result, or raise its error, on every rank.

    Collective: call on every rank. Only errors of data and disks are broadcast.
    """
    if fabric.world_size == 1:
        return function()
    result, error = None, None
    if fabric.global_rank == 0:
        try:
            result = function()
        except (ValueError, OSError, WriteError) as raised:
            error = raised
    with processes.explain_lost_process(fabric.world_size):
        result, error = fabric.broadcast((result, error))
    if error is not None:
        raise error
    return result


def all_sum(fabric: Any, number: int) -> int:
    """Return the sum of a number over all processes. Collective: call on every rank."""
    if fabric.world_size == 1:
        return number
    total = torch.tensor(number, device=fabric.device)
    torch.distributed.all_reduce(total)
    return int(total)


def all_max(fabric: Any, *numbers: int) -> list[int]:
    """Return the maximum of each number over all processes. Collective: call on every rank."""
    if fabric.world_size == 1:
        return list(numbers)
    largest = torch.tensor(numbers, device=fabric.device)
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    return largest.tolist()

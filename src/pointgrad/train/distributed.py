"""Starting processes, and the little that they have to agree on. Built on lightning-fabric."""

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from . import processes
from .config import TrainConfig
from .files import WriteError

Answer = TypeVar("Answer")
PRECISIONS: dict[str, Any] = {"32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def launch(config: TrainConfig) -> Any:
    """A `lightning_fabric.Fabric` for this configuration, its processes started.

    Several devices without torchrun: the program is started again for each, and each copy goes on from here.

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
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces every process and precision
    accelerator = config.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise ValueError("accelerator must be cpu where torch finds no GPU, got cuda")
    if accelerator == "cpu" and config.precision == "fp16":
        raise ValueError("precision must be 32 or bf16 on the CPU, got fp16")
    # torchrun says how many there are; what an earlier call here started is not torchrun's.
    started = {} if processes.started_here() else os.environ
    devices = int(started.get("LOCAL_WORLD_SIZE", config.devices))
    nodes = int(started.get("GROUP_WORLD_SIZE", config.nodes))
    if accelerator == "cuda" and devices > torch.cuda.device_count():
        raise ValueError(f"devices must be at most {torch.cuda.device_count()}, the GPUs here, got {devices}")
    no_fsdp = accelerator == "cpu" and not hasattr(torch.cpu.Stream, "record_event")  # which FSDP calls
    if config.strategy == "fsdp" and no_fsdp:
        raise ValueError(f"strategy must be ddp on the CPU with torch {torch.__version__}, got fsdp")
    count = devices * nodes
    if nodes == 1:
        processes.start(count)
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
    with processes.losses_named(count, ""):
        fabric.launch()
    return fabric


def _shard(model: nn.Module, mesh: Any) -> nn.Module:
    """Weights, gradients and optimizer state are spread over all processes (FSDP 2). The network is one unit, because
    layers may use each other's weights."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=mesh["data_parallel"])
    return model


def synchronised(model: nn.Module, fabric: Any) -> nn.Module:
    """Batch norm over the batches of all processes. torch has it for GPUs only; elsewhere each sees its own batches."""
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model


def from_first(fabric: Any, ask: Callable[[], Answer]) -> Answer:
    """What `ask()` gives in the first process, or raises there because of data or a disk, in all. All must ask."""
    if fabric.world_size == 1:
        return ask()
    answer, error = None, None
    if fabric.global_rank == 0:
        try:
            answer = ask()
        except (ValueError, OSError, WriteError) as raised:
            error = raised
    with processes.losses_named(fabric.world_size, ""):
        answer, error = fabric.broadcast((answer, error))
    if error is not None:
        raise error
    return answer


def summed(fabric: Any, number: int) -> int:
    """The sum over all processes, which must all ask."""
    if fabric.world_size == 1:
        return number
    total = torch.tensor(number, device=fabric.device)
    torch.distributed.all_reduce(total)
    return int(total)


def agreed(fabric: Any, *numbers: int) -> list[int]:
    """The largest that any process says, for each number. All processes must ask."""
    if fabric.world_size == 1:
        return list(numbers)
    said = torch.tensor(numbers, device=fabric.device)
    torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX)
    return said.tolist()

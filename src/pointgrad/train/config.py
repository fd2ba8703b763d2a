"""What a training run may be told."""

from dataclasses import dataclass
from typing import Literal


@dataclass
class TrainConfig:
    """How to train. Together with the data, the model and the number of processes it determines the result."""

    epochs: int = 100
    """How often all data are seen."""

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """How gradients change weights."""

    lr: float = 1e-3
    """Learning rate at its highest."""

    weight_decay: float = 0.05
    """How fast weights shrink; norms and biases do not."""

    momentum: float = 0.9
    """Of sgd."""

    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Of the learning rate, after the warm-up: to zero along a cosine, or by step_factor every step_epochs."""

    warmup_epochs: float = 5.0
    """Over how many epochs the learning rate rises from zero; at most a tenth of all."""

    step_epochs: int = 20
    """Of the schedule "step": after how many epochs the learning rate falls."""

    step_factor: float = 0.7
    """Of the schedule "step": to which part of itself the learning rate falls."""

    smoothing: float = 0.2
    """Part of each label that is spread over all classes."""

    class_weights: Literal["none", "sqrt", "inverse"] = "none"
    """What a class counts: all the same, or more the rarer it is: one over (the square root of) its share."""

    clip: float = 10.0
    """Largest norm of the gradient; 0: any."""

    accumulate: int = 1
    """Batches per update; the update is that of one large batch (except for what batch norm sees)."""

    ema: float = 0.0
    """Decay of a running mean of the weights, which is then evaluated and kept, such as 0.999; 0: none."""

    patience: int = 0
    """Stops after so many epochs without a better validation; 0: never."""

    monitor: Literal["auto", "accuracy", "class_accuracy", "miou", "instance_miou", "loss"] = "auto"
    """What decides which epoch is the best; auto: accuracy for classification, else instance_miou or miou."""

    precision: Literal["32", "tf32", "bf16", "fp16"] = "32"
    """Of the arithmetic. bf16 and fp16 are mixed precision: weights stay float32."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto: on a GPU if there is one."""

    devices: int = 1
    """Processes on this machine, one per GPU. torchrun decides for itself."""

    nodes: int = 1
    """Machines; start them with torchrun."""

    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several processes share the work: ddp, each holds all weights; fsdp, each holds a part. auto: ddp."""

    compile: bool = False
    """Compiles the network with torch.compile: slower to start, faster later."""

    seed: int = 0
    """Of everything random. The same seed, data and settings give the same run."""

    checkpoint_minutes: float = 10.0
    """Saves in the middle of an epoch after so many minutes; besides that, after every epoch."""

    tensorboard: bool = True
    """Writes TensorBoard files, if tensorboard is installed."""

    def check(self) -> None:
        """Refuses values that make no sense."""
        positive = ("epochs", "lr", "step_epochs", "accumulate", "devices", "nodes", "checkpoint_minutes")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("weight_decay", "warmup_epochs", "clip", "patience", "seed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("smoothing", "ema", "momentum", "step_factor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")

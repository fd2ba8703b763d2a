"""Training configuration."""

from dataclasses import dataclass
from typing import Literal


@dataclass
class TrainConfig:
    """Settings of a training run. With the data, the model and the number of processes they determine the result."""

    epochs: int = 100
    """Number of passes over the training data."""

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """Optimizer."""

    lr: float = 1e-3
    """Peak learning rate."""

    weight_decay: float = 0.05
    """Weight decay; not applied to norms and biases."""

    momentum: float = 0.9
    """SGD momentum."""

    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """Learning rate after the warm-up: cosine decay to zero, decay by step_factor every step_epochs, or constant."""

    warmup_epochs: float = 5.0
    """Epochs over which the learning rate rises from zero; at most a tenth of all epochs."""

    step_epochs: int = 20
    """Epochs between two decays of the "step" schedule."""

    step_factor: float = 0.7
    """Factor by which the "step" schedule multiplies the learning rate."""

    smoothing: float = 0.2
    """Label smoothing, from 0 to 1."""

    class_weights: Literal["auto", "none", "sqrt", "inverse"] = "auto"
    """Weights of classes in the loss: equal, or one over (the square root of) the frequency of each class.
    auto: sqrt if `pointgrad train` crops scenes, else none."""

    clip: float = 10.0
    """Maximum norm of the gradient; 0 disables clipping."""

    accumulate: int = 1
    """Batches per update. The update equals that of one large batch, except for the statistics of batch norm."""

    ema: float = 0.0
    """Decay of a moving average of the weights, such as 0.999, which is then evaluated and saved; 0 disables it."""

    patience: int = 0
    """Stop after this many epochs without improvement; 0 disables early stopping."""

    monitor: Literal["auto", "accuracy", "class_accuracy", "miou", "instance_miou", "loss"] = "auto"
    """Metric that selects the best epoch; auto: accuracy for classification, instance_miou for parts, else miou."""

    freeze: bool = False
    """Train only the last layers of the network, `head` (linear probing): all other weights are fixed, with norms and
    dropout in evaluation mode."""

    precision: Literal["32", "tf32", "bf16", "fp16"] = "32"
    """Arithmetic precision. bf16 and fp16 are mixed precision: weights stay float32."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device type; auto: a GPU if one is available."""

    devices: int = 1
    """Number of processes on this machine, one per GPU. Ignored under torchrun."""

    nodes: int = 1
    """Number of machines; start several with torchrun."""

    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """Distributed strategy: ddp replicates the weights in every process, fsdp shards them. auto: ddp."""

    compile: bool = False
    """Compile the network with torch.compile: slower start, faster steps."""

    seed: int = 0
    """Random seed. The same seed, data and settings give the same run."""

    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints within an epoch; a checkpoint is also saved after every epoch."""

    tensorboard: bool = True
    """Write TensorBoard files, if tensorboard is installed."""

    def check(self) -> None:
        """Raise ValueError for values out of range."""
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

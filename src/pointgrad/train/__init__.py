"""Training: loops, metrics, checkpoints, several processes."""

from pointgrad.train.checkpoint import CheckpointError as CheckpointError
from pointgrad.train.checkpoint import Trained as Trained
from pointgrad.train.checkpoint import load as load
from pointgrad.train.config import TrainConfig as TrainConfig
from pointgrad.train.distributed import launch as launch
from pointgrad.train.errors import Interrupted as Interrupted
from pointgrad.train.errors import NonFiniteLoss as NonFiniteLoss
from pointgrad.train.files import WriteError as WriteError
from pointgrad.train.hooks import Hook as Hook
from pointgrad.train.initial import load_weights as load_weights
from pointgrad.train.loops import CrossEntropy as CrossEntropy
from pointgrad.train.loops import evaluate as evaluate
from pointgrad.train.loops import train_epoch as train_epoch
from pointgrad.train.metrics import Metrics as Metrics
from pointgrad.train.processes import ProcessLost as ProcessLost
from pointgrad.train.trainer import Trainer as Trainer

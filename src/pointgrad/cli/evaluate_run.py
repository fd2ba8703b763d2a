"""Evaluation of the best checkpoint of a run on its own validation data, for runs without an evaluation file."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pointgrad import data, train
from pointgrad.data import Batch
from pointgrad.train.checkpoint import BEST
from pointgrad.train.evaluation import Evaluation, Examples
from pointgrad.train.metrics import parts_of

from .config import read_config
from .device import device as choose_device
from .train import Train


def evaluate_run(run: Path, progress: Callable[[int, int], None], *, device: str) -> Evaluation:
    """Evaluate the best checkpoint with the data and the preparation of the run's config.yaml.

    Args:
        run: Run folder.
        progress: Called with the number of finished batches and of all batches.
        device: A torch device, or "auto".

    Returns:
        The evaluation; its epoch is 0, because the epoch of the checkpoint is not known.

    Raises:
        ValueError, OSError: The run cannot be evaluated. The message is one sentence.
    """
    flags = replace(read_config(Train, run / "config.yaml"), workers=0)
    if not flags.data:
        raise ValueError(f"{run / 'config.yaml'}: names no data to evaluate on; only runs of `pointgrad train` do")
    where = choose_device(device)  # not earlier: while nothing is evaluated, the training may need the whole GPU
    trained = train.load(run / BEST, where)
    dataset: Any = data.open_dataset(flags.data, "val", trained.task, classes=trained.class_map)  # type: ignore[arg-type]
    if tuple(dataset.classes) != trained.classes:
        raise ValueError(f"{flags.data}: its classes must be those of the run, but they have changed")
    if not len(dataset):
        raise ValueError(f"{flags.data}: has no validation data")
    alone = SimpleNamespace(device=where, global_rank=0, world_size=1)
    loader = flags.loader(dataset, alone, training=False)

    def batches() -> Iterator[Batch]:
        for done, batch in enumerate(loader):
            progress(done, len(loader))
            yield batch

    parts = parts_of(dataset)
    examples = Examples(train.Metrics(len(trained.classes), parts, where))
    torch.manual_seed(flags.seed)
    metrics = train.evaluate(trained.model, batches(), classes=len(trained.classes), parts=parts, see=examples.see)
    return Evaluation(0, trained.task, trained.classes, metrics.confusion.cpu(), examples.clouds, examples.kept)

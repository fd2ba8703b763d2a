"""The best checkpoint of a run on the run's own validation data, for runs that have not kept what it does there."""

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
from pointgrad.train.trainer import parts_of

from .config import read_config
from .device import device as choose_device
from .train import Train


def evaluate_run(run: Path, progress: Callable[[int, int], None], *, device: str) -> Evaluation:
    """The data and how they are prepared are those of the run's config.yaml; epoch is 0, it is not known here.

    progress: called with the batches that are done, and all. Raises ValueError or OSError, one sentence each.
    """
    flags = replace(read_config(Train, run / "config.yaml"), workers=0)
    if not flags.data:
        raise ValueError(f"{run / 'config.yaml'}: names no data to evaluate on; runs of `pointgrad train` do")
    where = choose_device(device)  # only now: a GPU that nothing asks for belongs to the training
    trained = train.load(run / BEST, where)
    dataset: Any = data.open_dataset(flags.data, "val", trained.task)  # type: ignore[arg-type]
    if tuple(dataset.classes) != trained.classes:
        raise ValueError(f"{flags.data}: its classes must be those of the run, they have changed")
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

"""Batches of a data set, in an order and with an augmentation that depend on seed, epoch and index alone."""

import signal
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from pointgrad.data.cloud import Batch, Cloud, collate
from pointgrad.data.files import FileError
from pointgrad.data.mixing import mix
from pointgrad.data.transforms import Transform

PREFETCH = 4  # batches that each worker may be ahead


class Loader:
    """Iterates over a data set in packed batches; built on `torch.utils.data.DataLoader`.

    dataset: gives a `Cloud` for each index from 0 to len - 1.
    batch_size: clouds per batch and process.
    transform: called as `transform(cloud, generator)`, the generator seeded from (seed, epoch, index).
    features: names of the columns of `Batch.features`.
    shuffle: a new order each epoch, from (seed, epoch); without it, the order of the data set.
    workers: processes that read and transform; 0: this one. What they give does not depend on their number. They may
        call pointgrad's operators, and stay from epoch to epoch.
    rank, world: this process and the number of all. Batch i of the epoch is
        `order[i * world * batch_size : (i + 1) * world * batch_size]`, of which each rank takes its contiguous part;
        the last, smaller batch is cut as evenly as possible, so that no sample comes twice. All ranks iterate equally
        often, and a rank's part of the last batch may be empty.
    skip_bad: leave out samples whose reading or transform raises ValueError (`FileError` is one) or OSError, instead
        of raising. The others do not change. A batch of which nothing is left comes as an empty one; an epoch of which
        nothing is left raises.
    drop_last: leave out the last batch if it is smaller.

    skipped: what was left out so far, the reason (which names the file) by index.

    In memory pinned for the copy to a GPU where there is one.

    >>> from pointgrad.data import Shapes
    >>> loader = Loader(Shapes("train", size=10), batch_size=4, shuffle=True)
    >>> [len(batch) for batch in loader]
    [4, 4, 2]
    """

    def __init__(
        self,
        dataset: Dataset[Cloud],
        *,
        batch_size: int,
        transform: Transform | None = None,
        features: Sequence[str] = (),
        shuffle: bool = False,
        seed: int = 0,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        skip_bad: bool = False,
        drop_last: bool = False,
    ) -> None:
        size = len(dataset)  # type: ignore[arg-type]  # a Dataset need not have one, those here do
        for name, value, least in (("batch_size", batch_size, 1), ("workers", workers, 0), ("world", world, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0 <= rank < world:
            raise ValueError(f"rank must be from 0 to {world - 1}, got {rank}")
        if drop_last and 0 < size < batch_size * world:
            raise ValueError(
                f"batch_size must be at most {max(size // world, 1)} with drop_last, for {size} samples in {world} "
                f"processes, got {batch_size}"
            )
        self.dataset: Any = dataset
        self.skipped: dict[int, str] = {}
        self._order = _Order(size, batch_size, shuffle, seed, rank, world, drop_last)
        self._loader = DataLoader(
            _Samples(dataset, transform, tuple(features), seed),
            batch_sampler=self._order,
            collate_fn=_Collate(tuple(features), skip_bad),
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=PREFETCH if workers else None,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # or each epoch would draw a number from torch's own
            worker_init_fn=_ignore_interrupts,
        )

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self._order)

    def __iter__(self) -> Iterator[Batch]:
        good, reasons = 0, {}
        for batch, bad in self._loader:
            if batch is None:
                raise ValueError(next(iter(bad.values())))
            self.skipped.update(bad)
            reasons.update(bad)
            good += len(batch)
            yield batch
        if reasons and not good:
            first = next(iter(reasons.values()))
            raise ValueError(f"there must be samples that can be read, got none; one reason: {first}")

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration: another order, another augmentation."""
        self._order.epoch = epoch

    def skip(self, steps: int) -> None:
        """The next iteration, and only that one, starts after so many batches."""
        self._order.skip = steps

    def close(self) -> None:
        """Ends the workers; another iteration starts new ones. At the end of a program torch gives each worker that
        still waits for work five seconds, one after another."""
        self._loader._iterator = None


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal. What is to be done about it is for the parent to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Order(Sampler[list[tuple[int, int]]]):
    """The (epoch, index) pairs of each batch. The epoch travels with the index, because workers live longer than it."""

    def __init__(
        self, size: int, batch_size: int, shuffle: bool, seed: int, rank: int, world: int, drop_last: bool
    ) -> None:
        self.size, self.step, self.shuffle, self.seed = size, batch_size * world, shuffle, seed
        self.rank, self.world, self.drop_last = rank, world, drop_last
        self.epoch = self.skip = 0

    def __len__(self) -> int:
        return self.size // self.step if self.drop_last else -(-self.size // self.step)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        first, self.skip = self.skip, 0
        epoch = self.epoch
        order: Sequence[int] = range(self.size)
        if self.shuffle:
            generator = torch.Generator().manual_seed(mix(self.seed, epoch))
            order = torch.randperm(self.size, generator=generator).tolist()
        for number in range(first, len(self)):
            batch = order[number * self.step : (number + 1) * self.step]
            begin, end = (len(batch) * rank // self.world for rank in (self.rank, self.rank + 1))
            yield [(epoch, index) for index in batch[begin:end]]


class _Bad(NamedTuple):
    """A sample that cannot be had. Goes from worker to parent as text: not every exception can be pickled."""

    number: int
    reason: str


class _Samples(Dataset[list[Any]]):
    """Items of the data set, transformed. Runs in the workers."""

    def __init__(
        self, dataset: Dataset[Cloud], transform: Transform | None, features: tuple[str, ...], seed: int
    ) -> None:
        self.dataset, self.transform, self.features, self.seed = dataset, transform, features, seed

    def __getitems__(self, keys: list[tuple[int, int]]) -> list["Cloud | _Bad"]:
        generator = torch.Generator()
        return [self._sample(epoch, index, generator) for epoch, index in keys]

    def _sample(self, epoch: int, index: int, generator: torch.Generator) -> "Cloud | _Bad":
        name = f"sample {index}"
        try:
            cloud = self.dataset[index]
            name = cloud.source or name
            if self.transform is not None:
                cloud = self.transform(cloud, generator.manual_seed(mix(self.seed, epoch, index)))
            cloud.need(self.features)
            return cloud
        except FileError as error:  # says which file
            return _Bad(index, " ".join(str(error).split()))
        except (ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            return _Bad(index, reason if reason.startswith(name) else f"{name}: {reason}")
        except Exception as error:  # a mistake in a data set or a transform: with its traceback, and the sample's name
            raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error


class _Collate:
    """The good samples as a batch, and the reasons of the bad ones; no batch if there may be none."""

    def __init__(self, features: tuple[str, ...], skip_bad: bool) -> None:
        self.features, self.skip_bad = features, skip_bad

    def __call__(self, samples: list[Any]) -> tuple[Batch | None, dict[int, str]]:
        bad = {sample.number: sample.reason for sample in samples if isinstance(sample, _Bad)}
        if bad and not self.skip_bad:
            return None, bad
        try:
            return collate([sample for sample in samples if isinstance(sample, Cloud)], self.features), bad
        except ValueError as error:  # samples that do not fit each other
            return None, {-1: str(error)}

"""Batches of a dataset. Order and augmentation depend only on seed, epoch and index."""

import signal
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from pointgrad.data.cloud import Batch, Cloud, collate
from pointgrad.data.files import FileError
from pointgrad.data.mixing import mix
from pointgrad.data.transforms import Transform
from pointgrad.errors import one_line

PREFETCH = 4  # batches that each worker loads in advance


class Loader:
    """Iterate over a dataset in packed batches; built on `torch.utils.data.DataLoader`.

    Batches are in pinned memory if a GPU is available.

    Args:
        dataset: Returns a `Cloud` for each index from 0 to len - 1.
        batch_size: Clouds per batch and process.
        transform: Called as `transform(cloud, generator)` with a generator seeded from (seed, epoch, index).
        features: Names of the columns of `Batch.features`.
        shuffle: Whether to draw a new order each epoch, from (seed, epoch), instead of the order of the dataset.
        seed: Seed of order and augmentation.
        workers: Number of worker processes that read and transform; 0 uses the calling process. Results do not depend
            on it. Workers may call pointgrad's operators, and live until `close`.
        rank: Rank of this process.
        world: Number of processes. Batch i of an epoch is
            `order[i * world * batch_size : (i + 1) * world * batch_size]`, of which each rank takes a contiguous part.
            A smaller last batch is divided as evenly as possible, without repeating samples. All ranks have the same
            number of batches, and a rank's part of the last one may be empty.
        skip_bad: Skip samples whose reading or transform raises `ValueError` (which includes `FileError`) or
            `OSError`, instead of raising. Other samples do not change. A batch with only bad samples is empty; an epoch
            with only bad samples raises.
        drop_last: Drop the last batch if it is smaller.

    Attributes:
        skipped: Reasons for skipped samples so far, by index. Each names the file.

    Example:
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
        size = len(dataset)  # type: ignore[arg-type]  # Dataset does not declare __len__
        for name, value, least in (("batch_size", batch_size, 1), ("workers", workers, 0), ("world", world, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in [0, {world}), got {rank}")
        if drop_last and 0 < size < batch_size * world:
            raise ValueError(
                f"batch_size must be at most {max(size // world, 1)} with drop_last, {size} samples and {world} "
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
            generator=torch.Generator(),  # otherwise each epoch would draw a number from torch's global generator
            worker_init_fn=_ignore_interrupts,
        )

    def __len__(self) -> int:
        """Number of batches in an epoch."""
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
            raise ValueError(f"expected at least one readable sample, got none; one reason: {first}")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, which determines order and augmentation."""
        self._order.epoch = epoch

    def skip(self, steps: int) -> None:
        """Skip the first `steps` batches of the next iteration."""
        self._order.skip = steps

    def close(self) -> None:
        """Stop the workers; the next iteration starts new ones.

        Without this call, torch may wait up to five seconds for each idle worker when the program exits.
        """
        self._loader._iterator = None


def _ignore_interrupts(worker: int) -> None:
    """Ignore Ctrl-C, which a terminal sends to all processes: the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Order(Sampler[list[tuple[int, int]]]):
    """The (epoch, index) pairs of each batch. Workers need the epoch, because they live for several."""

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
    """A sample that could not be loaded. The reason is text, because not every exception can be pickled."""

    number: int
    reason: str


class _Samples(Dataset[list[Any]]):
    """Transformed items of the dataset. Runs in the workers."""

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
        except FileError as error:  # already names the file
            return _Bad(index, one_line(error))
        except (ValueError, OSError) as error:
            reason = one_line(error)
            return _Bad(index, reason if reason.startswith(name) else f"{name}: {reason}")
        except Exception as error:  # a bug in a dataset or transform: keep the traceback, and name the sample
            raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error


class _Collate:
    """Collate good samples, and collect the reasons of bad ones. The batch is None if an error must be raised."""

    def __init__(self, features: tuple[str, ...], skip_bad: bool) -> None:
        self.features, self.skip_bad = features, skip_bad

    def __call__(self, samples: list[Any]) -> tuple[Batch | None, dict[int, str]]:
        bad = {sample.number: sample.reason for sample in samples if isinstance(sample, _Bad)}
        if bad and not self.skip_bad:
            return None, bad
        try:
            return collate([sample for sample in samples if isinstance(sample, Cloud)], self.features), bad
        except ValueError as error:  # samples with different features
            return None, {-1: str(error)}

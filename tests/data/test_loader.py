"""`Loader`: order, augmentation, ranks, resumption, bad samples and workers; `collate`."""

import itertools
import multiprocessing
import os
import signal

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset

import pointgrad
from pointgrad.data import Batch, Cloud, Compose, FileError, Jitter, Loader, Prepare, Shapes, collate
from pointgrad.data.mixing import mix

BAD = (3, 4, 5, 17)


class Numbered(Dataset):
    """Cloud i has points at i, and some are unreadable. At module level, so that spawned workers can import it."""

    classes, task = ("a", "b"), "classification"

    def __init__(self, size=20, bad=()):
        self.size, self.bad = size, bad

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.bad:
            kinds = [
                FileError("x.ply: expected 9 vertices, but the file ends after 7"),
                ValueError("no\npoints"),
                OSError(5, "I/O error", "y.ply"),
            ]
            raise kinds[index % 3]
        return Cloud(torch.full((2, 3), float(index)), label=index % 2, source=f"{index}.ply")


class Sampled(Numbered):
    """Calls an operator with enough points for several threads."""

    def __getitem__(self, index):
        points = torch.rand(5000, 3, generator=torch.Generator().manual_seed(index))
        return Cloud(points[pointgrad.farthest_point_sampling(points, 8)], label=0)


class Broken:
    def __call__(self, cloud, generator):
        return cloud.points.no_such_thing


def numbers(batch):
    return batch.points[::2, 0].round().long().tolist()


def rows(loader):
    return [batch.points for batch in loader]


def failure(loader):
    """Return the exception that iterating raises, without its traceback, which would keep workers alive."""
    try:
        list(loader)
    except Exception as error:
        return type(error), str(error)


def equal(a, b):
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.fixture
def spawning():
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


def test_each_epoch_has_every_sample_once_in_a_new_order():
    loader = Loader(Numbered(23), batch_size=5, shuffle=True)
    orders = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        batches = [numbers(batch) for batch in loader]
        assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3]
        assert len(loader) == 5
        orders.append(list(itertools.chain(*batches)))
        assert sorted(orders[-1]) == list(range(23))
    assert len(set(map(tuple, orders))) == 3
    assert orders[0] != sorted(orders[0])
    loader.set_epoch(0)
    assert [n for batch in loader for n in numbers(batch)] == orders[0]
    other = Loader(Numbered(23), batch_size=5, shuffle=True, seed=1)
    assert [n for batch in other for n in numbers(batch)] != orders[0]
    plain = Loader(Numbered(23), batch_size=5)
    assert [n for batch in plain for n in numbers(batch)] == list(range(23))


def test_augmentation_depends_on_seed_epoch_and_index_only():
    """Order, batch size and number of workers have no effect on augmentation."""
    noise = Jitter(0.1, 0.4)
    by_epoch = []
    loaders = [
        Loader(Numbered(9), batch_size=2, transform=noise, shuffle=True),
        Loader(Numbered(9), batch_size=4, transform=noise),
        Loader(Numbered(9), batch_size=2, transform=noise, shuffle=True, workers=2),
    ]
    for epoch in range(2):
        seen = []
        for loader in loaders:
            loader.set_epoch(epoch)
            clouds = torch.cat(rows(loader)).reshape(9, 2, 3)
            seen.append(clouds[clouds[:, 0, 0].argsort()])
        assert torch.equal(seen[0], seen[1])
        assert torch.equal(seen[0], seen[2])
        by_epoch.append(seen[0])
    assert not torch.isclose(by_epoch[0], by_epoch[1]).all(2).any()
    assert by_epoch[0].round().unique().tolist() == list(range(9))
    offsets = by_epoch[0] - by_epoch[0].round()
    assert len(offsets.reshape(9, -1).unique(dim=0)) == 9  # samples have different noise
    other = torch.cat(rows(Loader(Numbered(9), batch_size=9, transform=noise, seed=1))).reshape(9, 2, 3)
    assert not torch.isclose(other, by_epoch[0]).all(2).any()


@pytest.mark.parametrize(("size", "world", "batch_size"), [(20, 2, 4), (21, 2, 4), (7, 3, 2), (5, 4, 2), (6, 3, 10)])
def test_ranks_share_the_batches_of_one_process(size, world, batch_size):
    whole = Loader(Numbered(size), batch_size=batch_size * world, shuffle=True, transform=Jitter())
    shares = [
        Loader(Numbered(size), batch_size=batch_size, shuffle=True, transform=Jitter(), rank=rank, world=world)
        for rank in range(world)
    ]
    assert {len(share) for share in shares} == {len(whole)}
    for batch, *parts in zip(whole, *shares, strict=True):
        assert torch.equal(torch.cat([part.points for part in parts]), batch.points)
        lengths = [len(part) for part in parts]
        assert max(lengths) - min(lengths) <= 1
        assert max(lengths) <= batch_size


def test_drop_last():
    shares = [Loader(Numbered(21), batch_size=4, drop_last=True, rank=rank, world=2) for rank in range(2)]
    assert [[len(batch) for batch in share] for share in shares] == [[4, 4], [4, 4]]
    assert len(shares[0]) == 2
    with pytest.raises(
        ValueError, match="batch_size must be at most 3 with drop_last, 7 samples and 2 processes, got 4"
    ):
        Loader(Numbered(7), batch_size=4, drop_last=True, world=2)


@pytest.mark.parametrize("workers", [0, 1])
def test_skip_gives_the_rest_of_the_epoch(workers):
    loader = Loader(Numbered(11), batch_size=2, shuffle=True, transform=Jitter(), workers=workers)
    loader.set_epoch(4)
    whole = rows(loader)
    for steps in (0, 2, 6):
        loader.skip(steps)
        assert equal(rows(loader), whole[steps:])
    assert equal(rows(loader), whole)  # applies to one iteration only
    assert len(loader) == 6
    next(iter(loader))  # interrupted, then restarted
    assert equal(rows(loader), whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_bad_records_reasons_and_keeps_other_samples_unchanged(workers):
    make = {"batch_size": 4, "shuffle": True, "transform": Jitter(), "workers": workers}
    good = Loader(Numbered(20), **make)
    loader = Loader(Numbered(20, BAD), **make, skip_bad=True)
    for full, less in zip(good, loader, strict=True):
        keep = [number not in BAD for number in numbers(full)]
        clouds = full.points.reshape(-1, 2, 3)[torch.tensor(keep)]
        assert torch.equal(less.points.reshape(-1, 2, 3), clouds)
        assert less.target.tolist() == [t for t, k in zip(full.target.tolist(), keep, strict=True) if k]
    assert loader.skipped == {
        3: "x.ply: expected 9 vertices, but the file ends after 7",
        4: "sample 4: no points",
        5: "sample 5: [Errno 5] I/O error: 'y.ply'",
        17: "sample 17: [Errno 5] I/O error: 'y.ply'",
    }
    list(loader)
    assert len(loader.skipped) == 4  # counted once


def test_batch_of_bad_samples_is_empty():
    """All ranks must take the same number of steps, and resumption counts batches."""
    loader = Loader(Numbered(6, (0, 1, 2)), batch_size=3, skip_bad=True)
    first, second = loader
    assert len(first) == 0
    assert first.points.shape == (0, 3)
    assert first.offsets.tolist() == [0]
    assert first.inputs()["points"].shape == (0, 3)
    assert numbers(second) == [3, 4, 5]


def test_epoch_of_bad_samples_is_an_error():
    error, message = failure(Loader(Numbered(4, range(4)), batch_size=2, features=["red"], skip_bad=True))
    assert error is ValueError
    assert message.startswith("expected at least one readable sample, got none; one reason: ")
    loader = Loader(Numbered(5, (0,)), batch_size=2, skip_bad=True)
    list(loader)
    loader.skip(3)
    assert list(loader) == []  # resumed at the end of an epoch: no batches, and no error


@pytest.mark.parametrize("workers", [0, 2])
def test_error_of_a_bad_sample_is_one_line_that_names_the_file(workers):
    error, message = failure(Loader(Numbered(20, BAD), batch_size=4, workers=workers))
    assert error is ValueError
    assert message == "x.ply: expected 9 vertices, but the file ends after 7"


@pytest.mark.parametrize("workers", [0, 1])
def test_wrong_features_and_transforms_name_the_sample(workers):
    error, message = failure(Loader(Numbered(), batch_size=4, features=["red"], workers=workers))
    assert error is ValueError
    assert message == "0.ply: features must contain red, got no features"
    error, message = failure(Loader(Numbered(), batch_size=4, transform=Broken(), skip_bad=True, workers=workers))
    assert error is RuntimeError
    assert "0.ply: AttributeError: 'Tensor' object has no attribute 'no_such_thing'" in message


@pytest.mark.parametrize("workers", [0, 1])
def test_global_generator_of_torch_is_not_used(workers):
    """If it were used, dropout would differ between an uninterrupted and a resumed run."""
    loader = Loader(Numbered(), batch_size=4, shuffle=True, transform=Jitter(), workers=workers)
    state = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_workers_ignore_interrupts():
    """Ctrl-C reaches all processes of a terminal, but training still needs batches to finish its step."""
    loader = Loader(Numbered(40), batch_size=1, workers=2)
    before = set(multiprocessing.active_children())
    seen = 0
    for batch in loader:
        seen += len(batch)
        if seen == 3:
            workers = set(multiprocessing.active_children()) - before
            assert len(workers) == 2
            for worker in workers:
                os.kill(worker.pid, signal.SIGINT)
    assert seen == 40


def test_operators_in_forked_workers():
    """The parent has started threads before the fork."""
    here = rows(Loader(Sampled(6), batch_size=3))
    assert equal(rows(Loader(Sampled(6), batch_size=3, workers=2)), here)


def test_operators_and_shapes_in_spawned_workers(spawning):
    dataset = ConcatDataset([Sampled(2), Shapes("train", size=2, points=64)])
    transform = Compose(Prepare(points=32, voxel=0.1), Jitter())
    here = rows(Loader(dataset, batch_size=2, transform=transform))
    assert equal(rows(Loader(dataset, batch_size=2, transform=transform, workers=1)), here)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 1, "workers": -1}, "workers must be at least 0, got -1"),
        ({"batch_size": 1, "world": 0}, "world must be at least 1, got 0"),
        ({"batch_size": 1, "world": 2, "rank": 2}, "rank must be in [0, 2), got 2"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        Loader(Numbered(), **arguments)
    assert str(raised.value) == message


def test_collate():
    clouds = [
        Cloud(
            torch.rand(n, 3, dtype=torch.float64),
            {"red": torch.full((n,), 51, dtype=torch.uint8), "normal": torch.ones(n, 3)},
            labels=torch.arange(n),
            category=n,
        )
        for n in (2, 3, 1)
    ]
    batch = collate(clouds, ["normal", "red"])
    assert batch.points.dtype == torch.float32
    torch.testing.assert_close(batch.points.double(), torch.cat([cloud.points for cloud in clouds]))
    assert batch.offsets.tolist() == [0, 2, 5, 6]
    assert batch.sizes == (2, 3, 1)
    torch.testing.assert_close(batch.features, torch.tensor([[1, 1, 1, 0.2]]).expand(6, 4))  # uint8 is divided by 255
    assert batch.target.tolist() == [0, 1, 0, 1, 2, 0]
    assert batch.category.tolist() == [2, 3, 1]
    assert set(batch.inputs()) == {"points", "features", "offsets", "category"}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    moved = batch.to(device)
    assert isinstance(moved, Batch)
    for name in ("points", "features", "offsets", "target", "category"):
        assert getattr(moved, name).device.type == device
        assert torch.equal(getattr(moved, name).cpu(), getattr(batch, name))


def test_inputs_of_equal_sizes_are_padded():
    inputs = collate([Cloud(torch.rand(4, 3), {"h": torch.rand(4)}, label=n) for n in range(3)], ["h"]).inputs()
    assert inputs["points"].shape == (3, 4, 3)
    assert inputs["features"].shape == (3, 4, 1)
    assert set(inputs) == {"points", "features"}


def test_features_of_different_widths():
    clouds = [Cloud(torch.rand(2, 3), {"color": torch.rand(2, n)}, source=f"{n}.ply") for n in (3, 3, 4)]
    with pytest.raises(ValueError, match=r"^4.ply: features must have 3 columns, as in 3.ply, got 4$"):
        collate(clouds, ["color"])
    error, message = failure(Loader(clouds, batch_size=3, features=["color"], skip_bad=True))
    assert (error, message) == (ValueError, "4.ply: features must have 3 columns, as in 3.ply, got 4")


def test_targets():
    points = torch.rand(2, 3)
    assert collate([Cloud(points, label=3), Cloud(points, label=0)]).target.tolist() == [3, 0]
    assert collate([Cloud(points), Cloud(points, label=0)]).target is None
    assert collate([Cloud(points), Cloud(points)]).features is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cloud(torch.rand(3)), r"points must be \(N, 3\), got \(3,\)"),
        (lambda: Cloud(torch.rand(3, 2), source="a.xyz"), r"a.xyz: points must be \(N, 3\), got \(3, 2\)"),
        (lambda: Cloud(torch.rand(3, 3), {"h": torch.rand(2)}), r"h must have 3 rows like points, got \(2,\)"),
        (lambda: Cloud(torch.rand(3, 3), labels=torch.ones(4)), r"labels must have 3 rows like points, got \(4,\)"),
    ],
)
def test_invalid_clouds(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


def test_select_by_index_and_by_mask():
    cloud = Cloud(torch.arange(12.0).reshape(4, 3), {"n": torch.arange(4)}, labels=torch.arange(4))
    for index in (torch.tensor([3, 1]), torch.tensor([False, True, False, True])):
        out = cloud.select(index)
        assert torch.equal(out.points, cloud.points[index])
        assert torch.equal(out.features["n"], torch.arange(4)[index])
        assert torch.equal(out.labels, torch.arange(4)[index])


def test_mix_changes_half_of_the_bits():
    """Flipping any input bit changes half of the output bits, and nearby inputs differ even in the lower 32 bits."""
    start = (12345, 7, 99)
    for place, bit in itertools.product(range(3), range(0, 64, 3)):
        changed = list(start)
        changed[place] ^= 1 << bit
        assert 10 <= (mix(*changed) ^ mix(*start)).bit_count() <= 54
    seeds = {mix(seed, epoch, index) for seed in range(4) for epoch in range(20) for index in range(200)}
    assert len(seeds) == 16000
    assert len({seed & 0xFFFFFFFF for seed in seeds}) > 15950

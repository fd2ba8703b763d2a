"""Evaluation file of a run: the confusion matrix, and the worst and best clouds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pointgrad import data, train
from pointgrad.train import evaluation
from pointgrad.train.evaluation import Example, Examples, choose
from tests.support.runs import TASKS, finished_runs, loaders

pytest.importorskip("lightning_fabric")
pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return finished_runs(tmp_path_factory.mktemp("runs"))


def brute_force(run, task):
    """Return (source, kind, right, truth, confidence) of each validation cloud, worst first, and the confusion."""
    trained, (_, validation) = train.load(run), loaders(task)
    dataset = validation.dataset
    confusion = np.zeros((len(dataset.classes),) * 2, int)
    rows = []
    for index in range(len(dataset)):
        cloud = data.Prepare()(dataset[index], torch.Generator())
        inputs = {} if cloud.category is None else {"category": torch.tensor([cloud.category])}
        with torch.no_grad():
            logits = (
                trained.model(cloud.points[None].float(), None, **inputs).reshape(-1, len(dataset.classes)).double()
            )
        if cloud.category is not None:
            others = [number for number in range(len(dataset.classes)) if number not in dataset.parts[cloud.category]]
            logits[:, others] = -math.inf
        probability = logits.exp() / logits.exp().sum(1, keepdim=True)
        labels = [cloud.label] if cloud.labels is None else cloud.labels.tolist()
        shares = []
        for row, label in zip(probability.tolist(), labels, strict=True):
            if label >= 0:
                best = row.index(max(row))
                confusion[label, best] += 1
                shares.append((best == label, row[label], row[best]))
        kind = cloud.label if cloud.labels is None else cloud.category
        rows.append((cloud.source, kind, *np.mean(shares, axis=0).tolist()))
    return sorted(rows, key=lambda row: (round(row[2], 9), row[3])), confusion


@pytest.mark.parametrize("task", TASKS)
def test_confusion_and_worst_clouds_match_brute_force(finished, task):
    kept = evaluation.read(finished / task / "evaluation.npz")
    rows, confusion = brute_force(finished / task, task)
    assert kept.confusion.tolist() == confusion.tolist()
    assert kept.clouds == 24
    assert kept.task == task
    metrics = train.evaluate(
        train.load(finished / task).model,
        loaders(task)[1],
        classes=len(kept.classes),
        parts=getattr(loaders(task)[1].dataset, "parts", ()),
    )
    assert torch.equal(metrics.confusion, kept.confusion)
    assert [one.source for one in kept.examples] == [row[0] for row in rows]  # all of them: 24 are fewer than the limit
    for one, (_, kind, *shares) in zip(kept.examples, rows, strict=True):
        assert one.kind == kind
        assert (one.right, one.truth, one.confidence) == pytest.approx(shares, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_examples_hold_the_clouds_of_the_data_set(finished, task):
    validation = loaders(task)[1].dataset
    kept = evaluation.read(finished / task / "evaluation.npz")
    for one in kept.examples[:5]:
        cloud = data.Prepare()(validation[int(one.source.split()[-1])], torch.Generator())
        assert torch.equal(one.points, cloud.points.float())
        assert one.target.tolist() == (cloud.label if task == "classification" else cloud.labels.tolist())
        assert one.predicted.shape == one.target.shape


def made_up(count, kinds, seed):
    generator = np.random.default_rng(seed)
    none = torch.zeros(0)
    return [
        # Few different values, so that there are ties.
        Example(none, none, none, f"{number:04}", int(generator.integers(kinds)), *generator.integers(4, size=3) / 4)
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "kinds"), [(0, 3), (3, 3), (60, 3), (300, 12), (300, 40), (300, 100)])
def test_chosen_examples_are_bounded_and_independent_of_order(count, kinds):
    seen = made_up(count, kinds, seed=count + kinds)
    kept = choose(seen, kinds)
    ordered = sorted(seen, key=lambda one: (one.right, one.truth, one.source))
    assert kept[:32] == ordered[:32]
    assert kept[-4:] == ordered[-4:]
    assert len(kept) <= 100
    for kind in range(kinds):
        own = [one for one in ordered if one.kind == kind][: 4 if kinds <= 16 else 64 // kinds]
        assert set(own) <= set(kept)
    several: list[Example] = []
    for first in range(0, count, 7):
        several = choose([*several, *seen[::-1][first : first + 7]], kinds)
    assert several == kept


def test_only_kept_clouds_are_copied_from_the_device(finished, monkeypatch):
    monkeypatch.setattr(evaluation, "WORST", 3)
    monkeypatch.setattr(evaluation, "OF_EACH", 0)
    monkeypatch.setattr(evaluation, "BEST", 1)
    run = finished / "classification"
    examples = Examples(train.Metrics(12))
    train.evaluate(train.load(run).model, loaders("classification")[1], classes=12, see=examples.see)
    rows, _ = brute_force(run, "classification")
    assert [one.source for one in examples.kept] == [row[0] for row in [*rows[:3], rows[-1]]]
    assert all(one.points.shape == (64, 3) for one in examples.kept)


def test_large_clouds_are_thinned_and_unlabelled_clouds_skipped():
    clouds = [
        data.Cloud(torch.rand(9000, 3), labels=torch.randint(2, (9000,)), source="large"),
        data.Cloud(torch.rand(5, 3), labels=torch.full((5,), -1), source="unlabelled"),
        data.Cloud(torch.rand(1, 3), labels=torch.tensor([1]), source="one point"),
    ]
    batch = data.collate(clouds)
    logits = torch.randn(9006, 2)
    logits[7] = math.nan
    examples = Examples(train.Metrics(2))
    examples.see(batch, logits)
    assert examples.clouds == 2
    assert {one.source for one in examples.kept} == {"large", "one point"}
    large = next(one for one in examples.kept if one.source == "large")
    assert len(large.points) == len(large.target) == 3000
    assert torch.equal(large.points, clouds[0].points[::3])
    right = (logits[:9000].argmax(1) == clouds[0].labels).double().mean()
    assert large.right == pytest.approx(float(right))  # over all points, not only the kept ones


def test_evaluation_file_round_trip(tmp_path, finished):
    path = tmp_path / "evaluation.npz"
    kept = evaluation.read(finished / "segmentation" / "evaluation.npz")
    for examples in (kept.examples[:3], []):
        path.write_bytes(replace(kept, examples=examples).to_bytes())
        again = evaluation.read(path)
        assert (again.epoch, again.task, again.classes, again.clouds) == (kept.epoch, kept.task, kept.classes, 24)
        assert [vars(one).keys() for one in again.examples] == [vars(one).keys() for one in examples]
        for one, other in zip(again.examples, examples, strict=True):
            assert torch.equal(one.predicted, other.predicted)
            assert one.rank == other.rank

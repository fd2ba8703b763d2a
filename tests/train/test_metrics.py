"""Metrics over all data, against scikit-learn and values computed by hand."""

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pointgrad.data import Cloud, collate
from pointgrad.train import Metrics, metrics


def filled(classes, target, predicted, batch=7):
    """Count predictions in batches, of which the last is smaller."""
    counted = Metrics(classes)
    logits = torch.nn.functional.one_hot(predicted, classes).float()
    for begin in range(0, len(target), batch):
        counted.add(logits[begin : begin + batch], target[begin : begin + batch])
    return counted


@settings(max_examples=25, deadline=None)
@given(
    classes=st.integers(2, 7),
    pairs=st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 6)), min_size=1, max_size=60),
)
def test_against_scikit_learn(classes, pairs):
    sklearn = pytest.importorskip("sklearn.metrics")
    target = torch.tensor([min(t, classes - 1) for t, _ in pairs])
    predicted = torch.tensor([min(p, classes - 1) for _, p in pairs])
    counted = filled(classes, target, predicted)
    values, kept = counted.compute(), target >= 0
    true, output = target[kept].numpy(), predicted[kept].numpy()
    if not len(true):
        assert math.isnan(values["accuracy"])
        return
    labels = range(classes)
    assert counted.confusion.tolist() == sklearn.confusion_matrix(true, output, labels=labels).tolist()
    assert values["accuracy"] == pytest.approx(sklearn.accuracy_score(true, output))
    recall = sklearn.recall_score(true, output, labels=np.unique(true), average="macro", zero_division=0)
    assert values["class_accuracy"] == pytest.approx(recall)
    occur = np.union1d(true, output)
    iou = sklearn.jaccard_score(true, output, labels=occur, average="macro", zero_division=0)
    assert values["miou"] == pytest.approx(iou)
    for number, row in enumerate(counted.per_class()):
        assert row["count"] == (true == number).sum()


def test_loss_is_weighted_by_items_not_by_batches():
    counted = Metrics(2)
    counted.add_loss(torch.tensor(6.0), torch.tensor(3.0))
    counted.add_loss(torch.tensor(10.0), torch.tensor(1.0))
    assert counted.compute()["loss"] == 4.0


def test_part_segmentation_by_hand():
    """Two categories with parts {0, 1} and {2, 3, 4}.

    Cloud 0: the IoU of part 0 is 1/2, of part 1 2/3. Cloud 1: part 2 is found completely; parts 3 and 4 do not occur
    and count as 1. Cloud 2, also of category 1: the IoU of part 2 is 0/2, of part 3 1/3; part 4 does not occur.
    """
    counted = Metrics(5, parts=[(0, 1), (2, 3, 4)])
    target = [torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2]), torch.tensor([2, 2, 3, -1])]
    output = [torch.tensor([0, 1, 1, 1]), torch.tensor([2, 2]), torch.tensor([3, 3, 3, 4])]
    clouds = [
        Cloud(torch.zeros(len(own), 3), labels=own, category=category)
        for own, category in zip(target, (0, 1, 1), strict=True)
    ]
    logits = torch.nn.functional.one_hot(torch.cat(output), 5).float()
    logits[0, 4] = 9.0  # the best class, but not one of this category
    for chosen in ((0, 1), (2,)):
        batch = collate([clouds[number] for number in chosen])
        rows = slice(0, 6) if chosen == (0, 1) else slice(6, 10)
        counted.add(logits[rows], batch.target, batch)
    values = counted.compute()
    first, second, third = (1 / 2 + 2 / 3) / 2, 1.0, (0 + 1 / 3 + 1) / 3
    assert values["instance_miou"] == pytest.approx((first + second + third) / 3)
    assert values["category_miou"] == pytest.approx((first + (second + third) / 2) / 2)


def test_label_out_of_range_is_an_error():
    for wrong in (3, -2):
        with pytest.raises(ValueError, match=f"from 0 to 2 for 3 classes, or -1 for no label, got {wrong}"):
            Metrics(3).add(torch.zeros(2, 3), torch.tensor([0, wrong]))


def test_mismatched_arguments_are_errors():
    with pytest.raises(ValueError, match="target must have 2 labels"):
        Metrics(3).add(torch.zeros(2, 3), torch.tensor([0]))
    with pytest.raises(ValueError, match="category of each cloud"):
        Metrics(3, parts=[(0, 1, 2)]).add(torch.zeros(1, 3), torch.tensor([0]))


def test_state_dict_round_trip():
    counted, other = filled(3, torch.tensor([0, 1, 2]), torch.tensor([0, 2, 2])), Metrics(3)
    counted.add_loss(torch.tensor(1.5), torch.tensor(3.0))
    other.load_state_dict(counted.state_dict())
    assert other.compute() == counted.compute()


def test_documented_examples_run():
    names = {"torch": torch, "Metrics": Metrics}
    for example in doctest.DocTestFinder().find(metrics, globs=names):
        assert doctest.DocTestRunner().run(example).failed == 0

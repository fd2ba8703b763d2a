"""The versions of examples/vectorisation.py agree with each other and with NumPy; its page shows the measured times."""

import json

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from torch import Tensor

from examples import vectorisation
from tests.support.places import ROOT

TINY = 24


def weighted(weights, values, index):
    grouped = np.stack([cloud[rows] for cloud, rows in zip(values, index, strict=True)])  # (B, M, K, C)
    return (np.repeat(weights, values.shape[2] // weights.shape[3], axis=3) * grouped).sum(2)


def histogram(index, weights, size):
    out = np.zeros(size)
    np.add.at(out, index, weights)
    return out


def unfolded(image, kernel):
    windows = np.lib.stride_tricks.sliding_window_view(image, (kernel, kernel), axis=(1, 2))
    return windows.transpose(0, 3, 4, 1, 2).reshape(len(image) * kernel**2, -1)


def interpolated(corners, points):
    """Interpolate along one axis after another instead of using eight weights."""
    values = corners.reshape(-1, 2, 2, 2, corners.shape[2])
    for axis in range(3):
        weight = ((points[:, axis] + 1) / 2).reshape(-1, *[1] * (values.ndim - 2))
        values = (1 - weight) * values[:, 0] + weight * values[:, 1]
    return values


def sampled(points, count):
    distance, samples = cdist(points, points), [0]
    for _ in range(count - 1):
        samples.append(int(distance[samples].min(0).argmax()))
    return np.array(samples)


BY_NUMPY = {
    "broadcasting": lambda points, queries: cdist(queries, points).min(1) ** 2,
    "matrix product": np.dot,
    "einsum": weighted,
    "gather": lambda features, index: np.take(features, index, axis=0),
    "scatter-add": histogram,
    "unfold": unfolded,
    "trilinear": interpolated,
    "sampling": sampled,
}


def test_every_computation_has_a_numpy_version():
    assert [work.name for work in vectorisation.works()] == list(BY_NUMPY)


@pytest.mark.parametrize("work", vectorisation.works(), ids=lambda work: work.name)
def test_versions_agree(work):
    inputs = work.inputs(TINY)
    arrays = [value.numpy() if isinstance(value, Tensor) else value for value in inputs]
    expected = BY_NUMPY[work.name](*arrays)
    for call in vectorisation.versions(work, loops=True).values():
        received = call(*inputs)
        assert received.shape == expected.shape
        np.testing.assert_allclose(received.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_wrong_version_is_detected():
    work = vectorisation.works()[1]
    wrong = vectorisation.Work(**{**vars(work), "naive": lambda a, b: a @ b + 1})
    with pytest.raises(AssertionError):
        vectorisation.compare(wrong, work.inputs(4), loops=True)


def test_measure_and_table():
    work = vectorisation.works()[3]
    tiny = vectorisation.Work(**{**vars(work), "small": 9, "large": 17})
    row = vectorisation.measure(tiny, "cpu")
    assert set(row["small"]["ms"]) == {"naive", "vectorised", "kernel"}
    assert set(row["large"]["ms"]) == {"vectorised", "kernel"}
    small, large = vectorisation.table([row])
    assert "n = 9" in small[1]
    assert large[2] == large[5] == "—"


def test_page_shows_the_measured_times():
    record = json.loads((ROOT / "benchmarks" / "results" / "vectorisation.json").read_text())
    assert {"torch", "python", "where", "pointgrad", "date"} <= set(record["machine"])
    assert [row["name"] for row in record["rows"]] == list(BY_NUMPY)
    page = (ROOT / "docs" / "book" / "vectorisation.md").read_text()
    for line in vectorisation.table(record["rows"]):
        assert f"| {' | '.join(line)} |" in page

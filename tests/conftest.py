"""Shared fixtures: devices and backends, seeds, data; and the settings of torch and Triton for tests."""

import gc
import os
import signal
import sys

# Several processes with several threads each share the cores: waiting threads must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

# Triton reads this when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
# torch requires this for matrix products on a GPU under use_deterministic_algorithms.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Some virtual machines report AMX but fault on its instructions: a bfloat16 product would kill the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# A background job of a shell ignores SIGINT, and processes that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pointgrad
from reliability import interpreter
from tests.support.places import DATA, PLACES, Place

gc.disable()  # until all tests are collected, because they all stay alive
if Place("cpu", "triton") in PLACES:
    interpreter.speed_up()
    interpreter.check_launches()


def _places(places):
    return pytest.fixture(params=places, ids=lambda place: f"{place.device}-{place.backend}")


def _forced(request):
    with pointgrad.backend(request.param.backend):
        yield request.param


@_places(PLACES)
def place(request):
    """Runs the test once per backend."""
    yield from _forced(request)


@_places([place for place in PLACES if place.backend != "reference"])
def kernel_place(request):
    """Runs the test once per backend with kernels: for comparisons with the reference."""
    yield from _forced(request)


@_places([place for place in PLACES if place.device != "cpu" or place.is_default])
def checked_place(request):
    """Runs the test on every GPU backend, but once on the CPU, where values are checked before choosing a backend."""
    yield from _forced(request)


@pytest.fixture(params=[place for place in PLACES if place.is_default], ids=lambda place: place.device)
def default_place(request):
    """Runs the test once per device, with its default backend: for code above the choice of a backend."""
    return request.param


def pytest_runtest_teardown(item):
    """Reports the number of inputs on which a law was tried, from whichever process ran it, to reliability/numbers."""
    laws = sys.modules.get("tests.ops.properties.laws")
    if laws is not None:
        item.user_properties.append(("inputs", laws.COUNTS[item.nodeid]))


def pytest_collection_modifyitems(config, items):
    """Runs fewer samples in Triton's slow interpreter: none of composed operators, one with `interpreted_once`.

    Tests that are marked as `long` come first.
    """
    seen = set()

    def runs(item):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        place, op = params.get("place") or params.get("kernel_place"), getattr(params.get("case"), "op", None)
        if op is None or not (place and place.interpreted):
            return True
        once = item.get_closest_marker("interpreted_once") and (item.originalname, op.name) in seen
        seen.add((item.originalname, op.name))
        return not (once or op.composed)

    selected = [item for item in items if runs(item)]
    kept = set(selected)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(selected, key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish():
    gc.enable()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def _freeze():
    """Exempts the modules and tests that exist from garbage collection, which would visit them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def scan():
    """A real LiDAR sweep (N, 3); skips without the data folder."""
    path = DATA / "scans" / "kitti_training_000000.bin"
    if not path.exists():
        pytest.skip(f"no real scans at {DATA}; set POINTGRAD_TEST_DATA to the folder that holds them")
    return torch.from_file(str(path), size=path.stat().st_size // 4).reshape(-1, 4)[:, :3].contiguous()


@pytest.fixture
def small_tiles(monkeypatch):
    """Make prediction cut even a small scene into many tiles."""
    from pointgrad.data.tiles import tree

    monkeypatch.setattr(tree, "LEAF_POINTS", 100)
    monkeypatch.setattr(tree, "TILE_POINTS", 500)
    monkeypatch.setattr(tree, "SAMPLE_EVERY", 4)


@pytest.fixture
def no_library(monkeypatch):
    """Removes the libraries that pointgrad.compat replaces from sys.modules, before and after the test."""
    import pointgrad.compat

    def imported():
        peers = pointgrad.compat.peers()
        return [name for name in sys.modules if name.partition(".")[0] in peers]

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in imported():
        monkeypatch.delitem(sys.modules, name)  # restored afterwards
    yield
    for name in imported():
        del sys.modules[name]

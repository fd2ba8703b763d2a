"""What all tests share: on which device and backend the contract runs, and strict defaults."""

import os
import signal
import sys

# Several processes with several threads each share the cores: a thread that waits must not keep one busy meanwhile.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

# Triton decides when it is imported whether kernels are interpreted or compiled.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
# Without it torch refuses matrix products on a GPU under use_deterministic_algorithms.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Some virtual machines announce matrix tiles (AMX) and then refuse them: a bfloat16 product would kill the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# A job in a shell's background ignores Ctrl-C, and so would every process that tests start in order to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pointgrad
from tests.support.places import DATA, PLACES, Place


def _patch_once() -> None:
    """Triton's interpreter patches its language anew at every call of a helper function. Once is enough in a process
    that only interprets, and makes these tests twice as fast."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    scopes = {}

    def patch_once(fn):
        languages = frozenset(id(value) for value in fn.__globals__.values() if value is tl or value is tl.core)
        if languages not in scopes:
            scopes[languages] = patch(fn)
        return type(scopes[languages])()  # a scope that has nothing to restore

    interpreter._patch_lang = patch_once


if Place("cpu", "triton") in PLACES:
    _patch_once()


@pytest.fixture(params=PLACES, ids=lambda place: f"{place.device}-{place.backend}")
def place(request):
    """Runs the test once per backend."""
    with pointgrad.backend(request.param.backend):
        yield request.param


@pytest.fixture(params=[place for place in PLACES if place.is_default], ids=lambda place: place.device)
def default_place(request):
    """Runs the test once per device, with its own kernels: for what lies above the choice of a backend."""
    return request.param


def pytest_runtest_teardown(item):
    """Passes on how many inputs a law was tried on, from whichever process ran it: reliability/numbers counts them."""
    laws = sys.modules.get("tests.ops.properties.laws")
    if laws is not None:
        item.user_properties.append(("inputs", laws.COUNTS[item.nodeid]))


def pytest_collection_modifyitems(config, items):
    def runs(item):
        params = item.callspec.params if hasattr(item, "callspec") else {}
        place, case = params.get("place"), params.get("case")
        if not (place and place.interpreted):
            return True
        once = item.get_closest_marker("interpreted_once") and (item.originalname, case.operator) in interpreted
        interpreted.add((item.originalname, getattr(case, "operator", None)))
        return not (once or getattr(case, "composed", False))

    interpreted = set()
    items_run = [item for item in items if runs(item)]
    kept = set(items_run)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = items_run


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def scan():
    """A real LiDAR sweep (N, 3), where the data folder is present."""
    path = DATA / "scans" / "kitti_training_000000.bin"
    if not path.exists():
        pytest.skip(f"no real scans at {DATA}; set POINTGRAD_TEST_DATA to the folder that holds them")
    return torch.from_file(str(path), size=path.stat().st_size // 4).reshape(-1, 4)[:, :3].contiguous()


@pytest.fixture
def small_tiles(monkeypatch):
    """Prediction cuts even a small scene into many tiles."""
    from pointgrad.data.tiles import tree

    monkeypatch.setattr(tree, "LEAF_POINTS", 100)
    monkeypatch.setattr(tree, "TILE_POINTS", 500)
    monkeypatch.setattr(tree, "SAMPLE_EVERY", 4)


@pytest.fixture
def no_library(monkeypatch):
    """None that pointgrad.compat stands in for is imported, as in a new process, and none is left for other tests."""
    import pointgrad.compat

    def imported():
        peers = pointgrad.compat.peers()
        return [name for name in sys.modules if name.partition(".")[0] in peers]

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in imported():
        monkeypatch.delitem(sys.modules, name)  # comes back
    yield
    for name in imported():
        del sys.modules[name]

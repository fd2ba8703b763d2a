"""The benchmark: what it refuses, whom it believes, what it writes. Nothing here asserts on time."""

import dataclasses
import importlib
import json
import sys
import types
from pathlib import Path

import pytest
import torch

import pointgrad
from benchmarks import page
from pointgrad.bench import clocks, harness, peers, suites, table
from pointgrad.bench.contest import Attempt, Contest, Declined, Row, Setup, short

NUMBERS = torch.arange(6.0)


def double(received):
    if not torch.equal(received, 2 * NUMBERS):
        raise AssertionError("not twice the numbers")


def measure(contest, table=(), quick=True, **asked):
    setup = Setup("cpu", quick)
    found = peers.Peers("cpu", list(table))
    made = harness.Harness(setup, found)
    return made.measure(Row("double", lambda: contest, **asked)), found


def peer(name, adapter, module="math", **fields):
    return peers.Peer(name, module, name, f"pip install {name}", {"double": adapter}, **fields)


def contest(**fields):
    return Contest(Attempt(lambda: 2 * NUMBERS), double, work=("double", {"numbers": NUMBERS}), **fields)


class Counted:
    """A call that counts how often it was made."""

    def __init__(self, result):
        self.result, self.calls = result, 0

    def __call__(self):
        self.calls += 1
        return self.result


def test_a_wrong_result_of_ours_is_refused_before_anyone_is_timed():
    ours, plain = Counted(3 * NUMBERS), Counted(2 * NUMBERS)
    result, _ = measure(Contest(Attempt(ours), double, {"plain": Attempt(plain)}))
    assert (result["state"], result["reason"]) == ("wrong", "not twice the numbers")
    assert "ms" not in result["contestants"]["ours"]
    assert (ours.calls, plain.calls) == (1, 0)


def test_ours_raising_is_refused_too():
    def broken():
        raise ValueError("no such device")

    result, _ = measure(Contest(Attempt(broken), double))
    assert (result["state"], result["reason"]) == ("failed", "ValueError: no such device")


def test_a_peer_is_timed_only_if_it_is_right():
    right, wrong = Counted(2 * NUMBERS), Counted(2 * NUMBERS + 1)
    result, _ = measure(
        contest(),
        [
            peer("right", lambda module, numbers: Attempt(right)),
            peer("wrong", lambda module, numbers: Attempt(wrong)),
            peer("short", lambda module, numbers: Attempt(lambda: NUMBERS[:3])),
        ],
    )
    assert result["state"] == "timed"
    told = result["contestants"]
    assert told["right"]["state"] == "timed"
    assert right.calls > 2
    assert told["wrong"] == {"kind": "peer", "state": "wrong", "reason": "not twice the numbers"}
    assert wrong.calls == 1
    assert told["short"]["state"] == "wrong"
    assert result["best"]["name"] == "right"


def test_a_raising_peer_is_reported_and_the_run_goes_on():
    def in_the_adapter(module, numbers):
        raise RuntimeError("unknown signature")

    def in_the_call(module, numbers):
        def call():
            raise AssertionError("numbers must be a CUDA tensor")

        return Attempt(call)

    def declined(module, numbers):
        raise Declined("all pairs")

    late = Counted(2 * NUMBERS)

    def in_a_later_call():
        if late.calls == 2:
            raise MemoryError("no room")
        return late()

    result, _ = measure(
        contest(),
        [
            peer("adapter", in_the_adapter),
            peer("call", in_the_call),
            peer("declined", declined),
            peer("late", lambda module, numbers: Attempt(in_a_later_call)),
            peer("fine", lambda module, numbers: Attempt(lambda: 2 * numbers)),
        ],
    )
    told = {name: (each["state"], each.get("reason")) for name, each in result["contestants"].items()}
    assert told == {
        "ours": ("timed", None),
        "adapter": ("failed", "RuntimeError: unknown signature"),
        "call": ("failed", "numbers must be a CUDA tensor"),  # not "wrong": no result was seen
        "declined": ("declined", "all pairs"),
        "late": ("failed", "MemoryError: no room"),
        "fine": ("timed", None),
    }


def test_nothing_is_converted_while_the_clock_runs(monkeypatch):
    order = []
    monkeypatch.setattr(clocks, "milliseconds", lambda call, device: order.append("clock") or call() is None or 1.0)

    def adapter(module, numbers):
        order.append("prepare")
        return Attempt(lambda: 2 * numbers, lambda result: order.append("read") or result)

    measure(contest(), [peer("other", adapter)])
    assert order.count("prepare") == order.count("read") == 1
    assert max(order.index("prepare"), order.index("read")) < order.index("clock")


def test_a_missing_peer_is_named_with_how_to_get_it():
    _, found = measure(contest(), [peer("nosuch", None, module="nosuch_library.ops")])
    assert found.found["nosuch"] == {"version": None, "missing": "not installed", "get": "pip install nosuch"}
    record = {"quick": False, "GB_per_s": 1.0, "rows": [], "peers": found.found}
    assert "nosuch not installed: pip install nosuch" in table.remarks(record)


def test_a_broken_peer_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_peer.py").write_text("raise OSError('libusb.so: cannot open shared object file')")
    (tmp_path / "needy_peer.py").write_text("import nosuch_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    assert peers.load("broken_peer") == (None, "cannot be imported: libusb.so: cannot open shared object file")
    assert peers.load("needy_peer") == (None, "cannot be imported: No module named 'nosuch_dependency'")


def test_our_own_modules_under_a_peers_name_are_not_the_peer(monkeypatch):
    ours = types.ModuleType("pointgrad.compat.torch_cluster")
    monkeypatch.setitem(sys.modules, "torch_cluster", ours)
    assert peers.load("torch_cluster") == (None, "pointgrad.compat goes by its name")
    renamed = types.ModuleType("pointnet2_ops")
    renamed.__file__ = str(Path(harness.__file__).parents[1] / "compat" / "pointnet2_ops" / "__init__.py")
    utils = types.ModuleType("pointnet2_ops.pointnet2_utils")
    monkeypatch.setitem(sys.modules, "pointnet2_ops", renamed)
    monkeypatch.setitem(sys.modules, "pointnet2_ops.pointnet2_utils", utils)
    assert peers.load("pointnet2_ops.pointnet2_utils")[0] is None
    assert peers.load("json")[0] is json


def test_a_peer_is_asked_on_its_devices_only():
    result, found = measure(contest(), [peer("gpu_only", None, devices=("cuda",))])
    assert list(result["contestants"]) == ["ours"]
    assert found.found == {}


def test_the_best_of_several_ways_of_a_peer_is_shown():
    result, _ = measure(
        contest(),
        [peer("ways", lambda module, numbers: {"h=3": Attempt(lambda: 2 * NUMBERS), "h=4": Attempt(lambda: 0)})],
    )
    assert result["contestants"]["ways h=4"]["state"] == "wrong"
    assert list(table.fastest(result, "peer")) == ["ways"]


def judged(monkeypatch, times, moved=0, **asked):
    """What is asked, of contestants that take so many milliseconds."""
    names = {}
    monkeypatch.setattr(clocks, "milliseconds", lambda call, device: names[call])
    monkeypatch.setattr(clocks, "peak_mib", lambda call, device: 3.0 * names[call])
    monkeypatch.setattr(clocks, "copy_ms", lambda moved, device, rounds: moved / 1e7)

    def attempt(ms):
        call = Counted(2 * NUMBERS)
        names[call] = ms
        return Attempt(call)

    ours, *others = times.items()
    made = Contest(attempt(ours[1]), double, {name: attempt(ms) for name, ms in others}, moved=moved)
    return measure(made, quick=False, rounds=3, **asked)[0]


def test_what_is_asked_is_judged(monkeypatch):
    times = {"ours": 2.0, "slow": 9.0, "fast": 5.0}
    result = judged(
        monkeypatch, times, at_least=2.6, at_most=2.0, memory_at_least=2.5, moved=10_000_000, floor_at_most=1.9
    )
    assert result["best"] == {"name": "fast", "ratio": 2.5}
    assert result["floor_ms"] == pytest.approx(1.0)
    assert result["times_floor"] == pytest.approx(2.0)
    met = {what: each["met"] for what, each in result["asked"].items()}
    assert met == {"times_faster": False, "ms": True, "times_floor": False, "times_less_memory": True}
    against = judged(monkeypatch, times, at_least=4.5, against="slow", above=-7.5)
    assert {what: each["met"] for what, each in against["asked"].items()} == {"times_faster": True, "ms_above": False}


def test_percentiles_and_ratios(monkeypatch):
    ticks = iter([0.0, 5, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11])  # the first warms up
    monkeypatch.setattr(clocks, "milliseconds", lambda call, device: float(next(ticks)))
    result, _ = measure(Contest(Attempt(lambda: 2 * NUMBERS), double), quick=False)
    assert result["contestants"]["ours"]["ms"] == {"p10": 2.0, "median": 6.0, "p90": 10.0}
    assert result["contestants"]["ours"]["rounds"] == 11


def test_who_was_too_slow_is_not_asked_for_more_points(monkeypatch):
    monkeypatch.setattr(clocks, "milliseconds", lambda call, device: 3000.0)
    slow = Counted(2 * NUMBERS)
    made = harness.Harness(Setup("cpu", True), peers.Peers("cpu", []))
    rows = [Row(f"{n}", lambda: contest(plain={"slow": Attempt(slow)}), series="all", size=n) for n in (1, 2)]
    first, second = map(made.measure, rows)
    assert first["contestants"]["slow"]["state"] == "timed"
    assert second["contestants"]["slow"]["state"] == "declined"
    assert second["contestants"]["ours"]["state"] == "timed"


def test_compiled_is_measured_where_a_compiler_is(monkeypatch):
    monkeypatch.setattr(harness, "_fresh", lambda make: make)
    made = contest(compiled=lambda: Attempt(lambda: 2 * NUMBERS))
    assert measure(made, quick=False, rounds=1)[0]["contestants"]["compiled"]["kind"] == "compiled"
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert harness.no_compiler("cpu") == (
        "nothing is compiled: torch.compile needs a C++ compiler, and /nowhere/g++ is not there"
    )
    assert harness.no_compiler("cuda") == ""


@pytest.mark.skipif(sys.platform != "linux", reason="the mark of the largest resident set is Linux's")
def test_peak_memory_counts_what_a_call_takes_and_gives_back():
    def call():
        scratch = torch.ones(2**24)  # 64 MiB
        return scratch[:10] + 1

    peak = clocks.peak_mib(call, "cpu")
    if peak is None:
        pytest.skip("this kernel lets no process set its mark back")
    assert 63 < peak < 80
    assert clocks.peak_mib(lambda: None, "cpu") < 8
    index = torch.zeros(2**18, dtype=torch.long)
    features = torch.ones(1, 64)
    for _ in range(3):  # also of a result whose memory waits to be used again
        assert 63 < clocks.peak_mib(lambda: pointgrad.gather(features, index), "cpu") < 80


def test_peak_memory_is_unknown_where_no_kernel_tells(monkeypatch, tmp_path):
    monkeypatch.setattr(clocks, "RESET", tmp_path / "no" / "clear_refs")
    assert clocks.peak_mib(lambda: torch.ones(9), "cpu") is None


@pytest.mark.parametrize(("number", "text"), [(1_600_000, "1.6M"), (100_000, "100k"), (4096, "4096"), (0, "0")])
def test_short_numbers(number, text):
    assert short(number) == text


def test_checks_of_samples_and_neighbours_find_mistakes():
    """The judges themselves: a right answer in another order passes, a wrong one does not."""
    from pointgrad.bench.suites import neighbors, sampling

    points = torch.rand(1, 200, 3)
    picks = sampling.textbook(points, 20)
    sampling.farthest(points, 20)(picks)
    with pytest.raises(AssertionError, match="farthest distance"):
        sampling.farthest(points, 20)(picks.flip(1).roll(3, 1))
    with pytest.raises(AssertionError, match="twice"):
        sampling.farthest(points, 20)(picks[:, [0] * 20])
    distance = torch.cdist(points, points)
    right = distance.argsort(-1)[..., :5]
    neighbors.nearest(points, 5)(right.flip(-1))
    with pytest.raises(AssertionError, match="not the nearest"):
        neighbors.nearest(points, 5)(distance.argsort(-1)[..., 1:6])
    with pytest.raises(AssertionError, match="twice"):
        neighbors.nearest(points, 5)(right[..., [0, 1, 2, 3, 3]])
    order = distance.argsort(-1)[..., :200]
    within = torch.where(distance.gather(-1, order) <= 0.3, order, -1)
    neighbors.inside(points, points, 0.3, 8)(within)
    neighbors.inside(points, points, 0.3, 8)(within[..., :8])
    with pytest.raises(AssertionError, match="miss points"):
        neighbors.inside(points, points, 0.3, 8)(within[..., :2])
    with pytest.raises(AssertionError, match="outside"):
        neighbors.inside(points, points, 0.2, 8)(order[..., :60])


def test_every_suite_describes_itself_and_names_its_rows_once():
    for device in ("cpu", "cuda"):
        for quick in (False, True):
            rows = [row for name in suites.NAMES for row in suites.rows(name, Setup(device, quick))]
            names = [row.name for row in rows]
            assert len(set(names)) == len(names)
    assert all(suites.describe(name).endswith(".") for name in suites.NAMES)


def test_the_table_fits_into_its_width(capsys):
    from rich.console import Console

    record = json.loads((page.RESULTS / "gpu.json").read_text())
    for width in (120, 80):
        table.show(record, Console(width=width))
        lines = capsys.readouterr().out.partition("ours: median")[0].splitlines()  # behind it come remarks
        shown = [line for line in lines if line.startswith(("work ", "farthest", "group"))]
        assert len(shown) > 5
        assert max(map(len, shown)) <= width
        assert {"ours", "plain", "peers"} <= set(shown[0].split())


# The rows and the adapters


def attempts(contest, found=None):
    yield "ours", lambda: contest.ours
    for name, attempt in [*contest.plain.items(), *contest.beside.items()]:
        yield name, lambda attempt=attempt: attempt
    if found is not None and contest.work:
        yield from found.attempts(*contest.work)


@pytest.mark.parametrize("name", [name for name in suites.NAMES if name != "overhead"])  # that one starts processes
def test_every_row_is_right_where_it_is_small(name):
    """Ours, all plain forms and what is shown beside them pass the row's own check."""
    for row in suites.rows(name, Setup("cpu", True)):
        torch.manual_seed(0)
        try:
            contest = row.build()
        except Declined:
            continue
        for who, make in attempts(contest):
            assert harness._try(make, contest)[:2] == ("timed", ""), f"{row.name}: {who}"


@pytest.mark.parametrize("seed", [0, 5])  # by the first, no query of a small ball finds anything
def test_peers_that_are_here_are_right(seed):
    """fpsample, scipy and whoever else is installed: each of their adapters passes the checks."""
    pytest.importorskip("fpsample")
    pytest.importorskip("scipy")
    found = peers.Peers("cpu", peers.table())
    seen = set()
    for name in ("sampling", "neighbors", "scatter", "gather"):
        for row in suites.rows(name, Setup("cpu", True)):
            if any(word in row.name for word in ("7812", "12500 x 64", "LiDAR")):
                continue
            torch.manual_seed(seed)
            contest = row.build()
            for who, make in attempts(contest, found):
                seen.add(who.partition(" ")[0])
                assert harness._try(make, contest)[0] in ("timed", "declined"), f"{row.name}: {who}"
    assert {"fpsample", "scipy"} <= seen


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("pointnet2_ops", "pointnet2_ops.pointnet2_utils"),
        ("pointops", "pointops"),
        ("pytorch3d", "pytorch3d.ops"),
        ("torch_cluster", "torch_cluster"),
        ("torch_scatter", "torch_scatter"),
    ],
)
def test_adapters_call_what_the_peers_document(name, module, monkeypatch):
    """Against `pointgrad.compat`, which has their signatures: some peers cannot be built here."""
    if name == "pytorch3d":
        loss = importlib.import_module("pointgrad.compat.pytorch3d.loss")
        monkeypatch.setitem(sys.modules, "pytorch3d.loss", loss)
        monkeypatch.setitem(sys.modules, "pytorch3d", importlib.import_module("pointgrad.compat.pytorch3d"))
    (entry,) = [each for each in peers.table() if each.name == name]
    found = peers.Peers("cpu", [dataclasses.replace(entry, devices=("cpu",))], found={name: {}})
    found._modules[name] = importlib.import_module(f"pointgrad.compat.{module}")
    tried = set()
    for suite in ("sampling", "neighbors", "gather", "scatter", "interpolate"):
        for row in suites.rows(suite, Setup("cpu", True)):
            if any(word in row.name for word in ("7812", "LiDAR")):
                continue
            contest = row.build()
            if contest.work and contest.work[0] in entry.work:
                ((_, make),) = found.attempts(*contest.work)
                assert harness._try(make, contest)[:2] == ("timed", ""), row.name
                tried.add(contest.work[0])
    assert tried == set(entry.work)

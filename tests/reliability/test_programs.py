"""The programs of `reliability/`: they refuse to try nothing, and what fails is counted and written."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from reliability import checkout, page
from reliability.numbers import properties
from tests.support.places import ROOT


@pytest.fixture
def repository(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def git(*arguments):
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    return git


def test_a_commit_is_named_and_whether_sources_differ(tmp_path, repository):
    assert checkout.commit() is None
    result, source = tmp_path / "reliability" / "results" / "a.json", tmp_path / "a.py"
    result.parent.mkdir(parents=True)
    for file in (result, source):
        file.write_text("a")
    repository("init")
    assert checkout.commit() is None
    repository("add", ".")
    repository("commit", "-m", "a")
    clean = checkout.commit()
    assert len(clean) == 12
    result.write_text("what a program has written")
    (tmp_path / "new").write_text("not of the checkout")
    assert checkout.commit() == clean
    source.write_text("b")
    assert checkout.commit() == f"{clean}+"


def test_without_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout.commit() is None


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("gpu.contention", ["--rounds", "0"], "--rounds: must be at least 1, got 0"),
        ("gpu.repeats", ["--runs", "1"], "--runs: must be at least 2, got 1"),
        ("files.fuzz", ["--only", "bogus"], "--only must be of ply little-endian, "),
        ("files.corpus", ["--files", "0"], "--files: must be at least 1, got 0"),
        ("cpu.concurrency", ["--rounds", "0"], "--rounds: must be at least 1, got 0"),
    ],
)
def test_nothing_to_do_is_refused(program, arguments, said, monkeypatch, capsys):
    needed = {"gpu": ["triton"], "files": ["tyro", "plyfile", "pypcd4", "laspy", "lazrs", "h5py", "yaml"]}
    for package in needed.get(program.partition(".")[0], []):
        pytest.importorskip(package)
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(f"reliability.{program}").main()
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("script", ["versions.sh", "wheels.sh"])
@pytest.mark.parametrize("arguments", [[], ["torch==2.6.0"]])
def test_a_torch_without_a_python_is_refused(script, arguments):
    command = ["bash", str(ROOT / "reliability" / "install" / script), *arguments]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 2
    assert said.stderr == (
        f"{script}: the arguments must be a torch and at least one Python, got '{''.join(arguments)}'\n"
    )


def test_the_folder_of_a_result_is_made_before_the_work(tmp_path, monkeypatch):
    """One that cannot be made, too, is known before."""
    from reliability import sizes

    monkeypatch.setattr(sizes, "measured", lambda *_: pytest.fail("the work has begun"))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["sizes", "--out", str(tmp_path / "file" / "a.json")])
    with pytest.raises(OSError, match="file"):
        sizes.main()
    monkeypatch.setattr(sys, "argv", ["sizes", "--most", "10000", "--out", str(tmp_path / "new" / "a.json")])
    monkeypatch.setattr(sizes, "measured", lambda name, size, _: {"folder": os.listdir(tmp_path / "new")})
    monkeypatch.setattr(sizes, "line", str)
    sizes.main()
    assert json.loads((tmp_path / "new" / "a.json").read_text())["rows"] == [{"folder": []}] * len(sizes.SCALED)


def report(name, when, outcome, **inputs):
    return SimpleNamespace(nodeid=name, when=when, outcome=outcome, user_properties=list(inputs.items()))


KEPT = [report("kept", "call", "passed"), report("kept", "teardown", "passed", inputs=7)]
CRASHED = [report("crashed", "???", "failed")]  # as xdist reports it: of no phase, and no other report comes


@pytest.mark.parametrize(
    ("reports", "written"),
    [
        (KEPT, {"laws": 1, "inputs": 7, "failed": 0}),
        ([*KEPT, *CRASHED], {"laws": 2, "inputs": 7, "failed": 1}),
        ([], None),
    ],
    ids=["kept", "crashed", "nothing collected"],
)
def test_laws_are_counted(reports, written, tmp_path, monkeypatch):
    def main(_, plugins):
        for each in reports:
            plugins[0].pytest_runtest_logreport(each)

    monkeypatch.setattr(pytest, "main", main)
    monkeypatch.setenv("POINTGRAD_CASES", "")  # which the program sets: undone after the test
    out = tmp_path / "properties.json"
    before = '{"runs": {}}'
    out.write_text(before)
    status = properties.main(["--out", str(out)])
    if written is None:
        assert out.read_text() == before
        assert status == 1
        return
    (run,) = json.loads(out.read_text())["runs"].values()
    assert {name: run[name] for name in written} == written
    assert status == written["failed"]


@pytest.mark.parametrize(
    ("planted", "status"),
    [("ERROR SUMMARY: 34 errors", None), ("RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", None),
     ("ERROR SUMMARY: 0 errors", 1), ("", 1)],
)  # fmt: skip
def test_a_tool_that_does_not_see_the_planted_error_fails(planted, status, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    from reliability.gpu import sanitizer

    def ran(tool, arguments, limit):
        if "--planted" in arguments:
            return "exit status 1", f"========= {planted}"
        return "clean", '========= ERROR SUMMARY: 0 errors\n{"calls": 2, "launched": {"a": 1}}'

    out = tmp_path / "a.json"
    monkeypatch.setattr(sanitizer, "ran", ran)
    monkeypatch.setattr(sanitizer, "machine", lambda _: {})
    monkeypatch.setattr(sanitizer.shutil, "which", lambda _: "compute-sanitizer")
    monkeypatch.setattr(sanitizer.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="Version 1"))
    monkeypatch.setattr(sys, "argv", ["sanitizer", "--tools", "memcheck", "--parts", "1", "--out", str(out)])
    if status:
        with pytest.raises(SystemExit, match="1"):
            sanitizer.main()
    else:
        sanitizer.main()
    (run,) = json.loads(out.read_text())["tools"]
    assert run["state"] == ("clean, planted error not seen" if status else "clean")
    assert run["planted_state"] == "exit status 1"


def test_a_scene_that_hangs_is_on_the_page(monkeypatch):
    pytest.importorskip("triton")
    from reliability.gpu import contention

    def hangs(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    record = page.load("gpu_contention")
    with monkeypatch.context() as patch:
        patch.setattr(contention.subprocess, "run", hangs)
        record["scenes"] = [contention.watched("beside_products", 8)]
    monkeypatch.setattr(page, "load", lambda _: record)
    assert "| beside products | 0 | hung for 120 s |" in page.gpu_contention()


def test_a_scenario_that_was_not_run_fails_and_is_on_the_page(tmp_path, monkeypatch, capsys):
    for package in ("lightning_fabric", "tyro", "yaml"):
        pytest.importorskip(package)
    from reliability.training import faults

    def no_disk(*_):
        raise OSError("no tmpfs can be mounted here")

    out = tmp_path / "faults.json"
    out.write_text(json.dumps(page.load("faults")))
    monkeypatch.setattr(faults, "Reference", lambda _: None)
    monkeypatch.setattr(faults.disturb, "disk", no_disk)
    monkeypatch.setattr(sys, "argv", ["faults", "disk", "--out", str(out)])
    assert faults.main() == 1
    assert capsys.readouterr().out.endswith("0 faults, not run: disk\n")
    monkeypatch.setattr(page, "load", lambda _: json.loads(out.read_text()))
    assert "| full disk (tmpfs) | 0 disks | not run: no tmpfs can be mounted here |" in page.faults()

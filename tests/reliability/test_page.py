"""The tables of docs/reliability.md and README.md say what was counted, and nothing else."""

import re

import pytest

from reliability import page


def test_tables_are_those_that_were_counted():
    shown = set()
    for path in page.PAGES:
        text = path.read_text()
        shown |= set(re.findall(r"<!-- counted (\w+) -->", text))
        assert page.anew(path) == text, "make figures ONLY=counts"
    assert shown == set(page.SECTIONS)


def test_the_readme_names_every_result():
    readme = (page.RESULTS.parent / "README.md").read_text()
    names = {path.name for path in page.RESULTS.glob("*.json")}
    assert {name for name in names if f"`{name}`" not in readme} == set()


def spoiled(monkeypatch, change):
    load = page.load

    def changed(name):
        record = load(name)
        change(record)
        return record

    monkeypatch.setattr(page, "load", changed)


@pytest.mark.parametrize(
    "change",
    [{"state": "clean, not finished in 600 s"}, {"never_launched": ["a.kernel"]}],
    ids=["not finished", "never launched"],
)
def test_a_gpu_sanitizer_that_did_not_run_everything_is_not_shown(change, monkeypatch):
    page.gpu_sanitizer()
    spoiled(monkeypatch, lambda record: record["tools"][1].update(change))
    with pytest.raises(ValueError, match="racecheck must be clean, got"):
        page.gpu_sanitizer()


@pytest.mark.parametrize("change", [{"status": 77}, {"reached": 0}], ids=["status", "reached"])
def test_files_that_were_not_tried_are_shown(change, monkeypatch):
    assert "0 findings; " in page.fuzz_files()
    spoiled(monkeypatch, lambda record: record["rows"][0].update(change))
    assert "0 findings, not tried to the end: ply little-endian; " in page.fuzz_files()


def test_families_that_only_crash_are_shown(monkeypatch):
    def crash(record):
        for run in record["families"].values():
            del run["outcome"]
            run["crashes"] = [{"how": "SIGSEGV"}]

    spoiled(monkeypatch, crash)
    assert re.search(r"\| `sampling` \| .* \| 0 \| 0 \| 3 \|", page.fuzz())


def test_situations_that_failed_are_shown(monkeypatch):
    def fail(record):
        record["thread"]["situations"]["backward"] = {"calls": 0, "outcome": "failed with status 66", "log": ""}

    assert "4 CPU threads" in page.sanitizers()
    spoiled(monkeypatch, fail)
    assert "| 0; backward: failed with status 66 |" in page.sanitizers()


def test_a_cell_is_not_ended_by_what_a_program_said():
    assert page.table(["what"], [["exit status 1: a | b\nc"]]).splitlines()[-1] == r"| exit status 1: a \| b c |"

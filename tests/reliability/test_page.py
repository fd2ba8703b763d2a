"""The tables of docs/reliability.md and docs/migration.md show the committed results, including failures."""

import re

import pytest

from reliability import page


def test_tables_show_the_committed_results():
    shown = set()
    for path in page.PAGES:
        text = path.read_text()
        shown |= set(re.findall(r"<!-- counted (\w+) -->", text))
        assert page.updated(path) == text, "make figures ONLY=counts"
    assert shown == set(page.SECTIONS)


def test_readme_lists_every_result():
    readme = (page.RESULTS.parent / "README.md").read_text()
    names = {path.name for path in page.RESULTS.glob("*.json")}
    assert {name for name in names if f"`{name}`" not in readme} == set()


def change_results(monkeypatch, change):
    """Apply `change` to every result that the page loads."""
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
def test_incomplete_run_of_the_gpu_sanitizer_is_not_shown(change, monkeypatch):
    page.gpu_sanitizer()
    change_results(monkeypatch, lambda record: record["tools"][1].update(change))
    with pytest.raises(ValueError, match="racecheck must be clean, got"):
        page.gpu_sanitizer()


@pytest.mark.parametrize("change", [{"status": 77}, {"reached": 0}], ids=["status", "reached"])
def test_incomplete_file_formats_are_shown(change, monkeypatch):
    assert "0 findings; " in page.fuzz_files()
    change_results(monkeypatch, lambda record: record["rows"][0].update(change))
    assert "0 findings, incomplete: ply little-endian; " in page.fuzz_files()


def test_families_that_only_crash_are_shown(monkeypatch):
    def crash(record):
        for run in record["families"].values():
            del run["outcome"]
            run["crashes"] = [{"cause": "SIGSEGV"}]

    change_results(monkeypatch, crash)
    assert re.search(r"\| `sampling` \| .* \| 0 \| 0 \| 3 \|", page.fuzz())


def test_failed_situations_are_shown(monkeypatch):
    def fail(record):
        record["thread"]["situations"]["backward"] = {"calls": 0, "outcome": "failed with status 66", "log": ""}

    assert "4 CPU threads" in page.sanitizers()
    change_results(monkeypatch, fail)
    assert "| 0; backward: failed with status 66 |" in page.sanitizers()


def test_line_breaks_and_bars_in_a_cell_are_escaped():
    assert page.table(["what"], [["exit status 1: a | b\nc"]]).splitlines()[-1] == r"| exit status 1: a \| b c |"


def test_failures_of_calls_and_of_other_libraries_are_shown(monkeypatch):
    facts = page.load("audit")["machine"]
    run = {"cases": 12, "outcome": {"returned": 6, "refused": 5}, "failures": [{}], "crashes": [{}, {}]}
    suite = {"library": "a", "version": "1", "passed": 3, "failed": [{}, {}], "machine": facts}
    suite |= {"skipped": {"GPU": 4}, "out_of_scope": {"graphs": 1, "meshes": 5}}
    known = {"fuzz_calls": {"machine": facts, "families": {"raw": run}}, "foreign": {"a 1": suite}}
    monkeypatch.setattr(page, "load", known.__getitem__)
    assert page.fuzz_calls().endswith("| registered operators, changed arguments | 12 | 6 | 5 | 1 | 2 |")
    assert page.libraries().endswith("| `a` 1 | 3 | 2 | 4 | 6 |")


def test_missed_errors_and_false_alarms_of_the_audit_are_shown(monkeypatch):
    def miss(record):
        next(iter(record["planted"].values()))["found"] = 7
        record["alarms"] = {"sine": ["gradcheck: wrong"]}

    change_results(monkeypatch, miss)
    assert "| one coordinate of many, 1.5 times | 28 | 7 |" in page.audit()
    assert page.audit().endswith("| correct functions: alarms | 41 | 1 |")

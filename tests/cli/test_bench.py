"""`pointgrad bench`: invalid requests, the result file, and the page generated from the committed results."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import page
from pointgrad import bench, catalog
from pointgrad.bench import families
from pointgrad.bench.comparison import Setup
from pointgrad.cli import main
from tests.support.places import ROOT


def test_list_shows_all_families(capsys):
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(families.NAMES)
    assert {"sampling", "neighbors", "gather", "scatter", "compat", "overhead", "scaling"} <= set(families.NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "FAMILY must be one of attention, "),
        (
            ["gather", "--only", "group nosuch"],
            "--only must match the name of a row, got 'group nosuch', which matches none of 4",
        ),
        (["gather", "--out", "."], "--out must be a file, got the folder ."),
        (["gather", "--out", "/proc/nosuch/x.json"], "--out cannot be written: "),
    ],
)
def test_invalid_requests_print_one_line_and_exit_with_status_2(arguments, message, capsys):
    assert main(["bench", *arguments, "--quick"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"pointgrad bench: {message}")
    assert output.err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is available")
def test_device_cuda_without_a_gpu_is_rejected(capsys):
    assert main(["bench", "--device", "cuda"]) == 2
    message = "pointgrad bench: --device cuda needs a GPU, but torch.cuda.is_available() is False\n"
    assert capsys.readouterr().err == message


def test_family_is_measured_printed_and_written(tmp_path, capsys, default_place):
    """The folder of the result file is created."""
    out = tmp_path / "not" / "yet" / "results.json"
    command = ["bench", "gather", "sampling", "--only", "group", "--quick", "--out", str(out)]
    assert main([*command, "--device", default_place.device]) == 0
    record = json.loads(out.read_text())
    assert {"format", "device", "quick", "machine", "GB_per_s", "peers", "rows"} == set(record)
    assert record["quick"]
    assert record["GB_per_s"] > 0
    assert {"torch", "python", "date", "pointgrad", "system"} <= set(record["machine"])
    assert [row["family"] for row in record["rows"]] == ["gather"] * 3
    for row in record["rows"]:
        assert row["state"] == "timed"
        assert row["times_floor"] == pytest.approx(row["implementations"]["ours"]["ms"]["median"] / row["floor_ms"])
        assert row["moved_bytes"] == 4 * 64 * (781 * 16 + 781) + 8 * 781 * 16  # both ways: features, index
        assert {"ours", "indexing", "index_select"} <= set(row["implementations"])
        for each in row["implementations"].values():
            if each["state"] == "timed":
                assert each["ms"]["p10"] <= each["ms"]["median"] <= each["ms"]["p90"]
    assert [file.name for file in out.parent.iterdir()] == ["results.json"]
    shown = capsys.readouterr().out
    assert all(row["name"] in shown for row in record["rows"])
    assert f"written to {out}" in shown.replace("\n", "")


def test_wrong_operator_fails_the_run(monkeypatch, capsys, tmp_path):
    (histogram,) = [op for op in catalog.FAMILIES["scatter"] if op.name == "histogram"]
    wrong = replace(histogram, call=lambda index, size: torch.zeros(size, dtype=torch.long))
    monkeypatch.setitem(catalog.FAMILIES, "scatter", [wrong])
    out = tmp_path / "results.json"
    assert main(["bench", "scatter", "--only", "histogram", "--quick", "--out", str(out)]) == 1
    assert "wrong, not timed: integers differ" in capsys.readouterr().out
    assert json.loads(out.read_text())["rows"][0]["state"] == "wrong"


def test_result_is_written_atomically(tmp_path):
    target = tmp_path / "results.json"
    bench.write({"rows": [1]}, target)
    with pytest.raises(TypeError):
        bench.write({"rows": [1, object()]}, target)
    assert json.loads(target.read_text()) == {"rows": [1]}
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_killed_run_leaves_no_file(tmp_path):
    out = tmp_path / "results.json"
    code = """
import sys, time
from pointgrad import bench, catalog
from pointgrad.bench import harness
measure = harness.Harness.measure
def slowly(self, row):
    print("measuring", flush=True)
    result = measure(self, row)
    if "group" in row.name:
        time.sleep(60)
    return result
harness.Harness.measure = slowly
bench.run(["gather"], out=sys.argv[1], quick=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    begun = 0
    while begun < 2:  # until the first row is done and the second has begun
        begun += "measuring" in process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


# The page


def test_page_shows_the_committed_results():
    """If this fails, run `make figures ONLY=speed`."""
    assert page.updated() == page.PAGE.read_text()
    names = re.findall(r"<!-- results (\w+) -->", page.PAGE.read_text())
    assert names == ["cpu", "gpu", "published", "scaling_cpu", "scaling_gpu"]


def test_published_times_are_marked_as_not_measured():
    published = page.load("published")
    assert published["note"] == "not measured in this run"
    assert published["source"]
    rows = {row.name for name in families.NAMES for row in families.rows(name, Setup("cuda"))}
    assert {row["name"] for row in published["rows"]} <= rows
    shown = page.section("published")
    assert shown.splitlines()[0].count(published["note"]) == len(
        {name for row in published["rows"] for name in row["ms"]}
    )


@pytest.mark.parametrize("name", ["cpu", "gpu", "scaling_cpu", "scaling_gpu"])
def test_committed_results_refer_to_existing_rows(name):
    record = page.load(name)
    device = record["device"]
    rows = {row.name for family in families.NAMES for row in families.rows(family, Setup(device))}
    assert not record["quick"]
    assert {row["name"] for row in record["rows"]} <= rows


def test_images_of_the_page_exist():
    for image in re.findall(r"\]\((images/[^)]+)\)", page.PAGE.read_text()):
        assert (ROOT / "docs" / image).exists()

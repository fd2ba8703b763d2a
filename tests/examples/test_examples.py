"""The numbered examples run with small sizes and give the results that they claim."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pointgrad
from pointgrad import data
from tests.support import pages

pytest.importorskip("matplotlib")
pytest.importorskip("lightning_fabric")
pytest.importorskip("laspy")

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = Path(pointgrad.__file__).parents[1]  # for PYTHONPATH, if the package is not installed
NUMBERED = sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call the `main` of an example in a temporary folder."""

    def call(name, *arguments, **options):
        (path,) = EXAMPLES.glob(f"{name}_*.py")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.main(*arguments, **options)

    monkeypatch.chdir(tmp_path)
    return call


def start(name, *arguments, cwd):
    """Run an example in a new process."""
    (path,) = EXAMPLES.glob(f"{name}_*.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)


@pytest.fixture
def refusal(tmp_path, monkeypatch):
    """Run an example as a program. Returns the message with which it exits."""

    def call(name, *arguments):
        (path,) = EXAMPLES.glob(f"{name}_*.py")
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        with pytest.raises(SystemExit) as error:
            runpy.run_path(str(path), run_name="__main__")
        return error.value.code

    monkeypatch.chdir(tmp_path)
    return call


def is_picture(path):
    return Path(path).read_bytes().startswith(b"\x89PNG")


def test_numbers_are_consecutive():
    assert [path.name[:2] for path in NUMBERED] == [f"{number:02}" for number in range(1, 11)]


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_short_and_listed(path):
    text = path.read_text()
    assert text.count("\n") < 60
    assert re.match(r'"""[A-Z].*\.\n\n', text), "the first line of the docstring must describe the topic"
    assert f"({path.name})" in (EXAMPLES / "README.md").read_text()


def test_links():
    pages.check_links(EXAMPLES / "README.md")


def test_operators(run, capsys):
    sizes = (50, 80, 200)
    torch.testing.assert_close(run("01", sizes, samples=16), [float(size) for size in sizes], rtol=1e-3, atol=0)
    printed = capsys.readouterr().out
    assert printed.count("same samples True, same neighbours True") == 2
    assert is_picture("out/01_operators.png")


def test_custom_operator(run):
    right, wrong = run("02")
    assert right.ok
    assert right["gradgradcheck"].status == "passed"
    assert wrong["gradcheck"].status == "failed"
    assert "is wrong by" in Path("out/02_audit.html").read_text()


def test_classification(run):
    accuracy = run("03", epochs=4, size=360, points=192)
    assert accuracy > 2 / 12, "chance is 1 / 12"
    assert is_picture("out/03_classification/curves.png")


def test_segmentation(run):
    assert run("04", epochs=8, pieces=64) > 0.4, "chance is 0.17"
    cloud = data.read("out/04_labelled.laz")
    assert set(cloud.labels.tolist()) <= {2, 5, 6}
    assert cloud.points[:, 1].min() >= 15, "only the northern half"
    assert is_picture("out/04_segmentation.png")


def test_segmentation_of_unusable_files(refusal, tmp_path):
    (tmp_path / "points.xyz").write_text("0 0 0\n1 1 1\n")
    for name, message in (("none.laz", "No such file"), ("points.xyz", "expected a class for each point, found none")):
        shown = refusal("04", name)
        assert "\n" not in shown
        assert name in shown
        assert message in shown


def test_neural_field(run):
    untrained, without, with_loss = run("05", steps=60)
    assert with_loss[0] < without[0] / 1.5, "norm of the gradient"
    assert with_loss[1] < untrained[1] / 10, "zero level"
    assert is_picture("out/05_neural_field.png")


def test_registration(run):
    assert run("06", count=2500, steps=72) < 46.2 / 8, "degrees"
    assert is_picture("out/06_registration.png")


def test_distributed(tmp_path):
    done = start("07", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ +\d    (\d\.\d{8})       (\d\.\d{8})$", done.stdout, re.MULTILINE)
    assert len(rows) == 3
    for two, one in rows:
        assert float(two) == pytest.approx(float(one), rel=1e-4)


def test_large_scene(run):
    miou, _ = run("08", 100_000, epochs=4)
    assert miou > 0.4, "chance is 0.2"
    assert len(data.read("out/08_labelled.laz")) == 100_000
    assert is_picture("out/08_large_scene.png")


def test_large_scene_with_an_invalid_argument(refusal):
    assert refusal("08", "many") == "POINTS must be an integer, got many"


def test_probe_encoder(run):
    assert run("10", scenes=2, points=1500, steps=30) > 0.5


def test_sparse_street(run):
    assert run("09", epochs=6, streets=4, points=3000, length=12.0, voxel=0.5) > 0.2, "chance is 0.1"
    assert len(data.read("out/09_labelled.laz")) == 3000
    assert is_picture("out/09_sparse_street.png")

"""Triton kernels are compiled for a GPU, which their interpreter does not do, on machines that have none."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.places import PLACES, ROOT

# The other rooms are built on the kernels of these.
ROOMS = {"attention", "conv", "gather", "interpolate", "loss", "neighbors", "sampling", "scatter", "segments"}


def run(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "reliability.gpu.compiled", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.skipif(not any(place.interpreted for place in PLACES), reason="nothing here interprets Triton")
def test_kernels_of_every_room_compile(tmp_path):
    launches, result = tmp_path / "launches.json", tmp_path / "compiled.json"
    recorded = run("record", "--few", launches)
    assert recorded.returncode == 0, recorded.stderr
    kernels = json.loads(launches.read_text())
    assert {kernel.split(".")[2].partition(":")[0] for kernel in kernels} == ROOMS
    # Whether sums are fused by default, and so how they round, differs between versions of Triton.
    forms = [json.loads(form)[1] for kernel in kernels.values() for form in kernel]
    assert all("enable_fp_fusion" in form for form in forms)
    compiled = run("compile", launches, "cuda:90:32", "--out", result)
    assert compiled.returncode == 0, compiled.stderr
    (made,) = json.loads(result.read_text())
    assert made["failed"] == {}
    assert made["forms"] >= made["kernels"] == len(kernels) >= 30
    assert any("cooperative" in form for form in kernels["pointgrad.ops.sampling.kernels:_farthest"])


def test_a_form_that_does_not_compile_is_told(tmp_path):
    pytest.importorskip("triton")
    arguments = [{"tensor": "int64", "from": 0}, {"tensor": "int64", "from": 0}, 40, 40, 9, 9, 256]
    forms = [json.dumps([arguments, {"BLOCK": block, "num_warps": 4}]) for block in (256, 1000)]
    launches, result = tmp_path / "launches.json", tmp_path / "compiled.json"
    launches.write_text(json.dumps({"pointgrad.ops.scatter.kernels:_count": forms}))
    compiled = run("compile", launches, "cuda:90:32", "--out", result)
    assert compiled.returncode == 1
    (made,) = json.loads(result.read_text())
    assert made["forms"] == 1
    ((form, why),) = made["failed"].items()
    assert '"BLOCK": 1000' in form
    assert "power of 2" in why


@pytest.mark.parametrize(
    ("launches", "target", "message"),
    [
        ("{}", "cuda:90:32", "must hold at least one launch, got none"),
        ('{"a:b": ["[[], {}]"]}', "cuda:9O:32", "a target must look like cuda:90:32 or hip:gfx942:64, got cuda:9O:32"),
    ],
)
def test_what_cannot_be_compiled_is_refused(tmp_path, launches, target, message):
    (tmp_path / "launches.json").write_text(launches)
    said = run("compile", tmp_path / "launches.json", target, "--out", tmp_path / "compiled.json")
    assert said.returncode == 2
    assert message in said.stderr
    assert not (tmp_path / "compiled.json").exists()

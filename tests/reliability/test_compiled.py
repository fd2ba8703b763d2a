"""Compilation of the Triton kernels for a GPU, on machines without one."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.places import PLACES, ROOT

# Families with Triton kernels, and the reductions that they share (ops/segments.py).
FAMILIES = {path.parent.name for path in (ROOT / "src" / "pointgrad" / "ops").glob("*/kernels.py")} | {"segments"}


def compile_for_gpu(monkeypatch, launches, out):
    """Compile in child processes that this process starts. Returns the exit status and the result."""
    from reliability.gpu import compiled

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    command = ["compiled", "compile", str(launches), "cuda:90:32", "--at-once", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # restored after compile_all has changed it
    status = compiled.main()
    (result,) = json.loads(out.read_text())
    return status, result


def run(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "reliability.gpu.compiled", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.long
@pytest.mark.skipif(not any(place.interpreted for place in PLACES), reason="needs Triton's interpreter")
def test_kernels_of_every_family_compile(tmp_path, monkeypatch):
    launches, out = tmp_path / "launches.json", tmp_path / "compiled.json"
    recorded = run("record", "--few", launches)
    assert recorded.returncode == 0, recorded.stderr
    kernels = json.loads(launches.read_text())
    assert {kernel.split(".")[2].partition(":")[0] for kernel in kernels} == FAMILIES
    # The default of enable_fp_fusion, which affects rounding, differs between versions of Triton.
    forms = [json.loads(form)[1] for kernel in kernels.values() for form in kernel]
    assert all("enable_fp_fusion" in form for form in forms)
    status, result = compile_for_gpu(monkeypatch, launches, out)
    assert result["failed"] == {}
    assert status == 0
    assert result["forms"] >= result["kernels"] == len(kernels) >= 30
    assert any("cooperative" in form for form in kernels["pointgrad.ops.sampling.kernels:_farthest"])


def test_variant_that_does_not_compile_is_reported(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    arguments = [{"tensor": "int64", "from": 0}, {"tensor": "int64", "from": 0}, 40, 40, 9, 9, 256]
    forms = [json.dumps([arguments, {"BLOCK": block, "num_warps": 4}]) for block in (256, 1000)]
    launches, out = tmp_path / "launches.json", tmp_path / "compiled.json"
    launches.write_text(json.dumps({"pointgrad.ops.scatter.kernels:_count": forms}))
    status, result = compile_for_gpu(monkeypatch, launches, out)
    assert status == 1
    assert result["forms"] == 1
    ((form, reason),) = result["failed"].items()
    assert '"BLOCK": 1000' in form
    assert "power of 2" in reason


@pytest.mark.parametrize(
    ("launches", "target", "message"),
    [
        ("{}", "cuda:90:32", "must contain at least one launch, got none"),
        ('{"a:b": ["[[], {}]"]}', "cuda:9O:32", "must have the form cuda:90:32 or hip:gfx942:64, got cuda:9O:32"),
    ],
    ids=["no launches", "invalid target"],
)
def test_invalid_arguments_are_rejected(tmp_path, launches, target, message, monkeypatch, capsys):
    from reliability.gpu import compiled

    path, out = tmp_path / "launches.json", tmp_path / "compiled.json"
    path.write_text(launches)
    monkeypatch.setattr(sys, "argv", ["compiled", "compile", str(path), target, "--out", str(out)])
    with pytest.raises(SystemExit, match="2"):
        compiled.main()
    assert message in capsys.readouterr().err
    assert not out.exists()

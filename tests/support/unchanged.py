"""Run the programs of tests/compat/foreign unchanged: in this process after `install`, or with the command."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pointgrad.compat

FOREIGN = Path(__file__).parents[1] / "compat" / "foreign"


def in_this_process(library: str, monkeypatch) -> None:
    """Run the program of a library in this process; its modules are removed afterwards."""

    def drop() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    drop()
    pointgrad.compat.install(library)
    try:
        runpy.run_path(str(FOREIGN / f"{library}_model.py"), run_name="__main__")
    finally:
        drop()


def by_command(library: str) -> str:
    """Run the program of a library with `python -m pointgrad.compat run`, and return its output."""
    source = str(Path(pointgrad.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    program = str(FOREIGN / f"{library}_model.py")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pointgrad.compat", "run", "--only", library, program],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout

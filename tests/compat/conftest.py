"""Fixtures of the compat tests."""

import runpy
import sys
from pathlib import Path

import pytest

import pointgrad.compat


@pytest.fixture
def device(default_place):
    return default_place.device


@pytest.fixture
def run_program(monkeypatch, capsys):
    """Run a program of tests/compat/foreign on compat packages. Return its variables and the losses it printed."""

    def run(program, packages, *arguments):
        def imported():
            return [name for name in sys.modules if name.partition(".")[0] in packages]

        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        for name in imported():
            monkeypatch.delitem(sys.modules, name)  # restored by monkeypatch
        try:
            pointgrad.compat.install(*packages)
            variables = runpy.run_path(str(Path(__file__).parent / "foreign" / program), run_name="__main__")
        finally:
            for name in imported():
                del sys.modules[name]
        return variables, [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]

    return run

"""`pointgrad.compat.install` in a process, and `python -m pointgrad.compat` around a program."""

import doctest
import importlib
import importlib.metadata
import importlib.util
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import pointgrad.compat
from pointgrad.compat import __main__ as command

HERE = Path(__file__).parent
PEERS = pointgrad.compat.peers()
LIBRARIES = [name for name in PEERS if hasattr(pointgrad.compat.modules(name)[0], "__version__")]


pytestmark = pytest.mark.usefixtures("no_library")


@pytest.fixture
def real(tmp_path, monkeypatch):
    """A folder on `sys.path` with another library named pytorch3d."""
    package = tmp_path / "pytorch3d"
    package.mkdir()
    (package / "__init__.py").write_text("REAL = True\n")
    (package / "renderer.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def run(*arguments, cwd=None, **environment):
    """Run `python -m pointgrad.compat` in a new process."""
    source = str(Path(pointgrad.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pointgrad.compat", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, cwd=cwd, env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


class TestInstall:
    def test_imports(self):
        pointgrad.compat.install("pytorch3d")
        import pytorch3d
        import pytorch3d.ops.knn as knn
        from pytorch3d.loss import chamfer_distance
        from pytorch3d.ops import knn_points

        import pointgrad.compat.pytorch3d as ours

        assert pytorch3d is ours
        assert knn is sys.modules["pointgrad.compat.pytorch3d.ops.knn"]
        assert knn_points is ours.ops.knn_points
        assert chamfer_distance is ours.loss.chamfer_distance

    def test_star_import(self):
        pointgrad.compat.install("pytorch3d")
        names = {}
        exec("from pytorch3d.ops import *", names)
        assert {"knn_points", "knn_gather", "ball_query", "sample_farthest_points"} <= set(names)

    def test_second_install_changes_nothing(self):
        pointgrad.compat.install("pytorch3d")
        before = dict(sys.modules), list(sys.meta_path)
        pointgrad.compat.install("pytorch3d")
        assert (dict(sys.modules), list(sys.meta_path)) == before

    def test_only_named_libraries_are_installed(self):
        pointgrad.compat.install("pytorch3d")
        assert {name for name in PEERS if name in sys.modules} == {"pytorch3d"}

    @pytest.mark.parametrize("name", PEERS)
    def test_every_library(self, name):
        """All modules are available under the library's own names, and none is loaded twice."""
        pointgrad.compat.install(name)
        package = sys.modules[f"pointgrad.compat.{name}"]
        folder = Path(pointgrad.compat.__file__).parent
        files = [folder / f"{name}.py"] if not hasattr(package, "__path__") else (folder / name).rglob("*.py")
        for file in files:
            key = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            assert importlib.import_module(key) is sys.modules[f"pointgrad.compat.{key}"]
        assert package.__doc__
        assert package.__spec__.name == package.__name__

    def test_all_libraries_by_default(self):
        pointgrad.compat.install()
        assert set(LIBRARIES) <= set(sys.modules)
        for name in PEERS:
            assert importlib.import_module(name) is sys.modules[f"pointgrad.compat.{name}"]

    def test_unknown_name(self):
        with pytest.raises(ValueError, match=r"names must be among .*pytorch3d.*, got 'pytorch3'"):
            pointgrad.compat.install("pytorch3d", "pytorch3")
        assert "pytorch3d" not in sys.modules

    def test_takes_precedence_over_an_installed_library(self, real):
        assert importlib.util.find_spec("pytorch3d").origin == str(real / "__init__.py")
        pointgrad.compat.install("pytorch3d")
        import pytorch3d.ops

        assert pytorch3d.ops.knn_points.__module__ == "pointgrad.compat.pytorch3d.ops.knn"

    @pytest.mark.parametrize("name", ["pytorch3d", "pytorch3d.renderer"])
    def test_an_imported_library_raises(self, name, real):
        """Nothing is installed, so that a program never uses both libraries at once."""
        module = importlib.import_module(name)
        others = [peer for peer in LIBRARIES if peer != "pytorch3d"]
        with pytest.raises(
            ImportError, match=r"pytorch3d.* is already imported from .*before the first import"
        ) as error:
            pointgrad.compat.install(*others, "pytorch3d")
        assert error.value.name == "pytorch3d"
        assert str(real) in str(error.value)
        assert sys.modules[name] is module
        assert not set(others) & set(sys.modules)

    def test_a_blocked_import_does_not_count_as_imported(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pytorch3d", None)
        pointgrad.compat.install("pytorch3d")
        assert importlib.import_module("pytorch3d").__version__

    def test_spec_and_version(self):
        """Programs use these to detect a library."""
        pointgrad.compat.install()
        for name in PEERS:
            assert importlib.util.find_spec(name) is not None
        found = {found.metadata["Name"] for found in importlib.metadata.distributions()}
        for name in LIBRARIES:
            for spelled in (name, name.replace("_", "-"), name.upper()):
                assert importlib.metadata.version(spelled) == sys.modules[name].__version__
            assert name in found
        assert importlib.metadata.version("torch")
        assert not importlib.metadata.entry_points(group="no-such-group")  # reads every distribution
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("no-such-library")

    @pytest.mark.parametrize(
        ("code", "name"),
        [
            ("import pytorch3d.renderer", "pytorch3d.renderer"),
            ("import pytorch3d._C as _C", "pytorch3d._C"),
            ("from pytorch3d import _C", "pytorch3d._C"),
            ("from pytorch3d.structures import Meshes", "pytorch3d.structures.Meshes"),
            ("from pytorch3d.ops import cubify", "pytorch3d.ops.cubify"),
            ("import pytorch3d.ops.mesh_filtering", "pytorch3d.ops.mesh_filtering"),
        ],
    )
    def test_missing_modules(self, code, name):
        pointgrad.compat.install("pytorch3d")
        with pytest.raises(ModuleNotFoundError) as error:
            exec(code)
        reason = f"pointgrad.compat replaces pytorch3d but does not provide {name}; "
        assert str(error.value) == f"{reason}`python -m pointgrad.compat list` prints what is provided"

    def test_other_imports_fail_as_usual(self):
        pointgrad.compat.install()
        with pytest.raises(ModuleNotFoundError, match="No module named 'pytorch3dx'"):
            importlib.import_module("pytorch3dx")
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'json\.nothing'"):
            importlib.import_module("json.nothing")
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'pointgrad\.compat\.nothing'"):
            importlib.import_module("pointgrad.compat.nothing")

    def test_pickle(self):
        """Pickles use the names of pointgrad.compat, so they load without `install`; those of the original load too."""
        pointgrad.compat.install("pytorch3d")
        from pytorch3d.ops import knn_points

        assert pickle.loads(pickle.dumps(knn_points)) is knn_points
        assert pickle.loads(b"cpytorch3d.ops.knn\nknn_points\n.") is knn_points

    def test_reload(self):
        pointgrad.compat.install("pytorch3d")
        import pytorch3d.ops

        assert importlib.reload(pytorch3d.ops) is pytorch3d.ops
        assert sys.modules["pytorch3d.ops"] is sys.modules["pointgrad.compat.pytorch3d.ops"]
        assert pytorch3d.ops.knn_points is sys.modules["pytorch3d.ops.knn"].knn_points

    def test_threads(self):
        start, failures = threading.Barrier(8), []

        def work():
            try:
                start.wait()
                pointgrad.compat.install("pytorch3d")
                assert importlib.import_module("pytorch3d.ops") is sys.modules["pointgrad.compat.pytorch3d.ops"]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert sum(type(finder).__name__ == "Finder" for finder in sys.meta_path) == 1

    def test_docstring_examples(self):
        assert doctest.testmod(pointgrad.compat).attempted >= 4
        assert doctest.testmod(pointgrad.compat).failed == 0


PROGRAM = """
import sys
import pytorch3d.ops
import beside

class Mine:
    pass

def fail():
    raise RuntimeError("mine")

if __name__ == "__main__":
    import pickle
    assert sys.modules["__main__"].__dict__ is globals()
    assert __spec__ is None
    assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
    print(sys.argv, __file__, pytorch3d.ops.__name__, "torch_cluster" in sys.modules)
    if sys.argv[1] == "exit":
        sys.exit(7)
    fail()
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "beside.py").write_text("import sys\n")
    path = tmp_path / "folder" / "program.py"
    path.write_text(PROGRAM)
    return path


class TestRun:
    def test_a_script_runs_as_under_python(self, program):
        """Same arguments, `sys.path`, exit status and traceback."""
        result = run("run", "--only", "pytorch3d", "folder/program.py", "fail", "--only", "x", cwd=program.parents[1])
        assert result.returncode == 1
        expected = (
            "['folder/program.py', 'fail', '--only', 'x'] folder/program.py pointgrad.compat.pytorch3d.ops False\n"
        )
        assert result.stdout == expected
        lines = result.stderr.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[-1] == "RuntimeError: mine"
        places = [line.split('"')[1] for line in lines if line.startswith("  File")]
        assert [Path(place).name for place in places] == ["program.py", "program.py"]

    def test_exit_status_of_a_module(self, program):
        (program.parent / "__init__.py").touch()
        text = program.read_text().replace("import beside", "from . import beside")
        program.write_text(text.replace("assert __spec__ is None", "assert __spec__.name == 'folder.program'"))
        result = run("run", "--only=pytorch3d", "-m", "folder.program", "exit", cwd=program.parents[1])
        assert result.returncode == 7, result.stderr
        assert result.stdout.startswith(f"['{program}', 'exit'] {program} pointgrad.compat.pytorch3d.ops")
        assert result.stderr == ""

    def test_child_processes(self, tmp_path):
        """Spawned workers also import the libraries, and the environment's own sitecustomize still runs."""
        (tmp_path / "sitecustomize.py").write_text("import sys; sys.environment_was_set_up = True\n")
        script = tmp_path / "spawns.py"
        script.write_text(
            textwrap.dedent("""
            import multiprocessing
            import sys
            import pytorch3d.ops

            def work(queue):
                left_over = [path for path in sys.path if "_startup" in path]
                names = pytorch3d.ops.knn_points.__module__, pytorch3d.__spec__.name
                queue.put((*names, left_over, sys.environment_was_set_up))

            if __name__ == "__main__":
                context = multiprocessing.get_context("spawn")
                queue = context.Queue()
                worker = context.Process(target=work, args=(queue,))
                worker.start()
                print(queue.get(timeout=60))
                worker.join()
            """)
        )
        result = run(
            "run", script, PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path(pointgrad.__file__).parents[1])])
        )
        assert result.stdout == "('pointgrad.compat.pytorch3d.ops.knn', 'pointgrad.compat.pytorch3d', [], True)\n", (
            result.stderr
        )

    def test_program_for_pytorch3d(self):
        result = run("run", HERE / "foreign" / "pytorch3d_model.py", "--steps", "4")
        assert result.returncode == 0, result.stderr
        losses = [float(line) for line in result.stdout.split()]
        assert len(losses) == 4
        assert losses[-1] < losses[0]

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["run"], "run needs a script, or -m and a module"),
            (["run", "-m"], "run needs a module after -m"),
            (["run", "nothing.py"], "no such file: nothing.py"),
            (["run", "-m", "no_such_module"], "no module named no_such_module"),
            (["run", "-m", "json.nothing.below"], "no module named json.nothing.below"),
            (["run", "--only"], "--only must be followed by a comma-separated list of names"),
            (["run", "--only", "open3d", "x.py"], f"--only must be a list of {', '.join(PEERS)}, got 'open3d'"),
            (["run", "--only=", "x.py"], f"--only must be a list of {', '.join(PEERS)}, got ''"),
            (["run", "--fast", "x.py"], "run has no option --fast; options of the script must follow its name"),
            (["list", "x"], "list takes no arguments, got 'x'"),
            (["walk"], "the command must be run or list, got 'walk'"),
        ],
    )
    def test_invalid_command_line(self, arguments, reason, capsys):
        assert command.main(arguments) == 2
        printed = capsys.readouterr()
        assert printed.err == f"pointgrad.compat: {reason}\n"
        assert printed.out == ""
        assert not set(PEERS) & set(sys.modules)

    @pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "-h"]])
    def test_help(self, arguments, capsys):
        assert command.main(arguments) == 0
        assert capsys.readouterr().out.startswith("usage: python -m pointgrad.compat run")

    def test_list(self, capsys):
        assert command.main(["list"]) == 0
        printed = capsys.readouterr().out
        for name in PEERS:
            assert f"\n{name}" in f"\n{printed}"
        assert "pytorch3d.loss: chamfer_distance\n" in printed
        assert "knn_points" in printed
        assert "_manhattan" not in printed

"""`pointgrad new-operator`: the files for each choice of kernels, invalid names and folders, the generated tests."""

import ast
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytest.importorskip("tyro", reason="the command line needs tyro, which is not installed")

from pointgrad import scaffold
from pointgrad.cli import main
from tests.support.places import PLACES, ROOT

CHOICES = [
    ("python", *kernels) for count in range(4) for kernels in itertools.combinations(("cpp", "cuda", "triton"), count)
]
# Texts that only a package with one of these kernels contains, and the files that only it has.
TEXTS = {
    ("cpp",): ["C++ kernel", "cpu.cpp", "_cpu("],
    ("cuda",): ["CUDA kernel", ".cu`", "cuda.cu", "nvcc", "_cuda("],
    ("triton",): ["triton", "Triton"],
    ("cpp", "cuda"): ["csrc", "setup.py", "C++", "_C "],
    ("cpp", "cuda", "triton"): ["has_kernel", "kernels.py"],
}
FILES = {
    ("cpp",): {"csrc/cpu.cpp"},
    ("cuda",): {"csrc/cuda.cu"},
    ("triton",): {"src/blend/triton_kernels.py"},
    ("cpp", "cuda"): {"setup.py", "csrc/blend.h", "csrc/bindings.cpp"},
    ("cpp", "cuda", "triton"): {"src/blend/kernels.py", "tests/test_kernels.py"},
    ("python",): {
        ".github/workflows/tests.yml", ".gitignore", "README.md", "benchmark.py", "pyproject.toml",
        "src/blend/__init__.py", "src/blend/function.py", "src/blend/reference.py", "src/blend/register.py",
        "tests/test_operator.py",
    },
}  # fmt: skip


def run(command, **options):
    """The output of a command, with its errors, which must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("kernels", CHOICES, ids=",".join)
def test_files_of_each_choice(kernels):
    files = scaffold.files("blend", kernels)
    assert set(files) == set().union(*(paths for some, paths in FILES.items() if {*some} & {*kernels}))
    everything = "\n".join(files.values())
    assert "my_operator" not in everything
    assert "[/" not in everything  # a comment that encloses lines of the template
    for some, texts in TEXTS.items():
        if not {*some} & {*kernels}:
            assert [text for text in texts if text in everything] == []
    for path, content in files.items():
        if path.endswith(".py"):
            ast.parse(content)
    listed = set(re.findall(r"^- `(\S+)`:", files["README.md"], re.MULTILINE))
    assert listed == set(files) - {"README.md", ".gitignore"}


def test_every_file_of_the_template_is_used():
    found = {file.relative_to(scaffold.TEMPLATE).as_posix() for file in scaffold.TEMPLATE.rglob("*") if file.is_file()}
    caches = ("__pycache__/", ".ruff_cache/", ".pytest_cache/", ".mypy_cache/")
    assert {path for path in found if not any(cache in path for cache in caches)} == set(scaffold._FILES)


def test_generated_packages_are_clean(tmp_path):
    """With the rules of this project, for names of any length."""
    if find_spec("ruff") is None:
        pytest.skip("needs ruff: pip install 'pointgrad[lint]'")
    for name, kernels in itertools.product(("ab", "quite_a_long_name_xy"), CHOICES):
        scaffold.write(tmp_path / f"{name}-{'-'.join(kernels)}", scaffold.files(name, kernels))
    run([sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=tmp_path)
    run([sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "."], cwd=tmp_path)
    rules = re.search(r"^select = .*", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
    assert rules in scaffold.files("blend", ["python"])["pyproject.toml"]


@pytest.mark.long
def test_generated_package_builds_and_passes_its_tests(tmp_path):
    """As a user installs it, in a new environment that sees the packages of this one. No GPU is needed."""
    try:
        metadata.version("pip"), metadata.version("setuptools")
    except metadata.PackageNotFoundError as error:
        pytest.skip(f"needs {error.name}")
    triton = any(place.backend == "triton" for place in PLACES)
    folder = tmp_path / "cell_blend"
    assert main(["new-operator", "cell_blend", "--kernels", f"cpp,cuda{',triton' * triton}", "--out", str(folder)]) == 0

    venv.create(tmp_path / "env", with_pip=False, symlinks=os.name != "nt")
    (python,) = [*(tmp_path / "env").glob("bin/python"), *(tmp_path / "env").glob("Scripts/python.exe")]
    (packages,) = [*(tmp_path / "env").glob("lib/*/site-packages"), *(tmp_path / "env").glob("Lib/site-packages")]
    parent = Path(torch.__file__).parents[1]
    (packages / "parent.pth").write_text(f"import site; site.addsitedir({str(parent)!r})\n")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"OMP_NUM_THREADS": "2", "PYTHONPATH": str(Path(scaffold.__file__).parents[2])}

    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install"]
    built = run([*pip, "-e", ".", "--no-build-isolation", "--no-deps", "-v"], cwd=folder, env=environment)
    assert torch.version.cuda or "this build of torch has no CUDA: no CUDA kernel is built" in built
    tested = run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=folder, env=environment)
    has_compiler = shutil.which(os.environ.get("CXX", "c++").split()[0]) is not None
    assert "test_operator.py" not in tested  # no test of it was skipped, with a compiler
    assert not has_compiler or "is not built" not in tested
    assert re.search(r"\d+ passed", tested)

    timed = run([python, "benchmark.py", "--device", "cpu", "--points", "64"], cwd=folder, env=environment)
    rows = [line.partition("  ")[0] for line in timed.splitlines()[-3:]]
    assert rows == ["forward", "backward, corners", "backward, both"]

    environment["CXX"] = "missing"
    explained = run([python, "setup.py", "--name"], cwd=folder, env=environment)
    assert "no C++ compiler found: the plain PyTorch form is used" in explained


def test_package_without_its_kernels(tmp_path, monkeypatch):
    """It warns, names what is missing, and computes the same."""
    original = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else original(name))
    folder = tmp_path / "unbuilt"
    scaffold.write(folder, scaffold.files("unbuilt_cell", ["cpp", "cuda", "triton"]))
    monkeypatch.syspath_prepend(folder / "src")
    package = importlib.import_module("unbuilt_cell")
    corners, points = torch.rand(4, 8, 3, requires_grad=True), torch.rand(4, 3, requires_grad=True)
    with pytest.warns(RuntimeWarning, match=r"unbuilt_cell: CPU tensors .* C\+\+ kernel is not built\. Install a C"):
        out = package.unbuilt_cell(corners, points)
    expected = torch.ops.pointgrad.trilinear(corners, points, None)
    torch.testing.assert_close(out, expected)
    upstream = torch.randn_like(out)
    with pytest.warns(RuntimeWarning, match="is not built"):
        grads = torch.autograd.grad(out, (corners, points), upstream)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, (corners, points), upstream))
    assert "Triton is not installed: pip install triton" in package.kernels._missing["cuda"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["2nd"], "NAME must consist of letters, digits and inner underscores, as in my_operator, got '2nd'"),
        (["a-b"], "NAME must consist of letters, digits and inner underscores, as in my_operator, got 'a-b'"),
        (["größe"], "NAME must consist of letters, digits and inner underscores, as in my_operator, got 'größe'"),
        (["cell_"], "NAME must consist of letters, digits and inner underscores, as in my_operator, got 'cell_'"),
        ([""], "NAME must consist of letters, digits and inner underscores, as in my_operator, got ''"),
        (["lambda"], "NAME must not be a keyword of Python, got 'lambda'"),
        (["namespace"], "NAME must not be a keyword of C++, got 'namespace'"),
        (["trilinear"], "NAME must be new, but pointgrad has an operator or a module named trilinear"),
        (["softmax"], "NAME must be new, but pointgrad has an operator or a module named softmax"),
        (["aten"], "NAME must be new, but torch.ops.aten exists"),
        (["json"], f"NAME must be new, but a module of that name exists: {find_spec('json').origin}"),
        (["points"], "NAME must not be a name that the generated code uses itself, got 'points'"),
        (["parallel_for"], "NAME must not be a name that the generated code uses itself, got 'parallel_for'"),
        (["blend", "--kernels", "cpp,metal"], "--kernels must be some of python, cpp, cuda, triton, got 'metal'"),
        (["blend", "--kernels", ""], "--kernels must be some of python, cpp, cuda, triton, got ''"),
        (["blend", "--kernels", "cpp,cpp"], "--kernels must not contain a name twice, got 'cpp,cpp'"),
        (["blend", "--out", "full"], "full must be a new or an empty folder, but it holds notes.txt"),
        (["blend", "--out", "full/notes.txt"], "cannot write full/notes.txt: Not a directory"),
        (["blend", "--out", "missing/blend"], "cannot write missing/blend: No such file or directory"),
    ],
)
def test_invalid_input(arguments, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    assert main(["new-operator", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.err == f"pointgrad new-operator: {reason}\n"
    assert shown.out == ""
    assert sorted(map(str, Path().rglob("*"))) == ["full", "full/notes.txt"]


@pytest.mark.parametrize("exists", [False, True])
def test_failure_leaves_nothing(exists, tmp_path, monkeypatch, capsys):
    """A write that fails in the middle, as on a full disk, and a move that fails."""
    monkeypatch.chdir(tmp_path)
    if exists:
        Path("blend").mkdir()
    for method, name in (("write_text", "cuda.cu"), ("rename", "setup.py" if exists else "blend")):
        original = getattr(Path, method)

        def fails(path, *args, original=original, name=name, **options):
            if name in (path.name, *(Path(each).name for each in args[:1])):
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Path, method, fails)
            assert main(["new-operator", "blend"]) == 2
        assert capsys.readouterr().err == "pointgrad new-operator: cannot write blend: Permission denied\n"
        assert list(Path().rglob("*")) == ([Path("blend")] if exists else [])
    assert main(["new-operator", "blend"]) == 0
    assert Path("blend/src/blend/__init__.py").exists()
    assert not list(Path().rglob("*.part"))

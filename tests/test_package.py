"""The package as a whole: imports, public API, layers, kernels and backends."""

import ast
import graphlib
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import pointgrad
import pointgrad.functional
from pointgrad.ops import native, registry

SOURCE = Path(pointgrad.__file__).parent
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"


FAMILIES = [file.parent for file in (SOURCE / "ops").glob("*/__init__.py") if file.parent.name != "native"]


def run_python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, env={**os.environ, **environment}, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_and_cpu_calls_in_a_new_process():
    """Imports and calls need torch and numpy only, and an environment variable forces a backend."""
    code = """
import sys, json, torch, numpy
before = set(sys.modules)
import pointgrad
from pointgrad.ops import registry
new = sorted(set(sys.modules) - before)
pointgrad.gather(torch.zeros(3, 2), pointgrad.farthest_point_sampling(torch.rand(9, 3), 3) * 0)
pointgrad.trilinear(torch.zeros(3, 8, 2), torch.zeros(3, 3))
print(json.dumps([new, torch.cuda.is_initialized(), "triton" in sys.modules, registry._forced]))
"""
    new, touched_gpu, imported_triton, forced = json.loads(run_python(code, POINTGRAD_BACKEND="cpu"))
    third_party = {name.partition(".")[0] for name in new}.difference(sys.stdlib_module_names)
    assert third_party <= {"pointgrad", "torch", "numpy"}
    assert "pointgrad.catalog" not in new
    assert not touched_gpu
    assert not imported_triton
    assert forced == "cpu"


def test_public_api_is_explicit_and_complete():
    """pointgrad/__init__.py exports exactly the public functions of the operator families."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    exported = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert None not in exported
    offered = set()
    for family in FAMILIES:
        offered |= set(sys.modules[f"pointgrad.ops.{family.name}"].__all__)
    elementary = set(vars(pointgrad.functional))
    packages = {"data", "functional", "inspect", "models", "nn", "predict", "render", "train", "view"}
    assert exported == offered - elementary | packages | {"backend", "release_buffers"}
    assert all(getattr(pointgrad, name).__doc__ for name in exported)


def test_families_import_each_other_one_way():
    """A family may use the public functions and registered operators of another, not its internals, and no cycles."""
    shared = {"native", *(file.stem for file in (SOURCE / "ops").glob("*.py"))}
    used = {family.name: set() for family in FAMILIES}
    for family in FAMILIES:
        for file in family.glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level == 2:
                    modules = {node.module} if node.module else {alias.name for alias in node.names}
                    others = modules - shared
                    used[family.name] |= {module.removesuffix(".register") for module in others}
    assert set().union(*used.values()) <= set(used)
    graphlib.TopologicalSorter(used).prepare()  # raises an error for a cycle


def layers():
    """The packages that each package may import, directly or indirectly, from the diagram in docs/architecture.md."""
    (diagram,) = re.findall(r"## Layers\n+```\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL)
    below = {}
    for line in diagram.splitlines():
        groups = [[name.strip() for name in group.split(",")] for group in line.split("<-")]
        for lower, upper in itertools.pairwise(groups):
            for name in upper:
                below.setdefault(name, set()).update(lower)
    for name in graphlib.TopologicalSorter(below).static_order():  # raises an error for a cycle
        direct = below.setdefault(name, set())
        below[name] = direct.union(*(below[lower] for lower in direct))
    return below


LAYERS = layers()
BASE = {file.stem for file in SOURCE.glob("*.py")} - {"__init__", "__main__"}  # every package may import these modules


def imported(module, source):
    """The parts of pointgrad that a module imports, also inside functions: packages, modules of `BASE`, and "public"
    for functions that are imported from pointgrad itself."""
    found, parent = set(), module.split(".")[:-1]
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = parent[: len(parent) + 1 - node.level] if node.level else []
            found |= {".".join([*start, *filter(None, [node.module]), alias.name]) for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pointgrad":
            found.add(f"pointgrad.{node.attr}")
    parts = {name.split(".")[1] for name in found if name.startswith("pointgrad.")}
    return {part if part in LAYERS or part in BASE else "public" for part in parts}


def violations(module, source):
    """The parts of pointgrad that a module imports although it must not."""
    layer = module.split(".")[1]
    if layer in BASE:
        allowed = BASE
    else:
        allowed = {layer} | LAYERS[layer] | BASE | ({"public"} if "ops" in LAYERS[layer] else set())
    return imported(module, source) - allowed


def test_layers_import_one_way():
    """As in the diagram of docs/architecture.md. Only `__init__.py`, the public API, and `__main__.py` are exempt."""
    assert {file.parent.name for file in SOURCE.glob("*/__init__.py")} <= set(LAYERS)
    found = {}
    for file in SOURCE.rglob("*.py"):
        module = ["pointgrad", *file.relative_to(SOURCE).with_suffix("").parts]
        if module not in (["pointgrad", "__init__"], ["pointgrad", "__main__"]):
            wrong = violations(".".join(module), file.read_text())
            found |= {str(file.relative_to(SOURCE)): wrong} if wrong else {}
    assert found == {}


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("pointgrad.data.a", "def f():\n    from pointgrad.train import load\n", {"train"}),
        ("pointgrad.data.files.a", "from ...render import colors\n", {"render"}),
        ("pointgrad.data.__init__", "from ..predict import label\n", {"predict"}),
        ("pointgrad.nn.a", "import pointgrad\nnetwork = pointgrad.models.build('pointnet')\n", {"models"}),
        ("pointgrad.models.a", "import pointgrad.data.cloud\n", {"data"}),
        ("pointgrad.ops.gather.a", "from pointgrad import knn\n", {"public"}),
        ("pointgrad.writing", "from pointgrad import data\n", {"data"}),
        ("pointgrad.catalog.a", "from pointgrad.models import build\n", {"models"}),
        ("pointgrad.inspect.a", "from pointgrad import nn, writing\n", {"nn"}),
        ("pointgrad.view.a", "from pointgrad import knn\nfrom pointgrad.nn.level import Level\n", set()),
        ("pointgrad.data.files.a", "from . import las\nfrom ..cloud import Cloud\nfrom ...ops import gather\n", set()),
        ("pointgrad.catalog.a", "from pointgrad import knn\nfrom pointgrad.functional import log\n", set()),
    ],
)  # fmt: skip
def test_violations_of_layers_are_detected(module, source, wrong):
    assert violations(module, source) == wrong


def test_each_family_has_all_its_files():
    for family in FAMILIES:
        present = {file.name for file in family.iterdir()}
        assert {"README.md", "__init__.py"} <= present
        # A family that only composes operators of other families registers none and needs no reference.
        assert ("register.py" in present) == ("reference.py" in present)


def test_backend_is_restored_after_an_error():
    with pytest.raises(KeyError), pointgrad.backend("reference"):
        raise KeyError
    assert registry._forced is None


def test_backend_can_be_entered_again():
    same = pointgrad.backend("reference")
    with same, same:
        pass
    assert registry._forced is None


def test_every_kernel_is_in_use():
    """A kernel that is not named at registration would silently never run."""
    for register in (SOURCE / "ops").glob("*/register.py"):
        family = f"pointgrad.ops.{register.parent.name}.reference"
        kernels = {name: op.kernels for name, op in registry.registered.items() if op.reference.__module__ == family}
        assert kernels
        for file, backend in (("cpu.py", "cpu"), ("kernels.py", "triton")):
            source = register.parent / file
            tree = ast.parse(source.read_text() if source.exists() else "")
            written = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            written |= {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
            assert written & set(kernels) == {name for name in kernels if backend in kernels[name]}


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_kernels_have_the_parameters_of_the_reference(backend):
    if backend == "triton":
        pytest.importorskip("triton")
    for name, op in registry.registered.items():
        if backend in op.kernels:
            family = op.reference.__module__.rpartition(".")[0]
            kernel = registry._load(family, backend, name)
            assert inspect.signature(kernel) == inspect.signature(op.reference), (name, backend)


def test_forward_mode_is_refused():
    """Without an error, torch would silently return zero."""
    points = torch.rand(4, 3)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda p: pointgrad.trilinear(torch.rand(4, 8, 2), p), (points,), (points,))


def test_default_device_does_not_matter():
    points = torch.rand(9, 3)
    torch.set_default_device("meta")
    try:
        assert pointgrad.random_sampling(points, 3).device.type == "cpu"
        assert pointgrad.farthest_point_sampling(points, 3, start="random").device.type == "cpu"
        assert pointgrad.trilinear(torch.zeros(3, 8, 2), torch.zeros(3, 3)).shape == (3, 2)
    finally:
        torch.set_default_device(None)


def test_backends_nest():
    with pointgrad.backend("reference"):
        with pointgrad.backend("cpu"):
            assert registry._forced == "cpu"
        assert registry._forced == "reference"


def test_without_the_native_module(monkeypatch):
    """One warning and the result of the reference; selecting the C++ backend explicitly is an error."""
    monkeypatch.setattr(native, "module", None)
    monkeypatch.setattr(registry, "_warned", set())
    features, index = torch.randn(5, 2), torch.tensor([3, 1, -1])
    with pytest.warns(RuntimeWarning, match="C\\+\\+ kernels are not available") as caught:
        picked = pointgrad.gather(features, index)
    assert len(caught) == 1
    assert torch.equal(picked[:2], features[[3, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pointgrad.gather(features, index)
    with pointgrad.backend("cpu"), pytest.raises(RuntimeError, match="is not available"):
        pointgrad.gather(features, index)


def test_import_without_the_native_module(tmp_path):
    """As in a checkout without a build."""
    (tmp_path / "pointgrad").symlink_to(SOURCE)
    code = """
import sys, importlib.abc
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pointgrad._native":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import warnings, torch, pointgrad
warnings.simplefilter("ignore")
print(pointgrad.farthest_point_sampling(torch.eye(3), 2).tolist())
"""
    assert run_python(code, PYTHONPATH=str(tmp_path)).strip() == "[0, 1]"


def test_triton_on_cpu_tensors_needs_the_interpreter():
    code = """
import torch, pointgrad
try:
    with pointgrad.backend("triton"):
        pointgrad.gather(torch.zeros(2, 2), torch.tensor([0]))
except ValueError as error:
    print(error)
"""
    assert "needs tensors on a GPU" in run_python(code, TRITON_INTERPRET="0")


def test_inductor():
    """The default compiler on a function that uses several families, including gradients."""

    def network(points, features):
        index = pointgrad.farthest_point_sampling(points, 4)
        picked = pointgrad.gather(features, index)
        corners = picked[:, None, :].expand(4, 8, 5) * 1.0
        return pointgrad.trilinear(corners, torch.tanh(pointgrad.gather(points, index)))

    points = torch.randn(20, 3, requires_grad=True)
    features = torch.randn(20, 5, requires_grad=True)
    expected = torch.autograd.grad(network(points, features).pow(2).sum(), (points, features))
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True)
    received = torch.autograd.grad(compiled(points, features).pow(2).sum(), (points, features))
    torch.testing.assert_close(received, expected)


def test_readme_example_runs():
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names = {}
    exec(example, names)
    assert names["grouped"].shape == (2, 512, 16, 64)
    assert names["features"].grad is not None


def test_documented_examples_run():
    """The examples in every public docstring."""
    import doctest

    names = {"torch": torch, "pointgrad": pointgrad, "points": torch.rand(9, 3)}
    names |= {name: getattr(pointgrad, name) for name in dir(pointgrad) if not name.startswith("_")}
    ran = set()
    for name, value in vars(pointgrad).items():
        if callable(value) and not name.startswith("_"):
            for example in doctest.DocTestFinder(recurse=False).find(value, name, globs=names):
                result = doctest.DocTestRunner().run(example)
                assert result.failed == 0
                ran |= {name} if result.attempted else set()
    functions = {name for name, value in vars(pointgrad).items() if inspect.isfunction(value)}
    assert ran == functions | {"backend", "NeighborIndex"}

"""The generated keys of kernels: launches share compiled code only if Triton would compile the same."""

import ast
import importlib
import random
from pathlib import Path

import pytest
import torch

import pointgrad.ops

triton = pytest.importorskip("triton")
launch = importlib.import_module("pointgrad.ops.launch")


def _kernel(a_ptr, b_ptr, rows, step, scale, SIZE, FLAG):
    pass


def kernel_of(**options):
    from triton import language as tl

    _kernel.__annotations__ = {"SIZE": tl.constexpr, "FLAG": tl.constexpr}
    return launch.Kernel(_kernel, **options)


def specialization(kernel, arguments):
    """The properties of the arguments for which Triton compiles a kernel on a GPU."""
    jit = importlib.import_module("triton.runtime.jit")
    if not hasattr(jit, "native_specialize_impl"):
        pytest.skip("needs a Triton that specializes arguments in C++")
    backends = importlib.import_module("triton.backends.compiler")
    backend = triton.compiler.make_backend(backends.GPUTarget("cuda", 90, 32))
    bind = jit.create_function_from_signature(kernel.signature, kernel.params, backend)
    _, found, options = bind(**arguments)
    return str(found), str(options)


def draw(generator):
    storage = torch.zeros(64, dtype=generator.choice([torch.float16, torch.float32, torch.int64]))
    integers = [0, 1, 2, 15, 16, 17, 32, -1, -16, 2**31 - 1, 2**31, 2**31 + 16, -(2**31), -(2**31) - 1, 2**62, 2**63]
    return {
        "a_ptr": storage[generator.choice([0, 1, 2, 4, 8]) :],
        "b_ptr": torch.zeros(8, dtype=generator.choice([torch.float32, torch.bfloat16])),
        "rows": generator.choice(integers),
        "step": generator.choice(integers),
        "scale": generator.choice([0.5, 1.0, 16.0, float("inf"), float("nan")]),
        "SIZE": generator.choice([16, 32]),
        "FLAG": generator.choice([True, False]),
        "num_warps": generator.choice([1, 4]),
    }


@pytest.mark.parametrize("options", [{}, {"do_not_specialize": ["rows"]}])
def test_equal_keys_mean_equal_code(options):
    generator = random.Random(0)
    kernel = kernel_of(**options)
    bind = launch._binder(kernel.params)
    seen = {}
    for _ in range(4000):
        arguments = draw(generator)
        key, values = bind(0, **arguments)
        assert seen.setdefault(key, specialization(kernel, arguments)) == specialization(kernel, arguments)
        assert values[0] == arguments["a_ptr"].data_ptr()
        assert values[2:4] == (arguments["rows"], arguments["step"])
    assert len(seen) > 500


def test_keys_distinguish_devices_and_types():
    bind = launch._binder(kernel_of().params)
    arguments = draw(random.Random(1)) | {"step": 1, "FLAG": True}
    keys = {bind(device, **arguments, **more)[0] for device in (0, 1) for more in ({}, {"num_stages": 2})}
    keys |= {bind(0, **arguments | {"step": step})[0] for step in (True, 1.0, 2, 16)}
    assert len(keys) == 8


@pytest.mark.parametrize(("version", "known"), [("3.2.0", False), ("3.3.1", True), ("3.9.0", True), ("4.0.0", False)])
def test_other_versions_of_triton_use_its_own_launch(monkeypatch, version, known):
    monkeypatch.setattr(triton, "__version__", version)
    assert launch._is_known_triton() is known


@pytest.mark.parametrize(("a", "b"), [(0, 3), (1, 3), (3, 3), (4, 3), (2**40 + 1, 2**20)])
def test_helpers_equal_those_of_triton(a, b):
    assert launch.cdiv(a, b) == triton.cdiv(a, b)
    assert launch.power_of_2(a + 1) == triton.next_power_of_2(a + 1)
    assert launch.power_of_2(a, 4, 64) == max(4, min(64, triton.next_power_of_2(max(a, 1))))


def jit_functions():
    """Functions of Triton by file and name: how they are decorated, and the names that they use."""
    for path in Path(pointgrad.ops.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                decorator = ast.unparse(node.decorator_list[0]).partition("(")[0]
                names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                if decorator in ("jit", "triton.jit"):
                    yield (path.parent.name, path.name, node.name), decorator, names


def test_all_launched_kernels_use_the_fast_launch():
    """Functions that no other one uses are launched."""
    found = list(jit_functions())
    used = {name for _, _, names in found for name in names}
    slow = [place for place, decorator, _ in found if decorator == "triton.jit" and place[-1] not in used]
    assert slow == []
    assert len([place for place, decorator, _ in found if decorator == "jit"]) > 50

"""Helpers for launching Triton kernels. Imported only by modules that import Triton."""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.runtime import driver

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def cdiv(a: int, b: int) -> int:
    """a / b rounded up. `triton.cdiv` takes several microseconds outside of kernels."""
    return -(-a // b)


def power_of_2(n: int, low: int = 1, high: int = 2**62) -> int:
    """The smallest power of two that is at least n, clamped to [low, high]."""
    return max(low, min(high, 1 << (n - 1).bit_length() if n > 1 else 1))


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`triton.jit` for kernels that are launched often: a repeated launch takes a third of the time.

    Arguments are passed by keyword. Parameters named `*_ptr` take tensors, all others numbers or compile-time
    constants. Functions that are only called by kernels need no more than `triton.jit`.
    """
    if function is None:
        return functools.partial(jit, **options)
    return triton.jit(function, **options) if INTERPRETED or not _is_known_triton() else Kernel(function, **options)


def _is_known_triton() -> bool:
    """Whether `CompiledKernel.run` has the arguments that `Kernel` passes."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return (3, 3) <= version < (3, 10) and torch.version.hip is None


class Kernel(triton.JITFunction):
    """A kernel that finds the compiled code for its arguments in fewer steps than Triton.

    Triton compiles a kernel for the dtypes of tensors, the alignment of their addresses, and properties of integers.
    Triton performs the first launch with each combination of these; further launches reuse the compiled code.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__(function, **options)
        self.compiled: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}
        self.bind: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]] | None = None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return functools.partial(self.launch, grid)

    def launch(self, grid: tuple[int, ...], **arguments: Any) -> Any:
        """Start a program for each element of the grid. Options of Triton, such as `num_warps`, are keywords too."""
        if self.bind is None:
            self.bind = _binder(self.params)
        device = torch.cuda.current_device()
        key, values = self.bind(device, **arguments)
        found = self.compiled.get(key)
        if found is None or _is_observed():
            compiled = self.run(grid=grid, warmup=False, **arguments)
            if hasattr(compiled, "result"):  # compiled in another thread
                compiled = compiled.result()
            self.compiled[key] = compiled.run, compiled.function, compiled.packed_metadata
            return
        run, function, metadata = found
        stream = driver.active.get_current_stream(device)
        y, z = grid[1] if len(grid) > 1 else 1, grid[2] if len(grid) > 2 else 1
        run(grid[0], y, z, stream, function, metadata, None, None, None, *values)


def _is_observed() -> bool:
    """Whether a profiler has hooks for launches, which Triton calls."""
    try:
        hooks = triton.knobs.runtime
    except AttributeError:  # before 3.4
        hooks = triton.compiler.CompiledKernel
    return bool(getattr(hooks.launch_enter_hook, "calls", hooks.launch_enter_hook)) or bool(
        getattr(hooks.launch_exit_hook, "calls", hooks.launch_exit_hook)
    )


def _binder(params: list[Any]) -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """A function of the arguments of a kernel that returns what its code depends on, and the values to pass.

    It is generated, because a loop over the parameters takes several times as long.
    """
    lines, key, values = [], ["device"], []
    for param in params:
        name = param.name
        if param.is_constexpr:
            key.append(name)
        elif name.endswith("_ptr"):
            # Addresses are passed as numbers, which takes less time than to read them from tensors in the launcher.
            lines.append(f"    {name}, dtype_of_{name} = {name}.data_ptr(), {name}.dtype")
            key += [f"dtype_of_{name}", f"{name} & 15"]
        else:
            # Triton distinguishes 1, multiples of 16, and integers of 32 and 64 bits.
            key += [f"{name}.__class__", f"-2147483648 <= {name} < 2147483648", f"{name} < 9223372036854775808"]
            if not param.do_not_specialize:
                key.append(f"2 if {name} == 1 else {name} % 16 == 0")
        values.append(name)
    names = ", ".join(values)
    source = f"def bind(device, *, {names}, **options):\n" + "\n".join(lines)
    source += f"\n    return ({', '.join(key)}, *options.items()), ({names},)"
    found: dict[str, Any] = {}
    exec(source, found)
    bind: Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]] = found["bind"]
    return bind


@functools.cache
def can_launch_cooperatively() -> bool:
    """Whether this version of Triton supports cooperative launches, whose programs all run at once (3.3 and later)."""
    if INTERPRETED:
        return False
    target = driver.active.get_current_target()
    options = triton.compiler.make_backend(target).parse_options({})
    return hasattr(options, "launch_cooperative_grid")


@functools.cache
def shared_memory(device: torch.device) -> int:
    """The bytes of shared memory that a program can use on a GPU."""
    if INTERPRETED:
        return 64 << 10
    return int(driver.active.utils.get_device_properties(device.index)["max_shared_mem"])


@functools.cache
def has_tf32(device: torch.device) -> bool:
    """Whether a GPU multiplies float32 matrices in TF32."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)

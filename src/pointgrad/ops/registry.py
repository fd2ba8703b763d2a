"""One place that turns an operator's pieces into a `torch.library` operator.

A room's `register.py` names the schema, what the output looks like (`fake`), and the backward. The
kernels are found by name in the room: `reference.py`, `cpu.py` and `kernels.py` (Triton) each hold a
function called like the operator. `kernels.py` is imported only when it is first needed, so a machine
without a GPU never imports Triton.
"""

import importlib
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import native

BACKENDS = ("reference", "cpu", "triton")
_MODULES = {"reference": "reference", "cpu": "cpu", "triton": "kernels"}

_library = torch.library.Library("pointgrad", "DEF")
_HAS_TRITON = importlib.util.find_spec("triton") is not None  # asked once: torch.compile cannot trace the question
_forced: str | None = None
_of_the_run: str | None = None  # what POINTGRAD_BACKEND says
_entered: list["backend"] = []
_lock = threading.Lock()
_warned: set[str] = set()


def operator(
    schema: str,
    *,
    room: str,
    fake: Callable[..., Any],
    kernels: tuple[str, ...],
    check: Callable[..., None] | None = None,
    save: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    autocast: str | None = None,
) -> Callable[..., Any]:
    """Defines `pointgrad::<name>` and returns how to call it.

    schema: torch.library schema without default values, `name(Tensor x, ...) -> Tensor`.
    room: the package that holds the backends, `__package__` of the caller.
    fake: the output's shape and dtype from the inputs', for compile and export.
    kernels: which fast backends the room has; where one is missing the reference runs instead.
    check: reads values and raises; called for CPU tensors before any backend.
    save, backward: as for `torch.library.register_autograd`, but both ask `ctx.needed` which inputs need a gradient.
        Without a backward the caller detaches.
    autocast: None leaves every dtype as it is; "widest" casts floating inputs to the widest among them.
    """
    name = schema.partition("(")[0]
    qualified = f"pointgrad::{name}"
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    op = getattr(torch.ops.pointgrad, name).default
    loaded: dict[str, Callable[..., Any]] = {}

    def run(backend: str, args: tuple[Any, ...]) -> Any:
        kernel = loaded.get(backend)
        if kernel is None:
            source = backend if backend in kernels else "reference"
            module = importlib.import_module(f"{room}.{_MODULES[source]}")
            kernel = getattr(module, name, None)
            if kernel is None:
                raise AttributeError(f"{module.__name__} has no function '{name}', which kernels= of {qualified} names")
            loaded[backend] = kernel
        return kernel(*args)

    def on_cpu(*args: Any) -> Any:
        if check is not None:
            check(*args)
        return run(_forced_for("cpu") or _default_on_cpu(), args)

    def on_cuda(*args: Any) -> Any:
        with torch.cuda.device(_device_of(args)):
            return run(_forced_for("cuda") or _default_on_cuda(), args)

    _library.impl(name, on_cpu, "CPU")
    _library.impl(name, on_cuda, "CUDA")
    _library.impl(name, lambda *args: run("reference", args), "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, fake, lib=_library)
    if backward is not None:

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.needed = ctx.needs_input_grad[: len(inputs)]
            ctx.needs_input_grad = _Whole(ctx.needs_input_grad)
            if save is not None:
                save(ctx, inputs, output)

        torch.library.register_autograd(qualified, backward, setup_context=setup, lib=_library)
    if autocast is not None:
        _register_autocast(name, op, autocast)

    def call(*args: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(qualified, args)
        return op(*args)

    return call


class _Whole(tuple[bool, ...]):
    """A tuple that stays whole when cut. While a backward runs, torch keeps ctx.needs_input_grad without its last item;
    another thread that goes through the same graph would cut off one more, and torch 2.15 counts the rest."""

    def __getitem__(self, item: Any) -> Any:
        return self if isinstance(item, slice) else super().__getitem__(item)


def _device_of(args: tuple[Any, ...]) -> torch.device:
    """Where a call runs, however the calling thread is set: Triton launches on the current device. The doors have
    checked that all tensors of a call are on one device."""
    return next(arg.device for arg in args if isinstance(arg, Tensor))


class backend:
    """Forces a backend: "reference", "cpu" (C++) or "triton".

    For debugging and tests. Use it as a context manager, or set `POINTGRAD_BACKEND` for a whole run.
    It holds for the whole process, not only for the calling thread, because autograd runs backward
    passes in threads of its own.

    >>> with pointgrad.backend("reference"):
    ...     index = pointgrad.farthest_point_sampling(points, 4)
    """

    def __init__(self, name: str) -> None:
        if name not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
        self.name = name

    def __enter__(self) -> None:
        global _forced
        with _lock:
            _entered.append(self)
            _forced = self.name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _forced
        with _lock:
            # Not always the last: another thread may have entered since, and stay longer.
            _entered.reverse()
            _entered.remove(self)
            _entered.reverse()
            _forced = _entered[-1].name if _entered else _of_the_run


def chosen(device: torch.device) -> str:
    """The backend that serves tensors of this device now."""
    if device.type == "cuda":
        return _forced or _default_on_cuda()
    return _forced or _default_on_cpu()


def _forced_for(device: str) -> str | None:
    if _forced == "cpu":
        if device != "cpu":
            raise ValueError("backend 'cpu' needs tensors on the CPU, got tensors on a GPU")
        if native.module is None:
            raise RuntimeError(f"backend 'cpu' needs pointgrad's C++ module, which is not there: {native.why_missing}")
    if _forced == "triton":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if device == "cpu" and not interpreted:
            raise ValueError(
                "backend 'triton' needs tensors on a GPU, or TRITON_INTERPRET=1 set before the start; "
                "got tensors on the CPU"
            )
    return _forced


def _default_on_cpu() -> str:
    if native.module is not None:
        return "cpu"
    _warn_once(
        f"pointgrad's C++ kernels are not there ({native.why_missing}), so its operators run in plain "
        "PyTorch, which is much slower. `pip install .` in the checkout builds them."
    )
    return "reference"


def _default_on_cuda() -> str:
    if _HAS_TRITON:
        return "triton"
    _warn_once(
        "Triton is not installed, so pointgrad's operators run in plain PyTorch, which is much slower. "
        "`pip install triton` brings the GPU kernels."
    )
    return "reference"


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _refuse_tangents(name: str, args: tuple[Any, ...]) -> None:
    """torch would drop a forward-mode tangent silently, and the derivative would come out as zero."""
    for arg in args:
        if isinstance(arg, Tensor) and forward_ad.unpack_dual(arg).tangent is not None:
            raise NotImplementedError(f"{name} has no forward-mode derivative; use reverse mode (torch.autograd.grad)")


def _register_autocast(name: str, op: torch._ops.OpOverload, rule: str) -> None:
    if rule != "widest":
        raise ValueError(f"autocast must be None or 'widest', got {rule!r}")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    keys |= torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

    def cast_to_widest(*args: Any) -> Any:
        floats = [arg.dtype for arg in args if isinstance(arg, Tensor) and arg.is_floating_point()]
        widest = floats[0]
        for dtype in floats[1:]:
            widest = torch.promote_types(widest, dtype)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*(_cast(arg, widest) for arg in args))

    for device in ("CPU", "CUDA"):
        _library.impl(name, cast_to_widest, f"Autocast{device}")


def _cast(arg: Any, dtype: torch.dtype) -> Any:
    return arg.to(dtype) if isinstance(arg, Tensor) and arg.is_floating_point() else arg


if "POINTGRAD_BACKEND" in os.environ:
    _forced = _of_the_run = backend(os.environ["POINTGRAD_BACKEND"]).name

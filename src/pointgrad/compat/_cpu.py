"""`python -m pointgrad.compat run --cpu`: programs that request CUDA run on the CPU.

A torch function mode replaces CUDA devices in the arguments of torch's functions; functions of `torch.cuda` that need a
GPU are replaced. Each kind of replacement is reported once on stderr. `torch.cuda.is_available()` returns False.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_TYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_RESULTS = {  # functions of torch.cuda and their results on the CPU
    "current_device": 0,
    "device_count": 1,
    "empty_cache": None,
    "get_device_capability": (0, 0),
    "get_device_name": "CPU",
    "init": None,
    "ipc_collect": None,
    "max_memory_allocated": 0,
    "max_memory_reserved": 0,
    "memory_allocated": 0,
    "memory_reserved": 0,
    "memory_summary": "",
    "reset_max_memory_allocated": None,
    "reset_peak_memory_stats": None,
    "set_device": None,
    "synchronize": None,
}
_reported: set[str] = set()
_TorchGenerator = torch.Generator


def redirect() -> None:
    """Redirect CUDA to the CPU in this process. Calling it twice has no further effect."""
    if isinstance(torch.cuda, _Cuda):
        return
    torch.cuda.__class__ = _Cuda
    for name, result in _RESULTS.items():
        setattr(torch.cuda, name, _constant(name, result))
    torch.cuda.Event = _Event  # type: ignore[assignment, misc]
    torch.cuda.Stream = _Stream  # type: ignore[assignment, misc]
    torch.cuda.device = torch.cuda.stream = _Context  # type: ignore[assignment, misc]
    torch.cuda.current_stream = torch.cuda.default_stream = _Stream  # type: ignore[assignment]
    torch.load = _on_cpu(torch.load)
    torch.set_default_tensor_type = _with_argument(torch.set_default_tensor_type, _cpu_type)
    torch.set_default_device = _with_argument(torch.set_default_device, _cpu_device)  # type: ignore[assignment]
    torch.Generator = _Generator  # type: ignore[misc]
    for name in ("mark", "range_pop", "range_push"):
        setattr(torch.cuda.nvtx, name, _constant(f"nvtx.{name}", None))
    _OnCpu().__enter__()
    _in_backward_and_threads()


class _OnCpu(TorchFunctionMode):
    """Replaces CUDA devices in arguments."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__" and func == _IS_CUDA:
            # Programs check it before they call their kernels; torch's own modules need the real value.
            caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
            if caller not in ("torch", "pointgrad"):
                _report("Tensor.is_cuda", "is True")
                return True
        elif name in ("cuda", "pin_memory") and func in (Tensor.cuda, Tensor.pin_memory):
            _report(f"Tensor.{name}()", "returns the tensor")
            return args[0]
        elif name == "to" and func is Tensor.to and any(map(_is_cuda, args[1:])):
            _report('Tensor.to("cuda")')
            args = tuple(_CPU if _is_cuda(value) else value for value in args)
        elif name == "type" and func is Tensor.type:
            args = tuple(_cpu_type(value) for value in args)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _cpu_device(kwargs["device"])}
        return func(*args, **kwargs)


class _Cuda(ModuleType):
    """The module torch.cuda, whose tensor types are those of the CPU."""


def _type_on_cpu(name: str) -> property:
    def get(module: ModuleType) -> Any:
        _report(f"torch.cuda.{name}Tensor", f"is torch.{name}Tensor")
        return getattr(torch, f"{name}Tensor")

    return property(get)


for _name in _TYPES:
    setattr(_Cuda, f"{_name}Tensor", _type_on_cpu(_name))


class _Event:
    """A point in time, as torch.cuda.Event."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        _report("torch.cuda.Event", "measures time on the CPU")
        self._time = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def elapsed_time(self, end_event: "_Event") -> float:
        return (end_event._time - self._time) * 1000

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass


class _Stream:
    """A stream whose work is always complete."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _report("torch.cuda.Stream", "does nothing")

    def query(self) -> bool:
        return True

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record()
        return event

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: _Event) -> None:
        pass

    def wait_stream(self, stream: "_Stream") -> None:
        pass


class _Context(contextlib.AbstractContextManager[None]):
    """The context managers torch.cuda.device and torch.cuda.stream."""

    def __init__(self, *args: Any) -> None:
        pass

    def __exit__(self, *args: Any) -> None:
        pass


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _TorchGenerator)


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    """torch.Generator, always on the CPU."""

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        return super().__new__(cls, _cpu_device(device))  # type: ignore[call-arg]


def _constant(name: str, result: Any) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        _report(f"torch.cuda.{name}()", "does nothing" if result is None else f"returns {result!r}")
        return result

    return function


def _on_cpu(load: Callable[..., Any]) -> Callable[..., Any]:
    """torch.load, which loads all tensors on the CPU."""

    def function(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location not in (None, "cpu", _CPU):
            _report("map_location of torch.load")
        return load(f, _CPU, *args, **kwargs)

    return function


def _with_argument(function: Callable[[Any], None], convert: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda value: function(convert(value))


def _in_backward_and_threads() -> None:
    """Enter the mode in backward passes, which run while `Tensor.backward` has left it, and in new threads."""

    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with _OnCpu():
                return function(*args, **kwargs)

        return run

    run_backward = inside(torch.autograd.graph._engine_run_backward)
    torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = run_backward
    threading.Thread._bootstrap_inner = inside(threading.Thread._bootstrap_inner)  # type: ignore[attr-defined]


def _is_cuda(device: Any) -> bool:
    if isinstance(device, str):
        return device.startswith("cuda")
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, int) and not isinstance(device, bool)  # the number of a GPU


def _cpu_device(device: Any) -> Any:
    if not _is_cuda(device):
        return device
    _report('device="cuda"')
    return _CPU


def _cpu_type(value: Any) -> Any:
    """The name of a tensor type without `cuda`."""
    if isinstance(value, str) and value.startswith("torch.cuda."):
        _report(value, f"is {value.replace('cuda.', '')}")
        return value.replace("cuda.", "")
    return value


def _report(kind: str, what: str = "is redirected to the CPU") -> None:
    if kind not in _reported:
        _reported.add(kind)
        print(f"pointgrad.compat: {kind} {what}", file=sys.stderr)


_CPU = torch.device("cpu")
_IS_CUDA = Tensor.is_cuda.__get__  # type: ignore[attr-defined]

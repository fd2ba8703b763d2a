"""Registration of operators with `torch.library`, and the choice of a backend.

A family's `register.py` calls `operator` once for each function of its `reference.py`. The kernels are found by name:
`cpu.py` (C++) and `kernels.py` (Triton) each hold a function with the reference's name and parameters. `kernels.py` is
imported when it is first needed, so a machine without a GPU never imports Triton.
"""

import importlib
import importlib.util
import inspect
import os
import threading
import warnings
from collections import namedtuple
from collections.abc import Callable
from operator import itemgetter
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import checks, native

BACKENDS = ("reference", "cpu", "triton")
_MODULES = {"reference": "reference", "cpu": "cpu", "triton": "kernels"}


class _Library(torch.library.Library):
    """A library whose operators skip torch's generic autograd code when no argument needs a gradient.

    The result is the same, but a call takes about 4 µs less.
    """

    def impl(self, op_name: Any, fn: Callable[..., Any], dispatch_key: str = "", **options: Any) -> Any:
        if dispatch_key == "Autograd":
            fn = _only_if_needed(getattr(torch.ops.pointgrad, op_name).default, fn)
        return super().impl(op_name, fn, dispatch_key, **options)


def _only_if_needed(op: torch._ops.OpOverload, record: Callable[..., Any]) -> Callable[..., Any]:
    """Call `record`, the autograd kernel that torch generates, only if an argument needs a gradient."""
    below, redispatch = torch._C._after_autograd_keyset, op.redispatch

    def autograd(keyset: torch._C.DispatchKeySet, *args: Any) -> Any:
        if torch.is_grad_enabled():
            for arg in args:
                if isinstance(arg, Tensor) and arg.requires_grad:
                    return record(keyset, *args)
        with torch._C._AutoDispatchBelowAutograd():
            return redispatch(keyset & below, *args)

    return autograd


_library = _Library("pointgrad", "DEF")
_HAS_TRITON = importlib.util.find_spec("triton") is not None  # evaluated once: torch.compile cannot trace find_spec
_forced: str | None = None
_from_environment: str | None = None  # POINTGRAD_BACKEND
_entered: list["backend"] = []
_lock = threading.Lock()
_warned: set[str] = set()


class Registered(NamedTuple):
    reference: Callable[..., Any]
    kernels: tuple[str, ...]


registered: dict[str, Registered] = {}


def operator(
    reference: Callable[..., Any],
    *,
    contract: str,
    fits: Callable[..., bool],
    fake: Callable[..., Any],
    check: Callable[..., None] | None = None,
    save: Callable[..., None] | None = None,
    backward: Callable[..., dict[str, Tensor | None]] | None = None,
    kernels: tuple[str, ...] = ("cpu", "triton"),
    autocast: str | None = None,
) -> Callable[..., Any]:
    """Register `pointgrad::<name>`, where the name and the schema are those of the reference.

    `fits`, `fake` and `check` declare only the arguments they use; they are passed by name.

    Args:
        reference: The definition in plain PyTorch, with type annotations and without default values. It runs wherever
            no kernel is available.
        contract: The arguments that the operator accepts, for the message of an error.
        fits: Whether ranks, sizes, dtypes and numbers are those that the kernels rely on. Reads metadata only. Called
            before any backend, because compiled and traced programs call the operator without the public function.
        fake: Returns outputs of the right shape and dtype without computing them, for compile and export.
        check: Reads values and raises. Called for CPU tensors before any backend.
        save: `save(ctx, inputs, output)` stores what the backward needs. The fields of `inputs` are the arguments.
        backward: `backward(ctx, *grads)` returns gradients by argument name; the others get None. Without a backward
            the public function detaches its inputs. Both `save` and `backward` read `ctx.needed`, whose fields state
            which arguments need a gradient.
        kernels: The fast backends that the family implements. Where one is missing, the reference runs.
        autocast: None keeps every dtype; "widest" casts floating inputs to the widest dtype among them; "lower" casts
            them to the autocast dtype, except float64, as torch does for matrix products.

    Returns:
        The operator as a function of positional arguments.
    """
    name, family = reference.__name__, reference.__module__.rpartition(".")[0]
    qualified = f"pointgrad::{name}"
    parameters = tuple(inspect.signature(reference).parameters)
    schema = torch.library.infer_schema(reference, mutates_args=())
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    registered[name] = Registered(reference, kernels)
    op = getattr(torch.ops.pointgrad, name).default
    loaded: dict[str, Callable[..., Any]] = {"reference": reference}
    arguments_fit = _by_name(fits, parameters)
    check_arguments = None if check is None else _by_name(check, parameters)

    def run(backend: str, args: tuple[Any, ...]) -> Any:
        kernel = loaded.get(backend)
        if kernel is None:
            kernel = reference if backend not in kernels else _load(family, backend, name)
            loaded[backend] = kernel
        return kernel(*args)

    def on_cpu(*args: Any) -> Any:
        # Tensors on other devices would have been dispatched to the other device.
        if not arguments_fit(*args):
            checks.arguments(qualified, contract, parameters, args)
        if check_arguments is not None:
            check_arguments(*args)
        return run(_forced_for("cpu") or _default_on_cpu(), args)

    def on_cuda(*args: Any) -> Any:
        device = _common_device(args)
        if device is None or not arguments_fit(*args):
            checks.arguments(qualified, contract, parameters, args)
        backend = _forced_for("cuda") or _default_on_cuda()
        if device.index == torch.cuda.current_device():
            return run(backend, args)
        with torch.cuda.device(device):  # where Triton launches
            return run(backend, args)

    def elsewhere(*args: Any) -> Any:
        if _common_device(args) is None or not arguments_fit(*args):
            checks.arguments(qualified, contract, parameters, args)
        return reference(*args)

    _library.impl(name, on_cpu, "CPU")
    _library.impl(name, on_cuda, "CUDA")
    _library.impl(name, elsewhere, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, _by_name(fake, parameters), lib=_library)
    if backward is not None:
        _register_autograd(qualified, parameters, save, backward)
    if autocast is not None:
        _register_autocast(name, op, autocast)

    def call(*args: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(qualified, args)
        return op(*args)

    return call


def _load(family: str, backend: str, name: str) -> Callable[..., Any]:
    module = importlib.import_module(f"{family}.{_MODULES[backend]}")
    kernel = getattr(module, name, None)
    if kernel is None:
        raise AttributeError(f"{module.__name__} must define '{name}', which pointgrad::{name} lists in kernels=")
    return kernel


def _by_name(function: Callable[..., Any], parameters: tuple[str, ...]) -> Callable[..., Any]:
    """Call a function with those of an operator's arguments that it declares."""
    declared = tuple(inspect.signature(function).parameters)
    unknown = [name for name in declared if name not in parameters]
    if unknown:
        raise TypeError(f"{function.__qualname__} declares {unknown[0]}, which is not one of {', '.join(parameters)}")
    if declared == parameters:
        return function
    places = [parameters.index(name) for name in declared]
    if len(places) == 1:
        (place,) = places
        return lambda *args: function(args[place])
    pick = itemgetter(*places)
    return lambda *args: function(*pick(args))


def _register_autograd(
    qualified: str,
    parameters: tuple[str, ...],
    save: Callable[..., None] | None,
    backward: Callable[..., dict[str, Tensor | None]],
) -> None:
    Inputs = namedtuple("Inputs", parameters)  # type: ignore[misc]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.needed = Inputs(*ctx.needs_input_grad[: len(parameters)])
        ctx.needs_input_grad = _Whole(ctx.needs_input_grad)
        if save is not None:
            save(ctx, Inputs(*inputs), output)

    def all_gradients(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        found = backward(ctx, *grads)
        unknown = found.keys() - set(parameters)
        if unknown:
            raise TypeError(f"the backward of {qualified} returns a gradient for an unknown argument, {unknown.pop()}")
        return tuple(found.get(name) for name in parameters)

    torch.library.register_autograd(qualified, all_gradients, setup_context=setup, lib=_library)


class _Whole(tuple[bool, ...]):
    """A tuple whose slices are the tuple itself.

    While a backward runs, torch drops the last item of `ctx.needs_input_grad`. A second thread on the same graph would
    drop another one, and torch 2.15 checks the length.
    """

    def __getitem__(self, item: Any) -> Any:
        return self if isinstance(item, slice) else super().__getitem__(item)


def _common_device(args: tuple[Any, ...]) -> torch.device | None:
    """The device of all tensors of a call; None if there are several."""
    common = None
    for arg in args:
        if isinstance(arg, Tensor):
            device = arg.device
            if common is None:
                common = device
            elif common != device:
                return None
    return common


class backend:
    """Context manager that forces a backend, for debugging and tests.

    The environment variable `POINTGRAD_BACKEND` does the same for a whole program. The backend is forced in all threads
    of the process, because autograd runs backward passes in threads of its own.

    Args:
        name: "reference" (plain PyTorch), "cpu" (C++) or "triton".

    Example:
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
            # The last entry is not always ours: a second thread may have entered since.
            _entered.reverse()
            _entered.remove(self)
            _entered.reverse()
            _forced = _entered[-1].name if _entered else _from_environment


def chosen(device: torch.device) -> str:
    """The backend that runs operators on tensors of this device."""
    if device.type == "cuda":
        return _forced or _default_on_cuda()
    return _forced or _default_on_cpu()


def _forced_for(device: str) -> str | None:
    if _forced == "cpu":
        if device != "cpu":
            raise ValueError("backend 'cpu' needs tensors on the CPU, got tensors on a GPU")
        if native.module is None:
            raise RuntimeError(
                f"backend 'cpu' needs pointgrad's C++ module, which is not available: {native.why_missing}"
            )
    if _forced == "triton":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if device == "cpu" and not interpreted:
            raise ValueError(
                "backend 'triton' needs tensors on a GPU, or TRITON_INTERPRET=1 set before Python starts; "
                "got tensors on the CPU"
            )
    return _forced


def _default_on_cpu() -> str:
    if native.module is not None:
        return "cpu"
    _warn_once(
        f"pointgrad's C++ kernels are not available ({native.why_missing}), so its operators run in plain "
        "PyTorch, which is much slower. `pip install .` in the checkout builds them."
    )
    return "reference"


def _default_on_cuda() -> str:
    if _HAS_TRITON:
        return "triton"
    _warn_once(
        "Triton is not installed, so pointgrad's operators run in plain PyTorch, which is much slower. "
        "`pip install triton` enables the GPU kernels."
    )
    return "reference"


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _refuse_tangents(name: str, args: tuple[Any, ...]) -> None:
    """Raise where torch would silently drop a forward-mode tangent and return a derivative of zero."""
    for arg in args:
        if isinstance(arg, Tensor) and forward_ad.unpack_dual(arg).tangent is not None:
            raise NotImplementedError(f"{name} has no forward-mode derivative; use reverse mode (torch.autograd.grad)")


def _register_autocast(name: str, op: torch._ops.OpOverload, rule: str) -> None:
    if rule not in ("widest", "lower"):
        raise ValueError(f"autocast must be None, 'widest' or 'lower', got {rule!r}")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    keys |= torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

    def cast(*args: Any) -> Any:
        floats = [arg for arg in args if isinstance(arg, Tensor) and arg.is_floating_point()]
        common = floats[0].dtype
        for value in floats[1:]:
            common = torch.promote_types(common, value.dtype)
        if rule == "lower" and common != torch.float64:
            common = torch.get_autocast_dtype(floats[0].device.type)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(*(_cast(arg, common) for arg in args))

    for device in ("CPU", "CUDA"):
        _library.impl(name, cast, f"Autocast{device}")


def _cast(arg: Any, dtype: torch.dtype) -> Any:
    return arg.to(dtype) if isinstance(arg, Tensor) and arg.is_floating_point() else arg


if "POINTGRAD_BACKEND" in os.environ:
    _forced = _from_environment = backend(os.environ["POINTGRAD_BACKEND"]).name

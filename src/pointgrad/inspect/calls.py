"""Trace of a call: the modules, functions and operators that it runs, and the backward of each operator.

torch decomposes composite operators in C++, before they reach autograd and Python dispatch modes. The recorder
therefore excludes autograd's dispatch keys, so that each operator reaches it undecomposed. It then decomposes composite
operators itself, and runs all others with autograd enabled.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from .names import GENERATED, is_custom, shape_of, short_dtype
from .saved import tensors_in

_Key = torch._C.DispatchKey
# The code object of autograd.Function.apply; None from torch 2.15 on, where it is not a Python function. The recorder
# then looks for the frames of forward functions, and misses a Function whose forward runs no operator.
_APPLY: CodeType | None = getattr(
    getattr(vars(torch.autograd.Function).get("apply"), "__func__", None), "__code__", None
)
_AUTOGRAD = (_Key.ADInplaceOrView, _Key.AutogradFunctionality, _Key.AutogradOther, _Key.AutogradNestedTensor)


@dataclass(frozen=True)
class Call:
    """One line of a trace.

    Attributes:
        level: Nesting depth.
        kind: "module", "function", "operator" or "autograd.Function".
        name: Name of the module, function or operator.
        result: Shapes and dtypes of the returned tensors.
        backward: "own", "composed", "custom", "none" or "missing"; empty for modules and functions.
        grad_fn: The node that autograd recorded, or empty.
        why: The parts of a composed operator, or why no node was recorded.
    """

    level: int
    kind: str
    name: str
    result: str
    backward: str
    grad_fn: str
    why: str


class Calls(list[Call]):
    """A trace returned by `calls`, outermost calls first. `print` shows a table."""

    @property
    def operators(self) -> list[Call]:
        """The operators that run, without modules, functions and composed operators."""
        return [call for call in self if call.kind == "operator" and call.backward != "composed"]

    def __str__(self) -> str:
        names = [f"{'  ' * call.level}{call.name}" for call in self]
        head = ("call", "result", "backward", "")
        rows = [head] + [
            (name, call.result, call.backward, "  ".join(part for part in (_short(call.grad_fn), call.why) if part))
            for name, call in zip(names, self, strict=True)
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join("  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in rows)


def calls(fn: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Calls:
    """Run `fn(*inputs, **kwargs)` and list the modules, torch functions (outermost only) and operators that it runs.

    The backward of an operator is one of:

    - `own`: torch has a derivative formula for it.
    - `composed`: it is composed of other operators, which have a backward.
    - `custom`: it is registered with `torch.library`, or is an `autograd.Function`.
    - `none`: there is nothing to differentiate.
    - `missing`: torch has no derivative for it, and backward raises.

    Args:
        fn: The function to run.
        *inputs: Its positional arguments.
        **kwargs: Its keyword arguments.

    Returns:
        One entry per call, with the recorded `grad_fn` or the reason why there is none.

    Raises:
        TypeError: If `fn` is not callable.

    Example:
        >>> print(calls(torch.softmax, torch.rand(2, 3, requires_grad=True), -1))
        call                 result          backward
        torch.softmax        (2, 3) float32
          aten::softmax.int  (2, 3) float32  composed  of aten::_softmax
            aten::_softmax   (2, 3) float32  own       SoftmaxBackward0
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__qualname__}")
    recorder = _Recorder(fn)
    with recorder.recording():
        fn(*inputs, **kwargs)
    recorder.close_functions(0)
    return Calls(_flat(recorder.root.parts, 0))


@dataclass(eq=False)
class _Entry:
    kind: str
    name: str
    result: str = ""
    backward: str = ""
    grad_fn: str = ""
    why: str = ""
    parts: list["_Entry"] = field(default_factory=list)


@dataclass
class _Running:
    """An autograd.Function whose forward is running."""

    frame: FrameType
    cls: type
    entry: _Entry
    needs_grad: bool
    made: list[Tensor] = field(default_factory=list)


class _Recorder(TorchDispatchMode):
    """Intercepts every operator before autograd."""

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.root = _Entry("", "")
        self.open = [self.root]
        root = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
        named = root.named_modules() if isinstance(root, torch.nn.Module) else ()
        self.names = {id(module): name for name, module in named}
        self.functions: list[_Running] = []
        self.forwards: dict[CodeType, type | None] = {}  # cache: the Function whose forward has this code

    @contextmanager
    def recording(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(modules.register_module_forward_pre_hook(self._enter_module).remove)
            stack.callback(modules.register_module_forward_hook(self._leave_module).remove)
            stack.enter_context(_dispatching(autograd=False))
            stack.enter_context(_Functions(self))
            stack.enter_context(self)
            yield

    @contextmanager
    def within(self, entry: _Entry) -> Iterator[_Entry]:
        self.begin(entry)
        yield entry
        self.end(entry)

    def begin(self, entry: _Entry) -> None:
        self._update_functions()
        self.open[-1].parts.append(entry)
        self.open.append(entry)

    def end(self, entry: _Entry) -> None:
        self._update_functions()
        while self.open.pop() is not entry:
            pass

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        name, kind = self.names.get(id(module), ""), type(module).__name__
        self.begin(_Entry("module", f"{name} ({kind})" if name else kind))

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        entry = next(entry for entry in reversed(self.open) if entry.kind == "module")
        entry.result = _shapes(output)
        self.end(entry)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = list(tensors_in([args, kwargs]))
        with self.within(_Entry("operator", func.name())) as entry:
            if _is_composed(func, inputs):
                entry.backward = "composed"
                with self, _dispatching(autograd=False):
                    # Not func.decompose, which prefers Python decompositions.
                    output = func._op_dk(_Key.CompositeImplicitAutograd, *args, **kwargs)
                parts = dict.fromkeys(part.name for part in entry.parts)
                nothing = "of no operators: returns " + ("its input" if _shapes(output) else "no tensor")
                entry.why = f"of {', '.join(parts)}" if parts else nothing
            else:
                # Before it runs, since it may modify its inputs in place.
                needs, earlier = any(t.requires_grad for t in inputs), [t.grad_fn for t in inputs]
                with _dispatching(autograd=True):
                    output = func(*args, **kwargs)
                results = list(tensors_in(output))
                nodes = [t.grad_fn for t in results if not any(t.grad_fn is node for node in earlier)]
                node = next((node for node in nodes if node is not None), None)
                self._classify(entry, func, inputs, results, needs, node)
        entry.result = _shapes(output)
        return output

    def _classify(
        self, entry: _Entry, func: Any, inputs: list[Tensor], results: list[Tensor], needs: bool, node: Any
    ) -> None:
        """Determine the backward of an operator that ran, and why no node was recorded if there is none."""
        for function in self.functions:
            function.made += results
        custom = func.namespace != "aten"
        if node is not None:
            base = results[0]._base if func._schema.is_mutable else None
            if base is not None and base.grad_fn is not None:
                node, entry.why = base.grad_fn, "in-place on a view: recorded on the base tensor"
            entry.grad_fn = node.name()
            missing = entry.grad_fn.endswith("NotImplemented")
            entry.backward = "missing" if missing else "custom" if custom or is_custom(node) else "own"
            if missing:
                entry.why = "not implemented in torch: backward raises"
            return
        entry.backward, entry.why = "none", _why_not_differentiable(func, inputs, results)
        if entry.why:
            return
        entry.backward = "custom" if custom else "own"
        if custom and not _has_autograd(func):
            entry.backward, entry.why = "none", "registered without a backward"
        elif self.functions:
            entry.why = f"not recorded: inside {self.functions[-1].entry.name}, which has its own backward"
        elif not torch.is_grad_enabled():
            mode = "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
            entry.why = f"not recorded: under torch.{mode}()"
        elif not needs:
            entry.why = "not recorded: no input requires grad"
        else:
            entry.backward, entry.why = "none", "torch declares it not differentiable"

    def _update_functions(self) -> None:
        """Find running autograd.Functions, which bypass the dispatcher, on the Python stack."""
        frames = self._function_frames()
        same = 0
        while same < min(len(frames), len(self.functions)) and frames[same][0] is self.functions[same].frame:
            same += 1
        self.close_functions(same)
        for frame, cls in frames[same:]:
            entry = _Entry("autograd.Function", cls.__name__, backward="custom")
            self.open[-1].parts.append(entry)
            self.open.append(entry)
            parameters = inspect.getargs(frame.f_code)
            names = (*parameters.args, *filter(None, [parameters.varargs]))
            given = tensors_in([frame.f_locals.get(name) for name in names])  # forward may have deleted one
            self.functions.append(_Running(frame, cls, entry, any(tensor.requires_grad for tensor in given)))

    def _function_frames(self) -> list[tuple[FrameType, type]]:
        """The running autograd.Functions, outermost first, without those of registered operators."""
        found: list[tuple[FrameType, type]] = []
        known: dict[CodeType, type] = {}
        for frame in _stack():  # not a list: it would contain this frame, a cycle that keeps every result alive
            code = frame.f_code
            if code is _APPLY:
                found.append((frame, frame.f_locals["cls"]))
            elif _APPLY is None:
                if code not in self.forwards:
                    known = known or _forwards()
                    self.forwards[code] = known.get(code)
                if cls := self.forwards[code]:
                    found += _applied(frame, cls)
        return [(frame, cls) for frame, cls in found[::-1] if not cls.__name__.startswith(GENERATED)]

    def close_functions(self, keep: int) -> None:
        while len(self.functions) > keep:
            function = self.functions.pop()
            entry, made = function.entry, function.made
            while self.open.pop() is not entry:
                pass
            own = [tensor for tensor in made if getattr(tensor.grad_fn, "_forward_cls", None) is function.cls]
            entry.result = _shapes(own or made[-1:])
            if own and own[0].grad_fn is not None:
                entry.grad_fn = own[0].grad_fn.name()
            elif not function.needs_grad:
                entry.why = "not recorded: no input requires grad"


class _Functions(TorchFunctionMode):
    """Intercepts torch functions and tensor methods, outermost only."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return func(*args, **kwargs)
        with self.recorder.within(_Entry("function", _function_name(func))) as entry:
            output = func(*args, **kwargs)
            entry.result = _shapes(output)
        if not entry.parts:  # it ran no operator, as x.dim()
            self.recorder.open[-1].parts.remove(entry)
        return output


@contextmanager
def _dispatching(autograd: bool) -> Iterator[None]:
    """Enable or bypass autograd's kernels."""
    exclude = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        exclude = exclude.remove(key) if autograd else exclude.add(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), exclude):
        yield


def _stack() -> Iterator[FrameType]:
    """The frames of the caller, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _forwards() -> dict[CodeType, type]:
    """The autograd.Function for each forward code object."""
    found: dict[CodeType, type] = {}
    classes: list[Any] = torch.autograd.Function.__subclasses__()
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        forward = inspect.unwrap(cls.forward)
        if hasattr(forward, "__code__"):
            found[forward.__code__] = cls
    found.pop(torch.autograd.Function.forward.__code__, None)  # inherited by classes without a forward
    return found


def _applied(frame: FrameType, cls: Any) -> list[tuple[FrameType, type]]:
    """The frame of a forward with the applied class, which is taken from ctx, since classes may share a forward.

    Empty if the forward is called as a plain function, for instance by another forward.
    """
    parameters = inspect.getargs(frame.f_code).args
    context = frame.f_locals.get(parameters[0]) if parameters else None
    if isinstance(context, torch.autograd.function.FunctionCtx):
        cls = context._forward_cls  # type: ignore[attr-defined]
        return [(frame, cls)] if frame.f_code is inspect.unwrap(cls.forward).__code__ else []
    # With setup_context, forward has no ctx.
    return [(frame, cls)] if cls.setup_context is not torch.autograd.Function.setup_context else []


def _is_composed(func: Any, inputs: list[Tensor]) -> bool:
    return _resolved(func, inputs) == _Key.CompositeImplicitAutograd


def _has_autograd(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "Autograd")


def _resolved(func: Any, inputs: list[Tensor]) -> Any:
    """The dispatch key of the kernel that autograd's dispatch key resolves to."""
    device = inputs[0].device.type if inputs else "cpu"
    names = {"cpu": "CPU", "meta": "Meta", "privateuseone": "PrivateUse1"}
    nested = bool(inputs) and inputs[0].is_nested
    backend = "NestedTensor" if nested else names.get(device, device.upper())
    key = getattr(_Key, f"Autograd{backend}", _Key.AutogradOther)
    try:
        return torch._ops.resolve_key(func, key)
    except NotImplementedError:  # no kernel: autograd falls through
        return None


def _why_not_differentiable(func: Any, inputs: list[Tensor], results: list[Tensor]) -> str:
    """The reason why an operator never has a backward; empty if it may have one."""
    name = func._schema.name.rpartition("::")[2]
    if not results:
        return "returns no tensor"
    if not any(result.is_floating_point() or result.is_complex() for result in results):
        dtypes = ", ".join(dict.fromkeys(short_dtype(result.dtype) for result in results))
        return f"returns {dtypes}: not differentiable"
    if name in ("detach", "detach_"):
        return "stops the gradient"
    if not inputs:
        return "has no tensor inputs"
    if name.endswith("_like") or name.startswith("new_"):
        return "uses only the shape of its input"
    return ""


def _short(grad_fn: str) -> str:
    return "registered with torch.library" if grad_fn.startswith(GENERATED) else grad_fn


def _function_name(func: Any) -> str:
    return resolve_name(func) or getattr(func, "__qualname__", None) or type(func).__name__


def _shapes(output: Any) -> str:
    return ", ".join(f"{shape_of(tensor)} {short_dtype(tensor.dtype)}" for tensor in tensors_in(output))


def _flat(entries: list[_Entry], level: int) -> Iterator[Call]:
    for entry in entries:
        yield Call(level, entry.kind, entry.name, entry.result, entry.backward, entry.grad_fn, entry.why)
        yield from _flat(entry.parts, level + 1)

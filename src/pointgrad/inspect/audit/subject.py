"""The function under audit: making its inputs, calling and differentiating it, and comparing results."""

import functools
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from pointgrad.errors import one_line

from .modules import MakeInputs, as_function, same_signature, with_parameters

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
LIBRARY_PATHS = (  # code that is never reported as the location of an error
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[1]),
    *(str(Path(__file__).parents[2] / package) for package in ("bench", "cli")),
)
NOT_RUNNING = "the function does not run, see `runs`"


class Outcome(Exception):
    """The result of a check, raised with a message."""


class Passed(Outcome):
    """The check passed; a check without a message passes by returning."""


class Failed(Outcome):
    pass


class Warned(Outcome):
    """The behavior is allowed, but may be unintended."""


class Skipped(Outcome):
    """The check does not apply, or the function rejects the input with a clear error."""


class InputsError(ValueError):
    """`make_inputs` raised an error or returned no tensors."""


@dataclass
class Run:
    """One forward and backward pass."""

    outputs: list[Any]  # the pytree leaves of the result
    live: list[Tensor]  # the outputs that require grad
    grads: list[Tensor | None]  # one per differentiable input

    @property
    def tensors(self) -> list[Tensor]:
        """All outputs and gradients that are tensors, detached."""
        values = [*self.outputs, *self.grads]
        return [value.detach() for value in values if isinstance(value, Tensor)]


@dataclass
class Subject:
    """The function under audit. Inputs and results are lists of pytree leaves."""

    fn: Callable[..., Any]
    make_inputs: MakeInputs
    reference: Callable[..., Any] | None = None
    device: str = "cpu"
    seeded: bool = False
    budget: float = 1.0  # seconds for each check that repeats calls
    isolated: bool = False  # this process exists for the audit alone and may crash
    progress: Callable[[str], None] = lambda what: None  # called before each step that may crash the process
    cache: dict[str, Any] = field(default_factory=dict)
    checkpoints: set[str] = field(default_factory=set)  # kinds of `torch.utils.checkpoint` that a module uses

    def __post_init__(self) -> None:
        self.given = self.fn, self.make_inputs, self.reference  # as passed by the user
        self._names = input_names(self.fn)
        self._made: dict[torch.dtype, list[Any]] = {}
        self.parameters = 0  # number of leading inputs that are parameters of a module; their layout and size is fixed
        if isinstance(self.fn, nn.Module):
            parameters = dict(self.fn.named_parameters())
            self.make_inputs = with_parameters(self.make_inputs, list(parameters.values()))
            self._names = [*parameters, *self._names]
            self.parameters = len(parameters)
            self.reference = same_signature(self.reference, list(parameters))
            self.fn = as_function(self.fn, self.checkpoints.add)

    # Inputs

    def inputs(self, dtype: torch.dtype) -> list[Any]:
        """The inputs in a dtype: the same values at every call, in new memory."""
        if dtype not in self._made:
            self._made[dtype] = self._make(dtype)
        return [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in self._made[dtype]]

    def _make(self, dtype: torch.dtype) -> list[Any]:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            try:
                made = self.make_inputs(dtype, self.device)
            except Exception as error:
                message = f"make_inputs({dtype}, {self.device!r}) failed: {describe_error(error)}"
                raise InputsError(message) from error
        made = made if isinstance(made, tuple) else tuple(made) if isinstance(made, list) else (made,)
        leaves, spec = tree_flatten(made)
        floats = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            raise InputsError(f"make_inputs must return at least one tensor, got {_kinds(made)}")
        if floats and not any(leaves[i].dtype == dtype for i in floats):  # make_inputs ignores its dtype
            leaves = [leaf.to(dtype) if _is_float(leaf) and not leaf.is_complex() else leaf for leaf in leaves]
        chosen = [i for i in floats if leaves[i].requires_grad] or floats
        self.cache.setdefault("spec", spec)
        self.cache.setdefault("differentiable", chosen)
        arguments = [argument for argument, each in enumerate(made) for _ in tree_flatten(each)[0]]
        self.cache.setdefault("arguments", arguments)  # the argument that each leaf belongs to
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not any(leaf.device.type == torch.device(self.device).type for leaf in tensors):  # it ignores its device
            leaves = [leaf.to(self.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        # Clone: the tensors may be the user's own, or share memory.
        return [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """The most precise dtype that the function accepts."""
        refused = None
        for dtype in DTYPES:
            leaves = self.inputs(dtype)
            try:
                self.call(leaves)
            except Exception as error:
                refused = refused or error
            else:
                return dtype
        assert refused is not None
        raise refused

    @functools.cached_property
    def differentiable(self) -> list[int]:
        """Indices of the inputs with `requires_grad`, or of all floating-point inputs if there are none."""
        self.inputs(torch.float64)
        return self.cache["differentiable"]

    @functools.cached_property
    def scale(self) -> float:
        """The largest magnitude among the inputs."""
        return max(map(largest, self.inputs(self.dtype)), default=0.0)

    def name(self, position: int) -> str:
        """The name of an input in messages."""
        argument = self.cache["arguments"][position]
        return f"`{self._names[argument]}`" if argument < len(self._names) else f"input {argument}"

    # Calls

    def call(self, leaves: Sequence[Any], fn: Callable[..., Any] | None = None) -> list[Any]:
        """Call the function, or `fn` instead."""
        if self.seeded:
            torch.manual_seed(0)
        try:
            result = (fn or self.fn)(*tree_unflatten(list(leaves), self.cache["spec"]))
        except SystemExit as error:
            raise RuntimeError(f"the function called sys.exit({error.code})") from error
        return tree_flatten(result)[0]

    def run(
        self,
        leaves: Sequence[Any],
        upstream: Sequence[Tensor] | None = None,
        fn: Callable[..., Any] | None = None,
        only: Sequence[int] | None = None,
        **options: Any,
    ) -> Run:
        """Run forward and backward.

        Args:
            leaves: The inputs.
            upstream: One upstream gradient per live output; random by default.
            fn: Called instead of the function under audit.
            only: Indices of the inputs to differentiate; all differentiable inputs by default.
            **options: Passed to `torch.autograd.grad`.
        """
        only = self.differentiable if only is None else only
        sources = {i: leaves[i].detach().requires_grad_() for i in only}
        outputs = self.call([sources.get(i, leaf) for i, leaf in enumerate(leaves)], fn)
        live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
        if not live or not sources:
            return Run(outputs, [], [None] * len(only))
        given = upstream_like(live) if upstream is None else list(upstream)
        return Run(outputs, live, differentiate(live, list(sources.values()), given, **options))

    @functools.cached_property
    def base(self) -> Run:
        """The results that other runs are compared with, copied so that later calls cannot change them."""
        try:
            return snapshot(self.run(self.inputs(self.dtype)))
        except Exception as error:
            raise Skipped(NOT_RUNNING) from error

    @functools.cached_property
    def precise(self) -> bool:
        """Whether float64 inputs are computed in float64, which finite differences with small steps need."""
        given, outputs = (
            [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
            for values in (self.inputs(self.dtype), self.base.outputs)
        )

        def rounded(values: list[Tensor]) -> bool:
            return all(bool(((value == value.float()) | ~value.isfinite()).all()) for value in values)

        single = bool(outputs) and rounded(outputs) and not rounded(given)
        return self.dtype == torch.float64 and not single

    @functools.cached_property
    def tolerance(self) -> float:
        """Relative tolerance for the same computation in a different order."""
        return rounding(torch.float32 if self.dtype == torch.float64 and not self.precise else self.dtype)

    def need_gradients(self) -> Run:
        """The base run; raises Skipped if there are no gradients to check."""
        if not self.differentiable:
            raise Skipped("no floating-point inputs")
        if not self.base.live:
            raise Skipped("no output has a gradient")
        return self.base


def differentiate(
    outputs: Sequence[Tensor], sources: Sequence[Tensor], upstream: Sequence[Tensor], **options: Any
) -> list[Tensor | None]:
    """Gradients of the sources, which must be leaves; None for those that are not used."""
    options = {"retain_graph": True, **options}  # the error may come after part of the graph was used
    try:
        return list(torch.autograd.grad(outputs, sources, upstream, allow_unused=True, **options))
    except RuntimeError as error:
        if not needs_backward(error):
            raise
    for source in sources:
        source.grad = None
    torch.autograd.backward(outputs, upstream, **options)
    return [source.grad for source in sources]


def needs_backward(error: Exception) -> bool:
    """Whether only `backward()` can compute the gradients, as with reentrant checkpoints."""
    return "torch.utils.checkpoint is incompatible with .grad()" in str(error)


def snapshot(run: Run) -> Run:
    """A detached copy of a run."""
    outputs = [value.detach().clone() if isinstance(value, Tensor) else value for value in run.outputs]
    live = [copy for copy, value in zip(outputs, run.outputs, strict=True) if any(value is other for other in run.live)]
    return Run(outputs, live, [None if grad is None else grad.detach().clone() for grad in run.grads])


def upstream_like(outputs: Sequence[Tensor], seed: int = 1) -> list[Tensor]:
    """Random upstream gradients, reproducible for equal shapes and dtypes; zero where an output is not finite."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        torch.randn(value.shape, dtype=torch.promote_types(value.dtype, torch.float64), generator=generator).to(value)
        for value in outputs
    ]
    return [torch.where(value.detach().isfinite(), g, 0) for value, g in zip(outputs, drawn, strict=True)]


def difference(received: Any, expected: Any, tolerance: float, scale: float = 0.0) -> str:
    """Describe how two results differ; empty if they do not.

    The tolerance is relative to the largest finite value or `scale`, whichever is larger; 0 compares bits.
    """
    if not isinstance(received, Tensor) or not isinstance(expected, Tensor):
        same = received is expected or (type(received) is type(expected) and received == expected)
        return "" if same else f"{received!r} instead of {expected!r}"
    if received.shape != expected.shape:
        return f"shape {tuple(received.shape)} instead of {tuple(expected.shape)}"
    if not received.numel():
        return ""
    kind = torch.promote_types(received.dtype, expected.dtype)
    kind = torch.promote_types(kind, torch.float64) if kind.is_floating_point or kind.is_complex else kind
    received, expected = received.detach().to(kind), expected.detach().to(kind)
    if tolerance == 0 or not (kind.is_floating_point or kind.is_complex):
        wrong = (received != expected) & ~(received.isnan() & expected.isnan())
        return f"{int(wrong.sum())} of {wrong.numel()} values differ" if wrong.any() else ""
    finite = received.isfinite() & expected.isfinite()
    odd = ~finite & (received != expected) & ~(received.isnan() & expected.isnan())
    if odd.any():
        return f"{int(odd.sum())} of {odd.numel()} values are NaN or infinite in only one of them"
    if not finite.any():
        return ""
    error = (received - expected)[finite].abs().max().item()
    largest = expected[finite].abs().max().item()
    too_large = error > tolerance * max(scale, largest)
    return f"error up to {error:.2g} for values up to {largest:.2g}" if too_large else ""


def compare(received: Run, expected: Run, tolerance: float, subject: Subject) -> str:
    """Describe the first difference between two runs; empty if there is none."""
    # Where terms cancel, the rounding error of the terms remains: compare relative to the largest value anywhere.
    scale = max([subject.scale, *map(largest, expected.tensors)])
    if len(received.outputs) != len(expected.outputs):
        return f"{len(received.outputs)} outputs instead of {len(expected.outputs)}"
    for i, (actual, desired) in enumerate(zip(received.outputs, expected.outputs, strict=True)):
        found = difference(actual, desired, tolerance, scale)
        if found:
            return f"{'the output' if len(received.outputs) == 1 else f'output {i}'} differs: {found}"
    if not received.grads:
        return ""
    for i, actual, desired in zip(subject.differentiable, received.grads, expected.grads, strict=True):
        found = _gradient_difference(actual, desired, tolerance, scale)
        if found:
            return f"the gradient of {subject.name(i)} differs: {found}"
    return ""


def _gradient_difference(actual: Tensor | None, desired: Tensor | None, tolerance: float, scale: float) -> str:
    if actual is None and desired is None:
        return ""
    # None counts as a gradient of zeros.
    shape = next(grad for grad in (actual, desired) if grad is not None)
    actual, desired = (torch.zeros_like(shape) if grad is None else grad for grad in (actual, desired))
    return difference(actual, desired, tolerance, scale)


def largest(value: Any) -> float:
    """The largest finite magnitude of a floating-point tensor."""
    if not _is_float(value):
        return 0.0
    finite = value.detach()[value.detach().isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def rounding(dtype: torch.dtype) -> float:
    """Relative tolerance for the same computation in a different order."""
    return {torch.float64: 1e-11, torch.float32: 1e-4}.get(dtype, 16 * torch.finfo(dtype).eps)


def describe_error(error: BaseException) -> str:
    """An exception on one line, with the location in the user's code."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith((*LIBRARY_PATHS, "<")):
            where = f" ({Path(frame.filename).name}:{frame.lineno})"
    return one_line(error, first=True, with_type=True, limit=300) + where


def input_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the positional arguments; empty if the function has no signature."""
    owner = getattr(fn, "__self__", None)
    skip = 0
    target: Any = fn
    if isinstance(fn, nn.Module):
        target = fn.forward
    elif isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        target = owner.forward
        skip = int(owner.setup_context is torch.autograd.Function.setup_context)  # forward(ctx, ...)
    try:
        parameters = list(inspect.signature(target).parameters.values())[skip:]
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _kinds(values: Sequence[Any]) -> str:
    return ", ".join(type(value).__name__ for value in values) or "nothing"

"""Modules as functions of their parameters and inputs."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

MakeInputs = Callable[[torch.dtype, str], Any]


def with_parameters(make_inputs: MakeInputs, parameters: list[Tensor]) -> MakeInputs:
    """`make_inputs` with copies of the parameters before the other inputs."""

    def make(dtype: torch.dtype, device: str) -> Any:
        made = make_inputs(dtype, device)
        made = made if isinstance(made, tuple | list) else (made,)
        return (*(parameter.detach().to(device, dtype, copy=True) for parameter in parameters), *made)

    return make


def as_function(module: nn.Module, on_checkpoint: Callable[[str], None] = lambda kind: None) -> Callable[..., Any]:
    """The module as a function of its parameters and inputs; calls do not modify its buffers.

    `on_checkpoint` is called with "checkpoint" or "reentrant checkpoint" if forward uses `torch.utils.checkpoint`.
    """
    names = [name for name, _ in module.named_parameters()]

    def call(*arguments: Any) -> Any:
        parameters = dict(zip(names, arguments, strict=False))
        dtype = next((value.dtype for value in parameters.values()), None)
        buffers = {
            name: value.to(dtype, copy=True) if dtype and value.is_floating_point() else value.clone()
            for name, value in module.named_buffers()
        }
        state = {**parameters, **buffers}
        inputs = tuple(arguments[len(names) :])
        if torch.compiler.is_compiling():  # torch.compile recomputes with the right parameters
            return torch.func.functional_call(module, state, inputs)
        with _recomputed_with(module, state, on_checkpoint):
            return torch.func.functional_call(module, state, inputs)

    return call


def same_signature(reference: Callable[..., Any] | None, parameters: list[str]) -> Callable[..., Any] | None:
    """The reference of a module as a function of the parameters, which it may ignore, and the inputs."""
    if reference is None:
        return None
    if isinstance(reference, nn.Module) and [name for name, _ in reference.named_parameters()] == parameters:
        return as_function(reference)
    return lambda *arguments: reference(*arguments[len(parameters) :])


class _Part(nn.Module):
    """Part of a module's forward, as a module whose parameters `functional_call` can replace."""

    def __init__(self, module: nn.Module, part: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._part = (part,)  # a module in a tuple is not registered a second time

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._part[0](*args, **kwargs)


@contextlib.contextmanager
def _recomputed_with(
    module: nn.Module, state: dict[str, Tensor], on_checkpoint: Callable[[str], None]
) -> Iterator[None]:
    """Let checkpoints made in this context recompute with these parameters, not with the module's own.

    `torch.utils.checkpoint` recomputes in backward, after `functional_call` has restored the module's parameters.
    """
    checkpoint = torch.utils.checkpoint
    generator, function = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction
    replaced = {f"module.{name}": value for name, value in state.items()}

    def bound(part: Callable[..., Any], kind: str) -> Callable[..., Any]:
        on_checkpoint(kind)

        def run(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(_Part(module, part), replaced, args, kwargs)

        return run

    def reentrant(part: Callable[..., Any], *args: Any) -> Any:
        return function.apply(bound(part, "reentrant checkpoint"), *args)

    def without_reentrant(part: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return generator(bound(part, "checkpoint"), *args, **kwargs)

    with (
        mock.patch.object(checkpoint, "CheckpointFunction", SimpleNamespace(apply=reentrant)),
        mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", without_reentrant),
    ):
        yield

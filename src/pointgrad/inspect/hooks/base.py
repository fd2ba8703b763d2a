"""Base class of hooks: selecting layers, attaching to them and detaching."""

import contextlib
import difflib
import fnmatch
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

Layers = str | type[nn.Module] | Sequence[str | type[nn.Module]]


class Tap:
    """The callable that is registered with torch. Copies of it do nothing, so copies of a hooked module are inert."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # A callable that accepts any arguments and returns None. It needs no pointgrad when a saved module is loaded.
        return getattr, (contextlib.nullcontext(), "__exit__")


@functools.cache
def _eager_tap() -> type[Tap]:
    class EagerTap(Tap):
        __call__ = torch.compiler.disable(Tap.__call__)  # not at import time: importing the compiler takes a second

    return EagerTap


def eager_tap(call: Callable[..., Any]) -> Tap:
    """A tap that torch.compile runs eagerly, with a graph break: for hooks that keep tensors or hook tensors."""
    return _eager_tap()(call)


class Hooks:
    """Reentrant context manager that attaches hooks on entry and removes them on exit.

    A copy (pickle, deepcopy) keeps the recorded data and is not attached to a module.
    """

    def __init__(self, module: nn.Module, names_or_types: Layers) -> None:
        self._layers: dict[str, nn.Module] | None = choose(module, names_or_types)
        self._handles: list[RemovableHandle] = []
        self._prune_at = 64
        self._depth = 0

    def _attach(self) -> None:
        raise NotImplementedError

    def _forget(self) -> None:
        """Discard the state that must not outlive the outermost exit."""

    def __enter__(self) -> Any:
        if self._layers is None:
            raise RuntimeError(f"this {type(self).__name__} is a copy without a module; create a new one")
        if self._depth == 0:
            try:
                self._attach()
            except BaseException:
                self._remove()
                raise
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._remove()

    def _hook_tensor(self, tensor: Tensor, hook: Callable[[Tensor], None]) -> None:
        """Call the hook with the gradient of the current value of a tensor, even if it is modified in place later.

        The hook is removed with the graph, or on the outermost exit.
        """
        if len(self._handles) > self._prune_at:
            self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
            self._prune_at = 2 * len(self._handles) + 64
        self._handles.append(tensor.register_hook(hook))
        base = tensor._base
        if base is not None and base.requires_grad:
            # Modifying a view in place removes its old node, with its hooks, from the graph; its gradient is then
            # part of the gradient of its base.
            part = (tensor.size(), tensor.stride(), tensor.storage_offset() - base.storage_offset())
            whole = (base.size(), base.stride())
            version = _Version(tensor)

            def from_base(gradient: Tensor) -> None:
                if version.changed():
                    laid_out = torch.empty_strided(*whole, dtype=gradient.dtype, device=gradient.device)
                    hook(laid_out.copy_(gradient).as_strided(*part))

            self._handles.append(base.register_hook(from_base))

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_layers": None, "_handles": [], "_depth": 0}


class _Version:
    """Detects in-place changes of a tensor without keeping its memory alive."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()  # shares the version counter
        self._version = tensor._version
        self._tensor.data = tensor.new_empty(0)

    def changed(self) -> bool:
        return self._tensor._version != self._version


def choose(module: nn.Module, names_or_types: Layers) -> dict[str, nn.Module]:
    """Select layers of a module by name, by pattern such as `encoder.*`, or by type; returned by qualified name."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    if type(module).__name__ == "OptimizedModule":  # torch.compile(module): use the layers of the original
        module = module._orig_mod  # type: ignore[assignment]
    wanted = [names_or_types] if isinstance(names_or_types, str | type) else list(names_or_types)
    if not wanted:
        raise ValueError("names_or_types must select at least one layer, got none")
    # With duplicates: a shared layer can be selected by any of its names.
    everything = list(module.named_modules(remove_duplicate=False))
    found: dict[int, tuple[str, nn.Module]] = {}
    for each in wanted:
        if isinstance(each, str):
            matching = [(name, layer) for name, layer in everything if fnmatch.fnmatchcase(name, each)]
        elif isinstance(each, type) and issubclass(each, nn.Module):
            matching = [(name, layer) for name, layer in everything if isinstance(layer, each)]
        else:
            raise TypeError(f"names_or_types must be names or subclasses of torch.nn.Module, got {each!r}")
        called = [(name, layer) for name, layer in matching if not _is_container(layer)]
        if not called:
            raise ValueError(_nothing_found(module, each, everything, bool(matching)))
        for name, layer in called:
            found.setdefault(id(layer), (name, layer))
    return dict(found.values())


def _is_container(layer: nn.Module) -> bool:
    return isinstance(layer, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict)


def _nothing_found(
    module: nn.Module, wanted: str | type, everything: list[tuple[str, nn.Module]], container: bool
) -> str:
    owner = type(module).__name__
    if container:
        return f"{wanted!r} of {owner} is a container, which is never called; select '{wanted}.*' instead"
    if isinstance(wanted, str):
        names = [name for name, _ in everything if name]
        near = difflib.get_close_matches(wanted, names, n=5, cutoff=0.3) or names[:5]
        return f"{owner} has no layer named {wanted!r}; similar names: {', '.join(near) or 'none, it has no layers'}"
    types = sorted({type(layer).__name__ for _, layer in everything})
    return f"{owner} has no layer of type {wanted.__name__}; its layers have types {', '.join(types)}"


def branch(values: Any) -> tuple[Any, list[Tensor]]:
    """The same values with every differentiable tensor replaced by a view, and the list of views.

    A gradient hook on the view receives the gradient of this use of the tensor only; no gradient if the layer modifies
    the tensor in place.
    """
    views: dict[int, Tensor] = {}  # one per tensor, since some layers test whether two arguments are identical

    def view(value: Tensor) -> Tensor:
        if not value.requires_grad or value.layout != torch.strided:
            return value
        if id(value) not in views:
            views[id(value)] = value.view_as(value)
        return views[id(value)]

    return (tree_map_only(Tensor, view, values), list(views.values())) if torch.is_grad_enabled() else (values, [])

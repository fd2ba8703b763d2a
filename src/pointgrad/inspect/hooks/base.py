"""What all hooks share: choosing layers, attaching to them, and leaving them again."""

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
    """What is registered with torch. Copies of it do nothing, so copies of a module that is hooked record nothing."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        return self.call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # Takes any arguments and returns None; and a module saved while hooked loads without this package.
        return getattr, (contextlib.nullcontext(), "__exit__")


@functools.cache
def _eager_tap() -> type[Tap]:
    class EagerTap(Tap):
        __call__ = torch.compiler.disable(Tap.__call__)  # not above: it takes a second to import the compiler

    return EagerTap


def eager_tap(call: Callable[..., Any]) -> Tap:
    """For what keeps tensors or registers tensor hooks: torch.compile breaks its graph there and runs it eagerly."""
    return _eager_tap()(call)


class Hooks:
    """Attaches on entering, lets go on leaving, also when an exception passes. May be entered again, also while inside.

    A copy (pickle, deepcopy) keeps what was seen, and is attached to nothing.
    """

    def __init__(self, module: nn.Module, names_or_types: Layers) -> None:
        self._layers: dict[str, nn.Module] | None = choose(module, names_or_types)
        self._handles: list[RemovableHandle] = []
        self._prune_at = 64
        self._depth = 0

    def _attach(self) -> None:
        raise NotImplementedError

    def _forget(self) -> None:
        """What must not outlive the last exit."""

    def __enter__(self) -> Any:
        if self._layers is None:
            raise RuntimeError(f"this {type(self).__name__} is a copy, which is attached to no module: make a new one")
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
        """Calls the hook with the gradient of a tensor as it is now, also if it is changed in place afterwards.

        Such a hook goes with the graph, and with the last exit at the latest.
        """
        if len(self._handles) > self._prune_at:
            self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
            self._prune_at = 2 * len(self._handles) + 64
        self._handles.append(tensor.register_hook(hook))
        base = tensor._base
        if base is not None and base.requires_grad:
            # A view that is changed in place leaves the graph with its hooks: its gradient is then part of its base's.
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
    """Whether a tensor was changed in place, without keeping its memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()  # shares the counter
        self._version = tensor._version
        self._tensor.data = tensor.new_empty(0)

    def changed(self) -> bool:
        return self._tensor._version != self._version


def choose(module: nn.Module, names_or_types: Layers) -> dict[str, nn.Module]:
    """The layers of a module by qualified name; a pattern like `encoder.*` or a type may choose several."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    if type(module).__name__ == "OptimizedModule":  # torch.compile(module); its layers are those of the original
        module = module._orig_mod  # type: ignore[assignment]
    wanted = [names_or_types] if isinstance(names_or_types, str | type) else list(names_or_types)
    if not wanted:
        raise ValueError("names_or_types must choose at least one layer, got none")
    # Under every name: a shared layer may be asked for by any of them.
    everything = list(module.named_modules(remove_duplicate=False))
    found: dict[int, tuple[str, nn.Module]] = {}
    for each in wanted:
        if isinstance(each, str):
            matching = [(name, layer) for name, layer in everything if fnmatch.fnmatchcase(name, each)]
        elif isinstance(each, type) and issubclass(each, nn.Module):
            matching = [(name, layer) for name, layer in everything if isinstance(layer, each)]
        else:
            raise TypeError(f"names_or_types must be names or types of torch.nn.Module, got {each!r}")
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
        return f"{wanted!r} of {owner} is never called itself, only what it contains: choose '{wanted}.*'"
    if isinstance(wanted, str):
        names = [name for name, _ in everything if name]
        near = difflib.get_close_matches(wanted, names, n=5, cutoff=0.3) or names[:5]
        return f"{owner} has no layer named {wanted!r}; near names: {', '.join(near) or 'none, it has no layers'}"
    types = sorted({type(layer).__name__ for _, layer in everything})
    return f"{owner} has no layer of type {wanted.__name__}; its types: {', '.join(types)}"


def branch(values: Any) -> tuple[Any, list[Tensor]]:
    """The same values with every differentiable tensor seen through a view, and those views.

    A gradient hook on the view gets the gradient through this one use of the tensor, not that of its other uses; none
    if the layer changes it in place.
    """
    views: dict[int, Tensor] = {}  # one per tensor: some layers ask whether two arguments are the same

    def view(value: Tensor) -> Tensor:
        if not value.requires_grad or value.layout != torch.strided:
            return value
        if id(value) not in views:
            views[id(value)] = value.view_as(value)
        return views[id(value)]

    return (tree_map_only(Tensor, view, values), list(views.values())) if torch.is_grad_enabled() else (values, [])

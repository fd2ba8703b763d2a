"""Other libraries that do the same work: which, on which device, how to call them, how to get them.

An adapter is a function `(module, **arguments of the work) -> Attempt`, or a dict of them if the library has several
ways. It converts layouts before it returns; what it returns is timed. `read` brings the result into the form of the
work, so that the row can check it:

    fps       points (B, N, 3), count                    -> (B, count) index, the first pick is free
    knn       points (B, N, 3), k                        -> (B, N, k) index, each point among its own neighbours
    ball      points (B, N, 3), queries, radius, k       -> (B, M, any) index; -1: nothing here
    group     features (N, C), index (M, K)              -> (M, K, C)
    group_backward  features, index, grad (M, K, C)      -> (N, C)
    scatter   values (E, C), index (E,), size, reduce    -> (size, C)
    segment   values (E, C), offsets (S + 1,), reduce    -> (S, C)
    segment_softmax  logits (E, C), offsets, index       -> (E, C)
    interpolate  features (B, N, C), index (B, M, 3), weights  -> (B, M, C)
    interpolate_backward  the same, and grad (B, M, C)   -> (B, N, C)
    chamfer   points, targets (B, N, 3)                  -> one number, squared distances, means of both directions
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pointgrad

from ..contest import Attempt

Adapter = Callable[..., Attempt | dict[str, Attempt]]


@dataclass(frozen=True)
class Peer:
    """name: as shown. module: what is imported and given to the adapters. distribution: whose version counts.
    get: how to install it. work: an adapter for each kind of work. devices: where it competes."""

    name: str
    module: str
    distribution: str
    get: str
    work: dict[str, Adapter]
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass
class Peers:
    """Those of the table that can compete on a device. Each is imported when it is first needed."""

    device: str
    table: list[Peer]
    found: dict[str, dict[str, Any]] = field(default_factory=dict)  # as the JSON file has it
    _modules: dict[str, Any] = field(default_factory=dict)

    def attempts(self, work: str, arguments: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Attempt]]]:
        """Name and maker of everyone's attempts at a piece of work."""
        for peer in self.table:
            if work not in peer.work or self.device not in peer.devices or self._load(peer) is None:
                continue
            module = self._modules[peer.name]
            try:
                made = peer.work[work](module, **arguments)
            except Exception as error:
                yield peer.name, _raising(error)
                continue
            ways = made if isinstance(made, dict) else {"": made}
            for way, attempt in ways.items():
                yield f"{peer.name} {way}".strip(), lambda attempt=attempt: attempt  # type: ignore[misc]

    def _load(self, peer: Peer) -> Any:
        if peer.name not in self.found:
            module, reason = load(peer.module)
            self._modules[peer.name] = module
            self.found[peer.name] = {"version": None if module is None else _version(peer, module)}
            self.found[peer.name] |= {"missing": reason, "get": peer.get} if module is None else {}
        return self._modules[peer.name]


def load(name: str) -> tuple[Any, str]:
    """A peer's module, or None and why not. What `pointgrad.compat` installed under its name is not the peer."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        top = name.partition(".")[0]
        return None, "not installed" if error.name in (top, name) else f"cannot be imported: {error}"
    except Exception as error:  # a build for another torch, a library that is not there
        return None, f"cannot be imported: {' '.join(str(error).split())[:120]}"
    return (None, "pointgrad.compat goes by its name") if _is_ours(module) else (module, "")


def _is_ours(module: Any) -> bool:
    own = Path(pointgrad.__file__).parent.resolve()
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    for each in (module, top):
        if each.__name__ == "pointgrad" or each.__name__.startswith("pointgrad."):
            return True
        file = getattr(each, "__file__", None)
        if file is not None and own in Path(file).resolve().parents:
            return True
    return False


def _raising(error: Exception) -> Callable[[], Attempt]:
    def make() -> Attempt:
        raise error

    return make


def _version(peer: Peer, module: Any) -> str:
    try:
        return metadata.version(peer.distribution)
    except metadata.PackageNotFoundError:
        return str(getattr(module, "__version__", "unknown"))


def table() -> list[Peer]:
    """All of them, those first that need no compiler."""
    from . import dense, edges, packed, trees

    return [*trees.PEERS, *edges.PEERS, *dense.PEERS, *packed.PEERS]

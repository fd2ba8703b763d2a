"""Adapters to other libraries that do the same work.

An adapter is a function `(module, **arguments) -> Implementation`, or `-> dict[str, Implementation]` if the library has
several variants. It converts layouts before it returns, so that conversions are not timed. `read` of the implementation
converts the result to the common form of the work:

    fps       points (B, N, 3), num_samples              -> (B, num_samples) index, with any first pick
    knn       points (B, N, 3), k                        -> (B, N, k) index, which includes the point itself
    ball      points (B, N, 3), queries, radius, k       -> (B, M, any) index, padded with -1
    group     features (N, C), index (M, K)              -> (M, K, C)
    group_backward  features, index, grad (M, K, C)      -> (N, C)
    scatter   values (E, C), index (E,), size, reduce    -> (size, C)
    segment   values (E, C), offsets (S + 1,), index (E,), reduce -> (S, C)
    segment_softmax  logits (E, C), offsets, index       -> (E, C)
    interpolate  features (B, N, C), index (B, M, 3), weights  -> (B, M, C)
    interpolate_backward  as above, and grad (B, M, C)   -> (B, N, C)
    chamfer   points, targets (B, N, 3)                  -> scalar, sum of the mean squared distances of both directions
    submanifold  features (N, C), weight (27, C, D), coordinates (N, 3)  -> (N, D), with a given map
    submanifold_both  as above, and grad (N, D)          -> (N, D), and the gradients of features and weight
    strided   as submanifold; stride 2, padding 1        -> (M, D) in the order of x, y and z, with the map
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pointgrad
from pointgrad.errors import one_line

from ..comparison import Implementation

Adapter = Callable[..., Implementation | dict[str, Implementation]]


@dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Attributes:
        name: Name in tables and results.
        module: Module to import, which is passed to the adapters.
        distribution: Distribution package whose version is reported.
        get: Command that installs it.
        work: Adapters by kind of work.
        devices: Devices it supports.
    """

    name: str
    module: str
    distribution: str
    get: str
    work: dict[str, Adapter]
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass
class Peers:
    """The peers that support a device. Each is imported when it is first needed.

    Attributes:
        device: "cpu" or "cuda".
        table: All peers.
        found: Version of each peer, or the reason why it is missing, in the format of the JSON file.
    """

    device: str
    table: list[Peer]
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    _modules: dict[str, Any] = field(default_factory=dict)

    def implementations(
        self, work: str, arguments: dict[str, Any]
    ) -> Iterator[tuple[str, Callable[[], Implementation]]]:
        """Name and constructor of each peer's implementation of a kind of work."""
        for peer in self.table:
            if work not in peer.work or self.device not in peer.devices or self._load(peer) is None:
                continue
            module = self._modules[peer.name]
            try:
                made = peer.work[work](module, **arguments)
            except Exception as error:
                yield peer.name, _raising(error)
                continue
            variants = made if isinstance(made, dict) else {"": made}
            for variant, implementation in variants.items():
                yield f"{peer.name} {variant}".strip(), lambda each=implementation: each  # type: ignore[misc]

    def _load(self, peer: Peer) -> Any:
        if peer.name not in self.found:
            module, reason = load(peer.module)
            self._modules[peer.name] = module
            self.found[peer.name] = {"version": None if module is None else _version(peer, module)}
            self.found[peer.name] |= {"missing": reason, "get": peer.get} if module is None else {}
        return self._modules[peer.name]


def load(name: str) -> tuple[Any, str]:
    """Import a peer.

    Args:
        name: Name of the module.

    Returns:
        The module and an empty string, or None and the reason. A module that `pointgrad.compat` installed under the
        name of the peer counts as missing.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        top = name.partition(".")[0]
        return None, "not installed" if error.name in (top, name) else f"cannot be imported: {error}"
    except Exception as error:  # for example a build for another torch, or a missing shared library
        return None, f"cannot be imported: {one_line(error, limit=120)}"
    return (None, "replaced by pointgrad.compat") if _is_ours(module) else (module, "")


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


def _raising(error: Exception) -> Callable[[], Implementation]:
    def make() -> Implementation:
        raise error

    return make


def _version(peer: Peer, module: Any) -> str:
    try:
        return metadata.version(peer.distribution)
    except metadata.PackageNotFoundError:
        return str(getattr(module, "__version__", "unknown"))


def table() -> list[Peer]:
    """All peers. Those that install without a compiler come first."""
    from . import dense, edges, packed, trees, voxels

    return [*trees.PEERS, *edges.PEERS, *dense.PEERS, *packed.PEERS, *voxels.PEERS]

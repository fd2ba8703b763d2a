"""All networks by name."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from pointgrad.models.dgcnn import dgcnn
from pointgrad.models.network import Network
from pointgrad.models.point_transformer import point_transformer
from pointgrad.models.pointnet import pointnet
from pointgrad.models.pointnet2 import pointnet2
from pointgrad.models.pointnext import pointnext

_NETWORKS: dict[str, Callable[..., Network]] = {
    network.__name__: network for network in (pointnet, pointnet2, dgcnn, point_transformer, pointnext)
}


def names() -> dict[str, str]:
    """The name of each network, and what it is in one line.

    >>> "pointnet2" in names()
    True
    """
    return {name: (network.__doc__ or "").splitlines()[0] for name, network in _NETWORKS.items()}


def build(name: str, **options: Any) -> Network:
    """The network of this name; options as its own function takes them, for instance `**network.config`.

    >>> build("pointnet2", classes=10, width=0.25).config["classes"]
    10
    """
    if name not in _NETWORKS:
        raise ValueError(f"name must be {' or '.join(_NETWORKS)}, got {name!r}{_nearest(name, _NETWORKS)}")
    allowed = inspect.signature(_NETWORKS[name]).parameters
    for option in options:
        if option not in allowed:
            message = f"options of {name} must be {', '.join(allowed)}, got {option!r}"
            raise TypeError(message + _nearest(option, allowed))
    return _NETWORKS[name](**options)


def _nearest(word: Any, known: Any) -> str:
    close = difflib.get_close_matches(str(word), list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""

"""Networks by name."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from pointgrad.models.dgcnn import dgcnn
from pointgrad.models.litept import litept
from pointgrad.models.minkunet import minkunet
from pointgrad.models.network import Network
from pointgrad.models.point_transformer import point_transformer
from pointgrad.models.pointnet import pointnet
from pointgrad.models.pointnet2 import pointnet2
from pointgrad.models.pointnext import pointnext
from pointgrad.models.ptv3 import ptv3
from pointgrad.models.sonata import sonata
from pointgrad.models.spunet import spunet

_NETWORKS: dict[str, Callable[..., Network]] = {
    network.__name__: network
    for network in (pointnet, pointnet2, dgcnn, point_transformer, pointnext, minkunet, spunet, ptv3, sonata, litept)
}


def names() -> dict[str, str]:
    """Return the name and a one-line description of each network.

    Example:
        >>> "pointnet2" in names()
        True
    """
    return {name: (network.__doc__ or "").splitlines()[0] for name, network in _NETWORKS.items()}


def build(name: str, **options: Any) -> Network:
    """Build a network by name.

    Args:
        name: One of `names()`.
        **options: Arguments of the function of that name; with `**network.config`, an equal network is built.

    Returns:
        The network, with random weights.

    Raises:
        ValueError: If there is no network of this name, or an option is out of range.
        TypeError: If an option does not exist or has the wrong type.

    Example:
        >>> build("pointnet2", classes=10, width=0.25).config["classes"]
        10
    """
    if name not in _NETWORKS:
        raise ValueError(f"name must be one of {', '.join(_NETWORKS)}, got {name!r}{_suggestion(name, _NETWORKS)}")
    allowed = inspect.signature(_NETWORKS[name]).parameters
    for option in options:
        if option not in allowed:
            message = f"options of {name} must be among {', '.join(allowed)}, got {option!r}"
            raise TypeError(message + _suggestion(option, allowed))
    return _NETWORKS[name](**options)


def _suggestion(word: Any, known: Any) -> str:
    close = difflib.get_close_matches(str(word), list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""

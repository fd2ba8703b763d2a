"""torch-cluster's functions of graphs, which pointgrad has not.

Their names are there because programs, PyG for one, import them beside the others; only a call is refused.
"""

from typing import Any, NoReturn


def graclus_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Not provided."""
    _refuse("graclus_cluster")


def neighbor_sampler(*args: Any, **kwargs: Any) -> NoReturn:
    """Not provided."""
    _refuse("neighbor_sampler")


def random_walk(*args: Any, **kwargs: Any) -> NoReturn:
    """Not provided."""
    _refuse("random_walk")


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"pointgrad.compat.torch_cluster has no {name}: it works on graphs, not on points; "
        "for it use torch-cluster itself, or pyg-lib"
    )

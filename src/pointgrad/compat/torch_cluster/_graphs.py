"""torch-cluster's graph functions, which pointgrad does not provide.

Their names exist because programs such as PyG import them together with the others; only calling them raises an error.
"""

from typing import Any, NoReturn


def graclus_cluster(*args: Any, **kwargs: Any) -> NoReturn:
    """Not provided."""
    _raise("graclus_cluster")


def neighbor_sampler(*args: Any, **kwargs: Any) -> NoReturn:
    """Not provided."""
    _raise("neighbor_sampler")


def random_walk(*args: Any, **kwargs: Any) -> NoReturn:
    """Not provided."""
    _raise("random_walk")


def _raise(name: str) -> NoReturn:
    raise NotImplementedError(
        f"pointgrad.compat.torch_cluster does not provide {name}, which works on graphs, not on points; "
        "use torch-cluster itself or pyg-lib"
    )

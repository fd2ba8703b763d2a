"""Samplers of graphs, which pointgrad does not provide.

PyG inspects `neighbor_sample` when it is imported, so the names exist; calling them raises an error.
"""

from typing import Any, NoReturn

from torch import Tensor

from ._graphs import refuse


def neighbor_sample(
    rowptr: Tensor,
    col: Tensor,
    seed: Tensor,
    num_neighbors: list[int],
    node_time: Tensor | None = None,
    edge_time: Tensor | None = None,
    seed_time: Tensor | None = None,
    edge_weight: Tensor | None = None,
    csc: bool = False,
    replace: bool = False,
    directed: bool = True,
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
    return_edge_id: bool = True,
) -> NoReturn:
    """Not provided."""
    refuse("sampler.neighbor_sample")


def hetero_neighbor_sample(*args: Any, **kwargs: Any) -> NoReturn:
    """Not provided."""
    refuse("sampler.hetero_neighbor_sample")


def subgraph(*args: Any, **kwargs: Any) -> NoReturn:
    """Not provided."""
    refuse("sampler.subgraph")


def random_walk(*args: Any, **kwargs: Any) -> NoReturn:
    """Not provided."""
    refuse("sampler.random_walk")

"""Operators on graphs that PyG calls whenever pyg-lib is installed. They raise an error."""

from typing import Any, NoReturn

from ._library import composite


def refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"pointgrad.compat.pyg_lib does not provide {name}, which works on graphs, not on points; use pyg-lib itself"
    )


@composite("random_walk(Tensor rowptr, Tensor col, Tensor seed, int walk_length, float p, float q) -> Tensor")
def random_walk(*args: Any) -> NoReturn:
    refuse("random_walk")


@composite(
    "neighbor_sample(Tensor rowptr, Tensor col, Tensor seed, int[] num_neighbors, Tensor? node_time=None, "
    "Tensor? edge_time=None, Tensor? seed_time=None, Tensor? edge_weight=None, bool csc=False, bool replace=False, "
    "bool directed=True, bool disjoint=False, str temporal_strategy='uniform', bool return_edge_id=True) "
    "-> (Tensor, Tensor, Tensor, Tensor?, int[], int[])"
)
def neighbor_sample(*args: Any) -> NoReturn:
    refuse("neighbor_sample")


@composite(
    "hetero_neighbor_sample(str[] node_types, (str, str, str)[] edge_types, Dict(str, Tensor) rowptr_dict, "
    "Dict(str, Tensor) col_dict, Dict(str, Tensor) seed_dict, Dict(str, int[]) num_neighbors_dict, "
    "Dict(str, Tensor)? node_time_dict=None, Dict(str, Tensor)? edge_time_dict=None, "
    "Dict(str, Tensor)? seed_time_dict=None, Dict(str, Tensor)? edge_weight_dict=None, bool csc=False, "
    "bool replace=False, bool directed=True, bool disjoint=False, str temporal_strategy='uniform', "
    "bool return_edge_id=True) -> (Dict(str, Tensor), Dict(str, Tensor), Dict(str, Tensor), Dict(str, Tensor)?, "
    "Dict(str, int[]), Dict(str, int[]))"
)
def hetero_neighbor_sample(*args: Any) -> NoReturn:
    refuse("hetero_neighbor_sample")

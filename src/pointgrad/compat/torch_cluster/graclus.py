"""Clustering of graphs, which pointgrad does not provide."""

from torch import Tensor


def graclus_cluster(row: Tensor, col: Tensor, weight: Tensor | None = None, num_nodes: int | None = None) -> Tensor:
    """Not provided. The name exists because programs import it together with the others; calling it raises an error."""
    raise NotImplementedError(
        "pointgrad.compat.torch_cluster does not provide graclus_cluster, which works on graphs, not on points; "
        "use torch-cluster itself or pyg-lib"
    )

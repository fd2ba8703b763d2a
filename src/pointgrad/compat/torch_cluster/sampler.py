"""Sampling of neighbors in graphs, which pointgrad does not provide."""

from torch import Tensor


def neighbor_sampler(start: Tensor, rowptr: Tensor, size: float) -> Tensor:
    """Not provided. The name exists because programs import it together with the others; calling it raises an error."""
    raise NotImplementedError(
        "pointgrad.compat.torch_cluster does not provide neighbor_sampler, which works on graphs, not on points; "
        "use torch-cluster itself or pyg-lib"
    )

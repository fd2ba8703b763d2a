"""Random walks on graphs, which pointgrad does not provide."""

from torch import Tensor


def random_walk(
    row: Tensor,
    col: Tensor,
    start: Tensor,
    walk_length: int,
    p: float = 1,
    q: float = 1,
    coalesced: bool = True,
    num_nodes: int | None = None,
    return_edge_indices: bool = False,
) -> Tensor:
    """Not provided. The name exists because programs import it together with the others; calling it raises an error."""
    raise NotImplementedError(
        "pointgrad.compat.torch_cluster does not provide random_walk, which works on graphs, not on points; "
        "use torch-cluster itself or pyg-lib"
    )

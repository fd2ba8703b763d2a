"""Placeholders of torch-scatter's compiled operators, which pointgrad does not have."""

from typing import Any, NoReturn


def cuda_version_placeholder() -> int:
    """Version of CUDA that the compiled operators need: -1, none."""
    return -1


def scatter_placeholder(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise an ImportError, as in the original."""
    raise ImportError("torch_scatter.placeholder has no implementation; use the functions of torch_scatter")


scatter_arg_placeholder = scatter_placeholder
segment_csr_placeholder = scatter_placeholder
segment_csr_arg_placeholder = scatter_placeholder
gather_csr_placeholder = scatter_placeholder
segment_coo_placeholder = scatter_placeholder
segment_coo_arg_placeholder = scatter_placeholder
gather_coo_placeholder = scatter_placeholder

"""The point operators of pyg-lib 0.9.0, which PyG 2.8 and later use.

`pyg_lib.ops` has the functions, `torch.ops.pyg` the operators. Samplers of graphs can be imported but not called;
`pyg_lib.partition` does not exist, so that PyG does not use it.
"""

from typing import NoReturn

from . import _graphs, _groups, _matmul, _points, _spline, ops, sampler  # noqa: F401  # the first five register operators

__version__ = "0.9.0"  # the version whose interface is provided

__all__ = ["__version__", "ops", "sampler"]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"pointgrad.compat provides only the point operators of pyg_lib, not pyg_lib.{name}")

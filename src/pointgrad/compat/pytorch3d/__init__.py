"""The point-cloud part of PyTorch3D 0.7.9 (facebookresearch/pytorch3d), without meshes, cameras and renderers.

`ops`, `loss`, `structures` and `transforms`. Differences of all operators from the original: any floating-point dtype
(the original's CPU kernels and backward passes support float32 only); any K and D on CPU and GPU; twice differentiable
(the original once); lengths are not read from the GPU (the original synchronizes to find their minimum); 64-bit sizes
(the original's neighbor search has 32-bit sizes). Ties go to the smallest index on every device.
"""

from ._missing import missing

__all__: list[str] = []
__version__ = "0.7.9"
__getattr__ = missing(__name__)

"""The point operators of PyTorch3D 0.7.9 (facebookresearch/pytorch3d): `ops` and `loss`; no meshes, no renderer.

Everywhere: any floating dtype (the original's CPU kernels and its backward are float32 only), any K and D, CPU and GPU,
twice differentiable (the original once), no waiting for the GPU to read lengths (the original waits for their minimum),
sizes of 64 bits (the original's neighbour search counts in 32). Ties go to the smallest index on every device.
"""

from ._missing import missing

__all__: list[str] = []
__version__ = "0.7.9"
__getattr__ = missing(__name__)

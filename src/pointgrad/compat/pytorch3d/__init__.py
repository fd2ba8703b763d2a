"""Operators of PyTorch3D (facebookresearch/pytorch3d, 0.7.9) on points: `ops` and `loss`, no meshes and no renderer."""

__version__ = "0.7.9"

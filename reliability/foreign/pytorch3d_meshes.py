"""Stand-in for `pytorch3d.structures.meshes` and other modules from which tests of points make their input."""

import sys
from types import ModuleType
from typing import Any

import pytest
import pytorch3d.ops
import torch
from torch import Tensor


class Meshes:
    """Meshes of vertices (V, 3) and faces (F, 3), given as lists or stacked."""

    def __init__(self, verts: Any, faces: Any) -> None:
        self.verts, self.faces = list(verts), list(faces)

    def __len__(self) -> int:
        return len(self.faces)

    def extend(self, N: int) -> "Meshes":
        return Meshes([each for each in self.verts for _ in range(N)], [each for each in self.faces for _ in range(N)])

    def faces_packed(self) -> Tensor:
        return torch.cat(self.faces)

    def num_faces_per_mesh(self) -> Tensor:
        return torch.tensor([len(each) for each in self.faces], device=self.faces[0].device)

    def mesh_to_faces_packed_first_idx(self) -> Tensor:
        sizes = self.num_faces_per_mesh()
        return sizes.cumsum(0) - sizes


def ico_sphere(level: int = 0, device: Any = "cpu") -> Meshes:
    """An octahedron; the tests need points at distances of at most 1 from the origin, not a sphere."""
    signs = torch.cartesian_prod(*[torch.tensor([0, 1])] * 3)
    corners = torch.cat([torch.eye(3), -torch.eye(3)]).to(device)
    return Meshes([corners], [(signs * 3 + torch.arange(3)).to(device)])


def sample_points_from_meshes(meshes: Meshes, num_samples: int = 10000, return_normals: bool = False) -> Tensor:
    """Random points, uniform on the surface of each mesh, (B, num_samples, 3)."""
    clouds = []
    for verts, faces in zip(meshes.verts, meshes.faces, strict=True):
        a, b, c = verts[faces].unbind(1)
        areas = torch.linalg.cross(b - a, c - a).norm(dim=1)
        chosen = areas.multinomial(num_samples, replacement=True)
        u, v = torch.rand(2, num_samples, 1, device=verts.device)
        u, v = torch.where(u + v > 1, 1 - u, u), torch.where(u + v > 1, 1 - v, v)
        clouds.append(a[chosen] + u * (b - a)[chosen] + v * (c - a)[chosen])
    return torch.stack(clouds)


def load_obj(*_: Any, **__: Any) -> None:
    pytest.skip("needs a file of a mesh")


def provide(name: str, **members: Any) -> None:
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__dict__.update(members)


pytorch3d.ops.sample_points_from_meshes = sample_points_from_meshes
provide("pytorch3d.ops.sample_points_from_meshes", sample_points_from_meshes=sample_points_from_meshes)
provide("pytorch3d.utils", ico_sphere=ico_sphere)
provide("pytorch3d.io", load_obj=load_obj)

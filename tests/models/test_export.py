"""Networks on voxels, exported with a dynamic number of clouds and points, saved, and run on other sizes."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch.fx.experimental import symbolic_shapes

from pointgrad import models
from pointgrad.models.serialized import Serialized

pytestmark = pytest.mark.skipif(
    not hasattr(symbolic_shapes, "guard_or_true"), reason="this version of torch has no guards on sizes of data"
)

SIZES = ((2, 300), (3, 777), (1, 1500), (5, 2))  # clouds and points; the first is traced


def small(name, task, stages=3):
    """A network with one block per stage."""
    torch.manual_seed(0)
    network = models.build(name, task=task, classes=3, channels=0, width=0.125, voxel=0.1)
    if isinstance(network, Serialized):
        sizes = network.sizes
        conv, attention = (True, True, False), (False, True, True)
        flags = {"conv": conv[-stages:], "attention": attention[-stages:]} if name == "litept" else {}
        decoder = len(sizes.decoder_heads[: stages - 1])
        network = Serialized(
            network.config,
            replace(
                sizes,
                heads=sizes.heads[:stages],
                blocks=(1,) * stages,
                decoder_heads=sizes.decoder_heads[: stages - 1],
                decoder_blocks=(1,) * decoder,
                patch=64,
                **flags,
            ),
        )
    return network.eval()


def exported(network, device="cpu"):
    sizes = {0: torch.export.Dim("clouds", max=4096), 1: torch.export.Dim("points")}
    return torch.export.export(network, (scenes(SIZES[0]).to(device),), dynamic_shapes=(sizes,))


def scenes(sizes):
    """Clouds of different extents."""
    clouds, points = sizes
    return torch.rand(clouds, points, 3) * torch.tensor([5.0, 2.0, 0.5]) / torch.arange(1, clouds + 1)[:, None, None]


NETWORKS = [
    ("ptv3", "segmentation"), ("sonata", "segmentation"), ("litept", "classification"),
    ("spunet", "classification"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "task"), NETWORKS)
def test_exported_file_runs_on_other_sizes(name, task, tmp_path):
    network = small(name, task)
    torch.export.save(exported(network), tmp_path / "network.pt2")
    program = torch.export.load(tmp_path / "network.pt2").module()
    for size in SIZES:
        points = scenes(size)
        with torch.no_grad():
            torch.testing.assert_close(program(points), network(points), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\):FutureWarning")  # inside torch
@pytest.mark.long
def test_compiled_ahead_of_time(tmp_path):
    network = small("ptv3", "segmentation", stages=2)
    path = torch._inductor.aoti_compile_and_package(exported(network), package_path=str(tmp_path / "network.pt2"))
    program = torch._inductor.aoti_load_package(path)
    for size in SIZES:
        points = scenes(size)
        with torch.no_grad():
            torch.testing.assert_close(program(points), network(points), rtol=1e-4, atol=1e-5)

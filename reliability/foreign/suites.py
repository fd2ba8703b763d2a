"""Table of the test suites: what is copied, how scaffolding is replaced, and which tests are out of scope."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Suite:
    """Test suite of one library.

    Attributes:
        name: Name of the library.
        version: File with a line `__version__ = "..."`.
        copied: Files and folders that the tests need, relative to the sources. The rest of the library is not
            importable, so that tests cannot use it by accident.
        tests: Test files and folders to run.
        helpers: Modules of test helpers, and their files, relative to the sources. They are used if compat does not
            have them.
        out_of_scope: Patterns of test names, and the reason why they are not run. Each must match a test.
        compare: Whether failures that also happen without compat are listed separately, for a library that compat does
            not replace but that uses replaced ones.
        cpu: Whether tests that request CUDA run on the CPU on a machine without a GPU (`run --cpu`).
    """

    name: str
    version: str
    copied: tuple[str, ...]
    tests: tuple[str, ...]
    helpers: dict[str, str] = field(default_factory=dict)
    out_of_scope: dict[str, str] = field(default_factory=dict)
    compare: bool = False
    cpu: bool = False


HERE = Path(__file__).parent
GRAPHS = "graph algorithm"
DEVICES = "needs a CPU and a GPU"
ORIGINAL = "the original also fails with the random numbers of a CPU"

SUITES = (
    Suite(
        name="torch_scatter",
        version="torch_scatter/__init__.py",
        copied=("test",),
        tests=("test",),
        helpers={"torch_scatter.testing": "torch_scatter/testing.py"},
    ),
    Suite(
        name="torch_cluster",
        version="torch_cluster/__init__.py",
        copied=("test",),
        tests=("test",),
        helpers={"torch_cluster.testing": "torch_cluster/testing.py"},
        out_of_scope={
            "test/test_graclus.py*": GRAPHS,
            "test/test_rw.py*": GRAPHS,
            "test/test_sampler.py*": GRAPHS,
        },
    ),
    Suite(
        name="pyg_lib",
        version="pyg_lib/__init__.py",
        copied=("test",),
        tests=("test",),
        helpers={"pyg_lib.testing": str(HERE / "pyg_lib_testing.py")},
        out_of_scope={
            "test/ops/test_graclus.py*": GRAPHS,
            "test/ops/test_edge_sampler.py*": GRAPHS,
            "test/classes/*": GRAPHS,
            "test/test_triton.py*": "the library's import of Triton",
            "*::test_scatter_mul_gradient_at_src_zero*": "requires a wrong gradient for a factor of 0",
        },
    ),
    Suite(
        name="pytorch3d",
        version="pytorch3d/__init__.py",
        copied=("tests",),
        tests=(
            "tests/test_ball_query.py",
            "tests/test_chamfer.py",
            "tests/test_knn.py",
            "tests/test_ops_utils.py",
            "tests/test_packed_to_padded.py",
            "tests/test_pointclouds.py",
            "tests/test_points_alignment.py",
            "tests/test_points_normals.py",
            "tests/test_points_to_volumes.py",
            "tests/test_rotation_conversions.py",
            "tests/test_sample_farthest_points.py",
            "tests/test_se3.py",
            "tests/test_so3.py",
            "tests/test_struct_utils.py",
            "tests/test_transforms.py",
        ),
        helpers={"pytorch3d.structures.meshes": str(HERE / "pytorch3d_meshes.py")},
        cpu=True,
        out_of_scope={
            "*::test_knn_vs_python_square_cuda": "requires that neighbors are not sorted",
            "*::test_single_directional_chamfer_vs_naive_pointcloud": ORIGINAL,
            "*::TestICP::test_heterogeneous_inputs": ORIGINAL,
            "tests/test_pointclouds.py::*::test_init_error": DEVICES,
            "tests/test_pointclouds.py::*::test_to": DEVICES,
            "tests/test_transforms.py::*::test_to": DEVICES,
        },
    ),
    Suite(
        name="pointnet2_ops",
        version="pointnet2_ops_lib/pointnet2_ops/_version.py",
        copied=("pointnet2", "tests"),
        tests=("tests",),
        helpers={"helpers_namespace": str(HERE / "pointnet2_packages.py")},
        cpu=True,
    ),
    Suite(
        name="torch_geometric",
        version="torch_geometric/__init__.py",
        copied=(
            "torch_geometric",
            "test",
        ),  # not its settings for pytest, which turn warnings of recent torch into errors
        tests=("test",),
        out_of_scope={
            "test/loader/test_mixin.py::test_multithreading_neighbor_loader": GRAPHS,
            "test/nn/models/test_node2vec.py*": GRAPHS,
            "test/nn/pool/test_graclus.py*": GRAPHS,
            "test/utils/test_dropout.py::test_dropout_path": GRAPHS,
        },
        compare=True,
    ),
)

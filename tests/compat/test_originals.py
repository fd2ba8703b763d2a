"""Imports where a program or an installed library has modules of the same name."""

import importlib
import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

import pointgrad.compat

pytestmark = pytest.mark.usefixtures("no_library")

COMPILED = EXTENSION_SUFFIXES[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A program's folder on `sys.path`; its modules are removed from `sys.modules` afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if not sys.modules[name].__name__.startswith(("pointgrad", "torch.")):
            del sys.modules[name]


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()


def ours(name):
    return sys.modules[f"pointgrad.compat.{name}"]


class TestProgramsOwnModules:
    """Names of compiled modules are also folders in the programs that use them."""

    @pytest.mark.parametrize("init", [True, False], ids=["package", "folder"])
    def test_beside_a_compiled_module(self, folder, init):
        write(folder, {"pointnet2/pointnet2_utils.py": "import pointnet2._ext as _ext\nOWN = True\n"})
        if init:
            write(folder, {"pointnet2/__init__.py": "from pointnet2 import pointnet2_utils\nOWN = True\n"})
        pointgrad.compat.install()
        import pointnet2.pointnet2_utils as utils

        assert utils.OWN
        assert utils.__file__ == str(folder / "pointnet2" / "pointnet2_utils.py")
        assert utils._ext is ours("pointnet2._ext")
        assert hasattr(sys.modules["pointnet2"], "OWN") == init

    def test_modules_that_exist_in_both(self, folder):
        """Neither `from ... import` nor an attribute may return another module than `import`."""
        write(
            folder,
            {"extensions/chamfer_dist/__init__.py": "OWN = True\n", "extensions/emd/emd_module.py": "OWN = True\n"},
        )
        pointgrad.compat.install()
        import extensions.chamfer_dist as attribute
        from extensions.chamfer_dist import OWN
        from extensions.emd import emd_module

        assert OWN
        assert attribute is sys.modules["extensions.chamfer_dist"]
        assert attribute.OWN
        assert emd_module.OWN
        import extensions.emd.emd as ours_below  # not in the program's folder

        assert ours_below is ours("extensions.emd.emd")

    def test_folder_added_to_the_path_later(self, tmp_path, folder, monkeypatch):
        pointgrad.compat.install()
        import pointnet2._ext

        write(tmp_path / "later", {"pointnet2/pointnet2_modules.py": "from . import _ext\nfrom .mlp import WIDTH\n"})
        write(tmp_path / "later", {"pointnet2/mlp.py": "WIDTH = 3\n"})
        monkeypatch.syspath_prepend(tmp_path / "later")
        from pointnet2 import mlp, pointnet2_modules

        assert pointnet2_modules._ext is pointnet2._ext is ours("pointnet2._ext")
        assert pointnet2_modules.WIDTH == mlp.WIDTH == 3
        assert sys.modules["pointnet2.mlp"] is mlp

    @pytest.mark.parametrize("code", ["from . import pointnet2_batch_cuda as cuda", "from .. import other, cuda"])
    def test_compiled_module_inside_a_package(self, folder, code):
        """OpenPCDet imports its compiled modules relative to their package."""
        write(
            folder,
            {
                "detector/__init__.py": "",
                "detector/other.py": "",
                "detector/cuda.py": "from .pointnet2 import pointnet2_batch_cuda\nball_query_wrapper = 1\n",
                "detector/pointnet2/__init__.py": "",
                "detector/pointnet2/utils.py": code,
            },
        )
        pointgrad.compat.install()
        from detector.pointnet2 import utils

        assert hasattr(utils.cuda, "ball_query_wrapper")
        nested = sys.modules["detector.pointnet2.pointnet2_batch_cuda"]
        assert nested is ours("pointnet2_batch_cuda")
        assert nested.__name__ == nested.__spec__.name == "pointgrad.compat.pointnet2_batch_cuda"
        import pointnet2_batch_cuda

        assert pointnet2_batch_cuda is nested

    @pytest.mark.parametrize("name", ["chamfer", "pointnet2", "pointnet2._ext", "simple_knn._C"])
    def test_python_file_of_that_name(self, folder, name):
        """A program may implement the functions itself."""
        write(folder, {f"{name.replace('.', '/')}.py": "OWN = True\n"})
        pointgrad.compat.install()
        assert importlib.import_module(name).OWN

    @pytest.mark.parametrize("name", ["chamfer", "pointnet2._ext", "lib.pointnet2._ext"])
    def test_compiled_modules_are_replaced(self, folder, name):
        write(folder, {f"{name.replace('.', '/')}{COMPILED}": "compiled for another torch"})
        pointgrad.compat.install()
        assert importlib.import_module(name) is ours(name.removeprefix("lib."))

    @pytest.mark.parametrize("name", ["ocnn", "simple_knn", "simple_knn._C", "pytorch3d"])
    def test_detection_by_the_spec(self, name):
        """torch-pointcloud regards a package without an origin as missing."""
        pointgrad.compat.install()
        assert importlib.util.find_spec(name).origin == ours(name).__file__

    def test_folder_below_a_package(self, folder):
        """PointGroup has its Python files in lib/pointgroup_ops/functions, all folders without `__init__.py`."""
        write(folder, {"lib/pointgroup_ops/functions/pointgroup_ops.py": "import PG_OP\n"})
        pointgrad.compat.install()
        from lib.pointgroup_ops.functions import pointgroup_ops

        assert pointgroup_ops.PG_OP is ours("PG_OP")

    def test_folder_of_sources_is_no_module(self, folder):
        write(folder, {"chamfer/chamfer.cu": "", "chamfer/test_chamfer.py": "OWN = True\n"})
        pointgrad.compat.install()
        import chamfer

        assert chamfer is ours("chamfer")

    def test_imported_modules_stay(self, folder):
        write(folder, {"pointnet2/__init__.py": "OWN = True\n", "pointnet2/later.py": "OWN = True\n"})
        import pointnet2

        pointgrad.compat.install()
        import pointnet2._ext
        import pointnet2.later

        assert pointnet2.OWN
        assert pointnet2.later.OWN
        assert pointnet2._ext is ours("pointnet2._ext")

    def test_other_missing_modules_fail_as_usual(self, folder):
        write(folder, {"pointnet2/__init__.py": "", "detector/__init__.py": ""})
        pointgrad.compat.install()
        for name in ["pointnet2.nothing", "detector.nothing", "detector.pointnet2", "detector.extensions"]:
            with pytest.raises(ModuleNotFoundError, match=f"^No module named '{name}'$"):
                importlib.import_module(name)
        with pytest.raises(ModuleNotFoundError, match=r"^pointgrad.compat replaces simple_knn but does not provide"):
            importlib.import_module("simple_knn.nothing")

    def test_only_named(self, folder):
        write(folder, {"pointnet2/__init__.py": ""})
        pointgrad.compat.install("pytorch3d")
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'pointnet2\._ext'$"):
            importlib.import_module("pointnet2._ext")


class TestInstalledLibraries:
    """Parts that pointgrad.compat does not have are imported from an installed library."""

    @pytest.fixture(autouse=True)
    def real(self, folder):
        write(
            folder,
            {
                "pytorch3d/__init__.py": "__version__ = '0.0'\nREAL = True\n",
                "pytorch3d/ops/__init__.py": (
                    "from .knn import knn_points\nfrom .cubify import cubify\nfrom .knn import _Heap\n"
                ),
                "pytorch3d/ops/knn.py": (
                    "class _Heap: pass\ndef knn_points(): raise RuntimeError('replaced')\n"
                    "def _helper(): return knn_points\n"
                ),
                "pytorch3d/ops/cubify.py": (
                    "from pytorch3d.ops import knn_points\nfrom ..renderer.mesh import rasterize\n"
                    "def cubify(): return rasterize(knn_points)\n"
                ),
                "pytorch3d/renderer/__init__.py": "from .mesh import rasterize\nfrom pytorch3d import _C\n",
                "pytorch3d/renderer/mesh.py": "def rasterize(value): return value\n",
                "pytorch3d/_C.py": "",
            },
        )

    def test_modules(self, folder):
        pointgrad.compat.install()
        import pytorch3d.renderer.mesh
        from pytorch3d import renderer

        assert renderer is pytorch3d.renderer is sys.modules["pytorch3d.renderer"]
        assert renderer.mesh.__file__ == str(folder / "pytorch3d" / "renderer" / "mesh.py")
        assert pytorch3d.__version__ != "0.0"

    def test_attributes(self):
        pointgrad.compat.install()
        import pytorch3d
        from pytorch3d.ops import cubify, knn_points

        assert pytorch3d.REAL
        assert cubify() is knn_points, "the library's own modules use pointgrad's functions too"
        assert knn_points.__module__ == "pointgrad.compat.pytorch3d.ops.knn"
        assert pytorch3d.ops.knn._Heap is pytorch3d.ops._Heap
        assert pytorch3d.ops._Heap.__module__ == "pytorch3d.ops.knn"

    def test_names_that_neither_package_has(self):
        pointgrad.compat.install()
        import pytorch3d.ops

        assert not hasattr(pytorch3d.ops, "nothing")
        with pytest.raises(AttributeError, match=r"not pytorch3d\.ops\.nothing"):
            _ = pytorch3d.ops.nothing
        with pytest.raises(ModuleNotFoundError, match=r"does not provide pytorch3d\.ops\.nothing; `python"):
            exec("from pytorch3d.ops import nothing")
        with pytest.raises(ModuleNotFoundError, match=r"does not provide pytorch3d\.nothing; `python"):
            importlib.import_module("pytorch3d.nothing")

    def test_broken_library(self, folder):
        """A library may be broken because it was compiled for another version of torch."""
        write(folder, {"pytorch3d/ops/__init__.py": "raise OSError('undefined symbol')\n"})
        pointgrad.compat.install()
        import pytorch3d.ops

        reason = (
            r"does not provide .*, and importing the installed pytorch3d\.ops failed with OSError: undefined symbol; "
        )
        for name in ("cubify_all", "cubify"):  # the module of the same name must not be taken for the function
            assert not hasattr(pytorch3d.ops, name)
            with pytest.raises(ModuleNotFoundError, match=reason):
                exec(f"from pytorch3d.ops import {name}")
        assert pytorch3d.ops.knn_points
        assert importlib.import_module("pytorch3d.renderer").rasterize

    def test_without_install_nothing_falls_back(self):
        pointgrad.compat.install()
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "Finder"]
        assert not hasattr(ours("pytorch3d"), "REAL")


def test_an_installed_pyg_lib_is_never_loaded(folder):
    """A second registration of its operators would end the process."""
    write(folder, {"pyg_lib/__init__.py": "raise SystemExit('loaded')\n", "pyg_lib/partition.py": ""})
    pointgrad.compat.install("pyg_lib")
    import pyg_lib

    assert not hasattr(pyg_lib, "partition")
    with pytest.raises(ModuleNotFoundError, match=r"does not provide pyg_lib\.partition"):
        importlib.import_module("pyg_lib.partition")

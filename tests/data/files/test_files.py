"""Reading and writing of all formats: round trips, and exchange with other libraries."""

import doctest
import errno
import gzip
import importlib
import os
import pkgutil
import resource
import stat
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import pointgrad.data.files
from pointgrad import data
from pointgrad.data import Cloud

PACKAGES = {"pcd": "lzf", "las": "laspy", "laz": "lazrs", "h5": "h5py", "hdf5": "h5py"}
ENCODINGS = [
    (suffix, encoding)
    for suffix, format in data.FORMATS.items()
    if format.write
    for encoding in format.encodings or [None]
]


def need(suffix):
    if suffix in PACKAGES:
        pytest.importorskip(PACKAGES[suffix])


def a_cloud(count=200, dtype=torch.float64):
    """A cloud on a millimetre grid far from 0, as in surveys, with columns of many types."""
    draw = torch.Generator().manual_seed(1)
    steps = torch.randint(0, 10**6, (count, 3), generator=draw)
    near = steps.double() * 0.001 if dtype == torch.float64 else torch.randn(count, 3, generator=draw)
    return Cloud(
        near,
        {
            "intensity": torch.randint(0, 65536, (count,), generator=draw, dtype=torch.int32),
            "red": torch.randint(0, 256, (count,), generator=draw, dtype=torch.uint8),
            "green": torch.randint(0, 256, (count,), generator=draw, dtype=torch.uint8),
            "blue": torch.randint(0, 256, (count,), generator=draw, dtype=torch.uint8),
            "gps_time": torch.rand(count, generator=draw, dtype=torch.float64) * 1e9,
            "quality": torch.randn(count, generator=draw),
            "nx": torch.randn(count, generator=draw),
            "id": torch.randint(-(2**31), 2**31, (count,), generator=draw),
        },
        labels=torch.randint(0, 5, (count,), generator=draw),
        origin=torch.tensor([500_000.0, 5_000_000.0, 0.0], dtype=torch.float64) * (dtype == torch.float64),
    )


def same(a, b):
    """Whether all numbers are equal, including NaN, regardless of dtype."""
    return np.array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64), equal_nan=True)


def bare(cloud):
    return Cloud(cloud.points, origin=cloud.origin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("suffix", "encoding"), ENCODINGS)
def test_round_trip(tmp_path, suffix, encoding, dtype):
    need(suffix)
    cloud, path = a_cloud(dtype=dtype), tmp_path / f"a.{suffix}"
    holds = data.FORMATS[suffix].holds
    if holds is not None:
        cloud = Cloud(cloud.points.float(), {name: torch.rand(len(cloud)) for name in holds})
    data.write(path, cloud, encoding=encoding)
    again = data.read(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    if suffix in ("las", "laz"):
        assert (again.world() - cloud.world()).abs().max() <= (1e-9 if dtype == torch.float64 else 5e-9)
    else:
        assert torch.equal(again.world(), cloud.world())
    for name, column in cloud.features.items():
        assert same(again.features[name], column), name
    assert cloud.labels is None or torch.equal(again.labels, cloud.labels)
    assert torch.equal(again.origin, again.origin.round())
    if suffix in ("ply", "pcd", "npy", "npz", "bin", "pcd.bin", "h5", "hdf5"):
        assert again.points.dtype == cloud.points.dtype
    assert again.source == str(path)


@pytest.mark.parametrize("suffix", ["npz", "h5"])
def test_named_arrays_keep_cloud_labels_and_vector_columns(tmp_path, suffix):
    need(suffix)
    cloud = Cloud(torch.rand(5, 3), {"file": torch.rand(5, 7), "flag": torch.arange(5) > 2}, label=3, category=1)
    data.write(tmp_path / f"a.{suffix}", cloud)
    again = data.read(tmp_path / f"a.{suffix}")
    assert (again.label, again.category, again.labels) == (3, 1, None)
    assert torch.equal(again.features["file"], cloud.features["file"])
    assert torch.equal(again.features["flag"], cloud.features["flag"])


@pytest.mark.parametrize("suffix", ["ply", "pcd", "las", "csv", "xyz"])
def test_vector_columns_are_split(tmp_path, suffix):
    need(suffix)
    cloud = Cloud(torch.rand(5, 3), {"two parts": torch.rand(5, 2), "flag": torch.arange(5) > 2})
    data.write(tmp_path / f"a.{suffix}", cloud)
    again = data.read(tmp_path / f"a.{suffix}").features
    assert same(torch.stack([again["two_parts_0"], again["two_parts_1"]], 1), cloud.features["two parts"])
    assert again["flag"].tolist() == [0, 0, 0, 1, 1]


numbers = st.floats(width=64) | st.floats(-1e7, 1e7).map(lambda x: round(x, 3)) | st.sampled_from([-0.0, 5e-324, 1e300])


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=numbers), st.booleans())
def test_coordinates_are_restored_bit_by_bit(xyz, single):
    """The origin is subtracted and added without rounding: large, small, mixed, negative zero, infinite."""
    with np.errstate(all="ignore"):
        xyz = xyz.astype(np.float32 if single else np.float64)
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.npy")
        np.save(path, xyz)
        cloud = data.read(path)
        data.write(path, cloud)
        again = np.load(path)
    assert again.dtype == xyz.dtype
    finite = ~np.isnan(xyz)
    bits = f"u{xyz.itemsize}"
    assert np.array_equal(again[finite].view(bits), xyz[finite].view(bits))
    assert same(cloud.world(), xyz)
    assert np.isnan(again[~finite]).all()
    assert torch.equal(cloud.origin, cloud.origin.round())


def test_large_coordinates_have_an_origin(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[500_000.25, 5_000_000.5, 3.0], [500_010.0, 5_000_001.0, 900.0]]))
    cloud = data.read(tmp_path / "a.npy")
    assert cloud.origin.tolist() == [500_000, 5_000_000, 0]
    assert cloud.points.tolist() == [[0.25, 0.5, 3.0], [10.0, 1.0, 900.0]]


def test_decimal_text_is_restored(tmp_path):
    lines = ["704519.91 3632189.879 142.255", "0.1 -1e-07 1e+16", "-0.0 nan inf"]
    (tmp_path / "a.xyz").write_text("\n".join(lines) + "\n")
    data.write(tmp_path / "b.xyz", data.read(tmp_path / "a.xyz"))
    assert (tmp_path / "b.xyz").read_text().splitlines() == lines


@pytest.mark.parametrize("order", ["<", ">", "text"])
def test_read_ply_of_plyfile(tmp_path, order):
    plyfile = pytest.importorskip("plyfile")
    rows = np.zeros(
        4, [("x", "f4"), ("y", "f4"), ("z", "f4"), ("intensity", "u2"), ("scalar_Label", "f4"), ("id", "u4")]
    )
    rows["x"], rows["intensity"], rows["scalar_Label"] = [1, 2, 3, 4], [0, 1, 2, 65535], [0, 2, np.nan, 1]
    rows["id"] = 2**32 - 1
    element = plyfile.PlyElement.describe(rows, "vertex")
    faces = np.empty(2, [("vertex_indices", "O")])
    faces["vertex_indices"] = [np.array([0, 1, 2], "i4"), np.array([0, 1, 2, 3], "i4")]
    mesh = plyfile.PlyElement.describe(faces, "face")
    kind = {"text": True} if order == "text" else {"byte_order": order}
    plyfile.PlyData([element, mesh], **kind).write(tmp_path / "a.ply")
    cloud = data.read(tmp_path / "a.ply")
    assert cloud.points.dtype == torch.float32
    assert cloud.points[:, 0].tolist() == [1, 2, 3, 4]
    assert cloud.features["intensity"].tolist() == [0, 1, 2, 65535]
    assert cloud.features["id"].tolist() == [2**32 - 1] * 4
    assert cloud.labels.tolist() == [0, 2, -1, 1]
    assert data.info(tmp_path / "a.ply").faces == 3


@pytest.mark.parametrize("encoding", data.FORMATS["ply"].encodings)
def test_plyfile_reads_written_ply(tmp_path, encoding):
    plyfile = pytest.importorskip("plyfile")
    cloud = a_cloud()
    data.write(tmp_path / "a.ply", cloud, encoding=encoding)
    found = plyfile.PlyData.read(tmp_path / "a.ply")["vertex"].data
    assert np.array_equal(np.stack([found[axis] for axis in "xyz"], 1), cloud.world().numpy())
    assert found["red"].dtype == np.uint8
    assert np.array_equal(found["label"], cloud.labels.numpy())
    assert np.array_equal(found["quality"], cloud.features["quality"].numpy())


def typed_columns(types, count=30):
    """Random columns x, y, z of the first type, and one column of each other type."""
    draw = np.random.default_rng(0)
    names = ["x", "y", "z", *(f"c{place}" for place in range(len(types) - 1))]
    columns = {}
    for name, kind in zip(names, [types[0]] * 3 + list(types[1:]), strict=True):
        is_float = np.dtype(kind).kind == "f"
        columns[name] = (draw.normal(size=count) if is_float else draw.integers(0, 100, count)).astype(kind)
    return columns


def cloud_of(columns):
    points = np.stack([columns[axis] for axis in "xyz"], 1)
    return Cloud(
        torch.from_numpy(points),
        {name: torch.from_numpy(column) for name, column in columns.items() if name not in ("x", "y", "z")},
    )


@pytest.mark.parametrize("types", [("f4",), ("f8", "i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")], ids=str)
@pytest.mark.parametrize(("encoding", "order"), [("binary_little_endian", "<"), ("binary_big_endian", ">")])
def test_written_ply_equals_that_of_plyfile(tmp_path, encoding, order, types):
    """Byte by byte, for all types of PLY."""
    plyfile = pytest.importorskip("plyfile")
    columns = typed_columns(types)
    data.write(tmp_path / "a.ply", cloud_of(columns), encoding=encoding)
    rows = np.rec.fromarrays(list(columns.values()), names=list(columns)).view(np.ndarray)
    plyfile.PlyData([plyfile.PlyElement.describe(rows, "vertex")], byte_order=order).write(tmp_path / "b.ply")
    assert (tmp_path / "a.ply").read_bytes() == (tmp_path / "b.ply").read_bytes()


@pytest.mark.parametrize("types", [("f4",), ("f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8")], ids=str)
@pytest.mark.parametrize("count", [1, 30, 3000])  # LZF does not compress a few points, which are then stored plainly
@pytest.mark.parametrize("encoding", ["binary", "binary_compressed"])
def test_written_pcd_equals_that_of_pypcd4(tmp_path, encoding, types, count):
    """Byte by byte, for all types of PCD."""
    pypcd4 = pytest.importorskip("pypcd4")
    columns = typed_columns(types, count)
    data.write(tmp_path / "a.pcd", cloud_of(columns), encoding=encoding)
    kinds = [column.dtype for column in columns.values()]
    cloud = pypcd4.PointCloud.from_points(tuple(columns.values()), tuple(columns), kinds)
    with open(tmp_path / "b.pcd", "wb") as stream:
        cloud.save(stream, pypcd4.Encoding(encoding))
    assert (tmp_path / "a.pcd").read_bytes() == (tmp_path / "b.pcd").read_bytes()
    assert len(pypcd4.PointCloud.from_path(tmp_path / "a.pcd").pc_data) == count


@pytest.mark.parametrize("encoding", ["ascii", "binary", "binary_compressed"])
def test_exchange_of_pcd_with_pypcd4(tmp_path, encoding):
    pypcd4 = pytest.importorskip("pypcd4")
    xyz = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    rgb = np.arange(150).reshape(50, 3).astype(np.uint8)
    packed = pypcd4.PointCloud.encode_rgb(rgb)  # floats whose bits are the colors
    cloud = pypcd4.PointCloud.from_xyzrgb_points(np.concatenate([xyz, packed.reshape(-1, 1)], 1))
    if encoding == "ascii":  # pypcd4 writes ten decimals, too few for packed colors
        lines = [" ".join(map(repr, map(float, row))) for row in cloud.numpy()]
        head = cloud.metadata.compose_header(pypcd4.Encoding.ASCII)
        (tmp_path / "a.pcd").write_text(head + "\n".join(lines) + "\n")
    else:
        cloud.save(tmp_path / "a.pcd", pypcd4.Encoding(encoding))
    found = data.read(tmp_path / "a.pcd")
    assert np.array_equal(found.points.numpy(), xyz)
    assert np.array_equal(torch.stack([found.features[c] for c in ("red", "green", "blue")], 1).numpy(), rgb)

    data.write(tmp_path / "b.pcd", found, encoding=encoding)
    again = pypcd4.PointCloud.from_path(tmp_path / "b.pcd")
    assert again.fields == ("x", "y", "z", "rgb")
    assert np.array_equal(again.numpy(("x", "y", "z")).astype(np.float32), xyz)
    assert np.array_equal(pypcd4.PointCloud.decode_rgb(again.pc_data["rgb"].view(np.float32)), rgb)


def test_pcd_names_with_an_underscore(tmp_path):
    need("pcd")
    cloud = Cloud(torch.rand(2, 3), {"_3": torch.rand(2), "__": torch.rand(2)})
    data.write(tmp_path / "a.pcd", cloud)
    assert torch.equal(data.read(tmp_path / "a.pcd").features["_3"], cloud.features["_3"])


def test_pcd_with_optional_parts(tmp_path):
    """An organized cloud with padding, a histogram and a comment; and a header without COUNT, HEIGHT and VERSION."""
    head = "# a comment\nVERSION .7\nFIELDS x y z _ hist label\nSIZE 4 4 4 1 2 4\nTYPE F F F U I I\nCOUNT 1 1 1 4 3 1\n"
    head += "WIDTH 2\nHEIGHT 2\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS 4\nDATA binary\n"
    rows = np.zeros(4, [("xyz", "<f4", 3), ("_", "u1", 4), ("hist", "<i2", 3), ("label", "<i4")])
    rows["xyz"], rows["hist"], rows["label"] = np.arange(12).reshape(4, 3), np.arange(12).reshape(4, 3), [0, 1, -1, 2]
    (tmp_path / "a.pcd").write_bytes(head.encode() + rows.tobytes())
    cloud = data.read(tmp_path / "a.pcd")
    assert cloud.points.tolist() == rows["xyz"].tolist()
    assert list(cloud.features) == ["hist"]
    assert cloud.features["hist"].tolist() == rows["hist"].tolist()
    assert cloud.labels.tolist() == [0, 1, -1, 2]
    (tmp_path / "b.pcd").write_text("FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 1\nPOINTS 1\nDATA ascii\n1 2 nan\n")
    assert same(data.read(tmp_path / "b.pcd").points, [[1, 2, np.nan]])


def test_laspy_reads_written_las(tmp_path):
    laspy = pytest.importorskip("laspy")
    cloud = a_cloud()
    for suffix in ("las", "laz"):
        need(suffix)
        data.write(tmp_path / f"a.{suffix}", cloud)
        las = laspy.read(tmp_path / f"a.{suffix}")
        assert np.abs(las.xyz - cloud.world().numpy()).max() < 1e-9
        assert las.header.scales.tolist() == [0.001] * 3
        assert np.array_equal(las.classification, cloud.labels.numpy())
        assert np.array_equal(las.intensity, cloud.features["intensity"].numpy())
        assert np.array_equal(las.red, cloud.features["red"].numpy())
        assert np.array_equal(las.gps_time, cloud.features["gps_time"].numpy())
        assert np.array_equal(las["quality"], cloud.features["quality"].numpy())
        assert las["id"].dtype == np.int64


@pytest.mark.parametrize("scale", [0.01, 0.001, 0.0001, 0.00025, 0.1])
@pytest.mark.parametrize("offset", [0.0, 600_000.0, -1234.5])
def test_las_integers_are_restored(tmp_path, scale, offset):
    """The same integers for common scales and always with `like`, otherwise the same coordinates."""
    laspy = pytest.importorskip("laspy")
    draw = np.random.default_rng(0)
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales, header.offsets = np.full(3, scale), np.full(3, offset)
    header.vlrs.append(laspy.VLR("someone", 77, "", b"a coordinate system"))
    las = laspy.LasData(header)
    las.X, las.Y, las.Z = draw.integers(-(10**6), 10**6, (3, 500)).astype(np.int32)
    las.write(tmp_path / "a.las")
    cloud = data.read(tmp_path / "a.las")
    assert np.array_equal(cloud.world().numpy(), laspy.read(tmp_path / "a.las").xyz)
    data.write(tmp_path / "b.las", cloud)
    again = laspy.read(tmp_path / "b.las")
    assert np.abs(again.xyz - las.xyz).max() <= 4 * np.spacing(np.abs(las.xyz).max())
    if scale in (0.01, 0.001, 0.0001) and offset == 0:
        assert np.array_equal(again.X, las.X)
        assert np.array_equal(again.Z, las.Z)

    data.write(tmp_path / "c.las", cloud, like=tmp_path / "a.las")
    alike = laspy.read(tmp_path / "c.las")
    assert np.array_equal(np.stack([alike.X, alike.Y, alike.Z]), np.stack([las.X, las.Y, las.Z]))
    assert (alike.header.version, alike.header.point_format.id) == (las.header.version, 3)
    assert alike.header.offsets.tolist() == [offset] * 3
    assert [vlr.record_data for vlr in alike.header.vlrs] == [b"a coordinate system"]


def test_las_columns_that_do_not_fit_into_dimensions(tmp_path):
    """Fractional intensity, negative labels and 300 classes are stored as extra bytes and read under their names."""
    laspy = pytest.importorskip("laspy")
    cloud = Cloud(torch.rand(3, 3), {"intensity": torch.tensor([0.25, 0.5, 1.0])}, labels=torch.tensor([-1, 0, 300]))
    data.write(tmp_path / "a.las", cloud)
    again = data.read(tmp_path / "a.las")
    assert again.features["intensity"].tolist() == [0.25, 0.5, 1.0]
    assert again.labels.tolist() == [-1, 0, 300]
    las = laspy.read(tmp_path / "a.las")
    assert "original_intensity" in las.point_format.dimension_names
    assert np.asarray(las.intensity).tolist() == [16384, 32768, 65535]  # for other programs
    data.write(tmp_path / "b.las", Cloud(torch.rand(2, 3), labels=torch.tensor([40, 255])))
    assert np.array(laspy.read(tmp_path / "b.las").classification).tolist() == [40, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.99, 0.5], [0, 64880, 32768]),
        ([3.4, 70_000.0, -5.0], [3, 65535, 0]),
        ([torch.nan, 0.5, 1.0], [0, 32768, 65535]),
        ([0.0, 1.0, 65535.0], [0, 1, 65535]),
    ],
)
def test_las_intensity_for_other_programs(tmp_path, values, expected):
    laspy = pytest.importorskip("laspy")
    data.write(tmp_path / "a.laz", Cloud(torch.rand(3, 3), {"intensity": torch.tensor(values)}))
    assert np.asarray(laspy.read(tmp_path / "a.laz").intensity).tolist() == expected
    again = data.read(tmp_path / "a.laz").features["intensity"]
    assert torch.equal(again.float().nan_to_num(nan=-1), torch.tensor(values).nan_to_num(nan=-1))


@pytest.mark.parametrize("suffix", ["off", "obj", "stl"])
def test_read_meshes_of_trimesh(tmp_path, suffix):
    trimesh = pytest.importorskip("trimesh")
    mesh = trimesh.creation.icosphere(2)
    mesh.export(tmp_path / f"a.{suffix}")
    found = data.info(tmp_path / f"a.{suffix}")
    assert (found.points, found.faces) == (len(mesh.vertices), len(mesh.faces))
    cloud = data.read(tmp_path / f"a.{suffix}", sample=500)
    radius = cloud.points.norm(dim=1)
    assert len(cloud) == 500
    assert 0.95 < radius.min() < radius.max() < 1 + 1e-6
    if suffix != "stl":
        assert np.allclose(data.read(tmp_path / f"a.{suffix}").points.numpy(), mesh.vertices, atol=1e-6)


def test_trimesh_reads_written_files(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    cloud = bare(a_cloud())
    for suffix in ("off", "obj", "ply"):
        need(suffix)
        data.write(tmp_path / f"a.{suffix}", cloud)
        found = trimesh.load(tmp_path / f"a.{suffix}", process=False)
        assert np.array_equal(found.vertices, cloud.world().numpy())


def test_stl_is_sampled_in_both_encodings(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    box = trimesh.creation.box()
    (tmp_path / "a.stl").write_bytes(trimesh.exchange.stl.export_stl(box))
    (tmp_path / "b.stl").write_text(trimesh.exchange.stl.export_stl_ascii(box))
    for name, dtype in (("a.stl", torch.float32), ("b.stl", torch.float64)):
        cloud = data.read(tmp_path / name)
        assert (len(cloud), cloud.points.dtype) == (10_000, dtype)
        assert torch.allclose(cloud.points.abs().amax(1), torch.tensor(0.5, dtype=dtype))
        found = data.info(tmp_path / name)
        assert (found.points, found.faces) == (8, 12)


def test_sweeps(tmp_path):
    rows = np.random.default_rng(0).random((7, 5)).astype(np.float32)
    rows[:, :4].tofile(tmp_path / "a.bin")
    rows.tofile(tmp_path / "a.pcd.bin")
    kitti, nuscenes = data.read(tmp_path / "a.bin"), data.read(tmp_path / "a.pcd.bin")
    assert np.array_equal(kitti.features["intensity"].numpy(), rows[:, 3])
    assert np.array_equal(nuscenes.points.numpy(), rows[:, :3])
    assert np.array_equal(nuscenes.features["ring"].numpy(), rows[:, 4])
    named = data.read(tmp_path / "a.pcd.bin", format="bin", columns="x y z r t")
    assert list(named.features) == ["r", "t"]


def test_alternative_names_of_arrays(tmp_path):
    h5py = pytest.importorskip("h5py")
    xyz, label = np.random.default_rng(0).random((6, 3)), np.arange(6, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", xyz=xyz, label=label, color=xyz.astype(np.float16))
    cloud = data.read(tmp_path / "a.npz")
    assert np.array_equal(cloud.points.numpy(), xyz)
    assert cloud.labels.tolist() == label.tolist()
    assert cloud.features["color"].dtype == torch.float32
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["z"] = xyz.T
        file["more/strange name"] = label
    cloud = data.read(tmp_path / "a.h5", labels="more/strange name")
    assert np.array_equal(cloud.points.numpy(), xyz)
    assert cloud.labels.tolist() == label.tolist()
    np.save(tmp_path / "a.npy", np.asfortranarray(np.arange(20).reshape(4, 5)))
    cloud = data.read(tmp_path / "a.npy")
    assert cloud.points.tolist() == [[0, 1, 2], [5, 6, 7], [10, 11, 12], [15, 16, 17]]
    assert cloud.features["column5"].tolist() == [4, 9, 14, 19]


@pytest.mark.parametrize(
    "text",
    [
        "1 2 3 4 5\n6 7 8 9 10\n",
        "# x y z class t\n1 2 3 4 5\n\n# comment\n6 7 8 9 10",
        "//X Y Z Class T\n1 2 3 4 5\n6 7 8 9 10\n",
        "x,y,z,class,t\n1,2,3,4,5\n6,7,8,9,10\n",
        '"x"; "y"; "z"; "class"; "t"\r\n1; 2; 3; 4; 5\r\n6; 7; 8; 9; 10\r\n',
        "\ufeffx\ty\tz\tclass\tt\n1\t2\t3\t4\t5\n6\t7\t8\t9\t10\n",
        "  1.0   2.0 3e0 4 5 \n  6 7 8 9 10   \n",
        "t,class,z,y,x\n5,4,3,2,1\n10,9,8,7,6\n",
    ],
)
def test_variants_of_text(tmp_path, text):
    for suffix, raw in (("txt", text.encode()), ("csv.gz", gzip.compress(text.encode()))):
        (tmp_path / f"a.{suffix}").write_bytes(raw)
        named = text[0].isdigit() or text[0] == " "
        cloud = data.read(tmp_path / f"a.{suffix}", columns="x y z class t" if named else None)
        assert cloud.points.tolist() == [[1, 2, 3], [6, 7, 8]]
        assert cloud.labels.tolist() == [4, 9]
        (column,) = cloud.features.values()
        assert column.tolist() == [5, 10]
        assert column.dtype == torch.int64


def test_text_columns_without_names(tmp_path):
    (tmp_path / "a.txt").write_text("# written in 2024\n1 2 3 0.5 9007199254740993\n4 5 6 1 -7\n")
    cloud = data.read(tmp_path / "a.txt")
    assert cloud.features["column4"].tolist() == [0.5, 1.0]
    assert cloud.features["column5"].tolist() == [9007199254740993, -7]  # float64 would round it to ...992


def test_text_columns_with_integers_only_at_the_beginning(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z,a,b,c,xy\n0,0,0,1,1,1,1\n0,0,0,inf,1e300,99999999999999999999,2\n")
    found = data.read(tmp_path / "a.csv").features
    assert [found[name].dtype for name in ("a", "b", "c", "xy")] == [torch.float64] * 3 + [torch.int64]
    assert found["b"].tolist() == [1, 1e300]


def test_gzip_is_detected_by_its_first_bytes(tmp_path):
    (tmp_path / "a.bak").write_bytes(gzip.compress(b"1 2 3\n"))
    assert data.read(tmp_path / "a.bak", format="txt").points.tolist() == [[1, 2, 3]]


def test_label_columns(tmp_path):
    def labels(text, **options):
        (tmp_path / "a.csv").write_text(text)
        cloud = data.read(tmp_path / "a.csv", **options)
        return (None if cloud.labels is None else cloud.labels.tolist()), list(cloud.features)

    assert labels("x,y,z,class,label\n0,0,0,1,2\n") == ([2], ["class"])
    assert labels("x,y,z,class,label\n0,0,0,1,2\n", labels="class") == ([1], ["label"])
    assert labels("x,y,z,Classification\n0,0,0,nan\n1,1,1,3.0\n") == ([-1, 3], [])
    assert labels("x,y,z,label\n0,0,0,0.5\n") == (None, ["label"])
    assert labels("x,y,z,tree\n0,0,0,7\n", labels="tree") == ([7], [])
    with pytest.raises(data.FileError, match=r"a.csv: expected a column kind for the labels, found tree"):
        labels("x,y,z,tree\n0,0,0,7\n", labels="kind")
    with pytest.raises(data.FileError, match="expected integers in the label column tree"):
        labels("x,y,z,tree\n0,0,0,7.5\n", labels="tree")


CORNERS = "0 0 0\n3 0 0\n0 2 0\n0 0 5\n"


@pytest.mark.parametrize(
    ("text", "features"),
    [
        (f"OFF\n4 1 0\n{CORNERS}3 0 1 2\n", {}),
        (f"OFF4 1 0\n{CORNERS}3 0 1 2\n", {}),
        (f"OFF 4 1\n# comment\n\n{CORNERS}3 0 1 2 255 0 0 # red\n", {}),
        ("COFF\n2 0 0\n0 0 0 255 0 7 255\n1 1 1 0 1 2 3\n", {"red": [255, 0], "alpha": [255, 3]}),
        ("COFF\n2 0 0\n0 0 0 0.5 0 1\n1 1 1 0 1 1\n", {"red": [0.5, 0]}),
        ("NOFF\n2 0 0\n0 0 0 0 0 1\n1 1 1 0 1 0\n", {"nz": [1, 0]}),
        ("CNOFF\n1 0 0\n0 0 0 0 0 1 9 8 7\n", {"nz": [1], "green": [8]}),
    ],
)
def test_variants_of_off(tmp_path, text, features):
    (tmp_path / "a.off").write_text(text)
    cloud = data.read(tmp_path / "a.off")
    assert len(cloud) == int(text.lstrip("CNOF").split()[0])
    for name, values in features.items():
        assert cloud.features[name].tolist() == values
    if "3 0 1 2" in text:
        flat = data.read(tmp_path / "a.off", sample=100).points
        assert (flat[:, 2] == 0).all()
        assert (flat[:, 0] / 3 + flat[:, 1] / 2).max() <= 1


def test_variants_of_obj(tmp_path):
    text = "# comment\nmtllib a.mtl\no thing\nv 0 0 0 1 0 0\nv 1 0 0 0 1 0\nv 1 1 0 0 0 1\nv 0 1 0 1 1 1\n"
    text += "vn 0 0 1\nvn 0 0 1\nvn 0 0 1\nvn 0 0 1\nvt 0 0\nusemtl red\nf 1/1/1 2/1/2 \\\n3//3 -1\n"
    (tmp_path / "a.obj").write_text(text)
    cloud = data.read(tmp_path / "a.obj")
    assert cloud.points.tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]
    assert cloud.features["green"].tolist() == [0, 1, 0, 1]
    assert cloud.features["nz"].tolist() == [1, 1, 1, 1]
    square = data.read(tmp_path / "a.obj", sample=4000, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(square.points.mean(0), torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), atol=0.03)
    # A sample has the columns of the nearest corner of its triangle.
    corner = (square.points[:, 0] < 0.3) & (square.points[:, 1] < 0.3)
    assert (square.features["red"][corner] == 1).all()


def test_obj_with_tabs_and_negative_indices(tmp_path):
    (tmp_path / "a.obj").write_text("v\t0 0 0\nv 1\t0 0\nv 0 1 0\nf -3 -2 -1\nv 9 9 9\nv 8 8 8\n")
    assert len(data.read(tmp_path / "a.obj")) == 5
    assert data.read(tmp_path / "a.obj", sample=50).points.max() <= 1


def test_samples_are_uniform_by_area(tmp_path):
    """Two triangles of area 1 and 3, and three of the four congruent parts of the second."""
    (tmp_path / "a.off").write_text("OFF\n6 2 0\n0 0 0\n2 0 0\n0 1 0\n0 0 9\n3 0 9\n0 2 9\n3 0 1 2\n3 3 4 5\n")
    count = 40_000
    draw = torch.Generator().manual_seed(3)
    points = data.read(tmp_path / "a.off", sample=count, generator=draw).points
    upper = points[points[:, 2] > 8]
    assert abs(len(upper) - 0.75 * count) < 5 * (count * 0.75 * 0.25) ** 0.5
    u, v = upper[:, 0] / 3, upper[:, 1] / 2
    for part in ((u > 0.5), (v > 0.5), (u + v < 0.5)):
        assert abs(int(part.sum()) - len(upper) / 4) < 5 * (len(upper) * 0.25 * 0.75) ** 0.5
    again = data.read(tmp_path / "a.off", sample=count, generator=draw.manual_seed(3)).points
    assert torch.equal(points, again)


def test_sampling_a_cloud_selects_its_points(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(30.0).reshape(10, 3))
    cloud = data.read(tmp_path / "a.npy", sample=10)
    assert sorted(cloud.points[:, 0].tolist()) == [3.0 * i for i in range(10)]
    with pytest.raises(data.FileError, match="at least 11 points to sample from, found 10 and no faces"):
        data.read(tmp_path / "a.npy", sample=11)


@pytest.mark.parametrize(("suffix", "encoding"), ENCODINGS)
def test_full_disk_keeps_the_existing_file(tmp_path, suffix, encoding):
    """A limit on the file size makes writing fail as a full disk does."""
    need(suffix)
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"precious")
    cloud = bare(a_cloud(3000)) if data.FORMATS[suffix].holds is not None else a_cloud(3000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(data.FileError) as caught:
            data.write(path, cloud, encoding=encoding, lossy=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value).startswith(f"{path}: expected a file that can be written")
    assert os.strerror(errno.EFBIG) in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"precious"


def test_file_keeps_its_mode_and_link_is_replaced(tmp_path):
    cloud = Cloud(torch.rand(2, 3))
    data.write(tmp_path / "new.xyz", cloud)
    (tmp_path / "plain").touch()
    assert (tmp_path / "new.xyz").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "new.xyz").chmod(0o640)
    (tmp_path / "link.xyz").symlink_to("new.xyz")
    before = (tmp_path / "new.xyz").read_bytes()
    data.write(tmp_path / "link.xyz", Cloud(torch.ones(1, 3)))
    assert not (tmp_path / "link.xyz").is_symlink()
    assert (tmp_path / "new.xyz").read_bytes() == before
    data.write(tmp_path / "new.xyz", Cloud(torch.ones(1, 3)))
    assert stat.S_IMODE((tmp_path / "new.xyz").stat().st_mode) == 0o640
    assert (tmp_path / "new.xyz").read_text() == "1.0 1.0 1.0\n"


@pytest.mark.parametrize(
    ("name", "cloud", "options", "reason"),
    [
        (
            "a.off",
            Cloud(torch.rand(2, 3), {"t": torch.rand(2)}),
            {},
            "expected only x, y, z for off, got t \\(dropped if lossy\\)",
        ),
        ("a.obj", Cloud(torch.rand(2, 3), labels=torch.zeros(2)), {}, "expected only x, y, z for obj, got label"),
        ("a.bin", Cloud(torch.rand(2, 3, dtype=torch.float64)), {}, "expected coordinates that float32 can represent"),
        ("a.stl", Cloud(torch.rand(2, 3)), {}, "expected a format that can be written, got stl"),
        ("a.ply", Cloud(torch.rand(2, 3)), {"encoding": "utf-8"}, "expected the encoding binary_little_endian or "),
        ("a.npy", Cloud(torch.rand(2, 3)), {"encoding": "ascii"}, "expected no encoding for npy, got 'ascii'"),
        ("a.ply", Cloud(torch.rand(2, 3)), {"like": "b.las"}, "expected like only for las and laz, got b.las"),
        ("a.las", Cloud(torch.rand(2, 3)), {"like": "b.las"}, "b.las: expected a LAS file as template"),
        ("a.ply", Cloud(torch.rand(0, 3)), {}, "expected at least one point to write, got none"),
        ("a.ply", Cloud(torch.rand(1, 3), {"X": torch.rand(1)}), {}, "feature names other than x, y, z, got x"),
        ("a.ply", Cloud(torch.rand(1, 3), {"größe": torch.rand(1)}), {}, "expected column names in ASCII.*got 'größe'"),
        ("a.ply", Cloud(torch.rand(1, 3), {"": torch.rand(1)}), {}, "expected column names in ASCII.*got ''"),
        ("a.csv", Cloud(torch.rand(1, 3), {"a b": torch.rand(1), "a_b": torch.rand(1)}), {}, "got a_b twice"),
        ("a.ply", Cloud(torch.rand(1, 3), {"big": torch.tensor([2**60])}), {}, "integers that PLY can store in big"),
        ("a.las", Cloud(torch.tensor([[0.0, torch.nan, 0.0]])), {}, "expected finite coordinates"),
        ("a.las", Cloud(torch.tensor([[0.0, 0.0, 0.0], [1e30, 0.0, 0.0]])), {}, "expected coordinates within"),
        ("a.npz", Cloud(torch.rand(1, 3), {"points": torch.rand(1)}), {}, "feature names other than points"),
        ("a.e57", Cloud(torch.rand(1, 3)), {}, "expected a format that can be written, got e57"),
        ("a.copc.laz", Cloud(torch.rand(1, 3)), {}, "expected another name: cloud-optimized files cannot be written"),
        ("a.dxf", Cloud(torch.rand(1, 3)), {}, "expected one of the formats ply, pcd, las, .* got dxf"),
        ("folder.ply", Cloud(torch.rand(1, 3)), {}, "expected a file that can be written, got: Is a folder"),
        ("no/a.ply", Cloud(torch.rand(1, 3)), {}, "No such file or directory"),
    ],
)
def test_write_errors(tmp_path, name, cloud, options, reason):
    need(name.rpartition(".")[2])
    (tmp_path / "folder.ply").mkdir()
    with pytest.raises(data.FileError, match=reason) as caught:
        data.write(tmp_path / name, cloud, **options)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.ply"]


def test_lossy_drops_columns_and_rounds(tmp_path):
    cloud = a_cloud(4)
    data.write(tmp_path / "a.off", cloud, lossy=True)
    assert torch.equal(data.read(tmp_path / "a.off").world(), cloud.world())
    data.write(tmp_path / "a.bin", cloud, lossy=True)
    assert torch.equal(data.read(tmp_path / "a.bin").world(), cloud.world().float().double())
    assert set(data.read(tmp_path / "a.bin").features) == {"intensity"}


def test_missing_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.las").write_bytes(b"LASF")
    monkeypatch.setitem(sys.modules, "laspy", None)
    with pytest.raises(ModuleNotFoundError, match=r"a.las: needs laspy: pip install 'pointgrad\[io\]'"):
        data.read(tmp_path / "a.las")


def test_ply_and_pcd_do_not_need_the_test_oracles(tmp_path, monkeypatch):
    need("pcd")
    for package in ("plyfile", "pypcd4"):
        monkeypatch.setitem(sys.modules, package, None)
    for suffix in ("ply", "pcd"):
        for encoding in data.FORMATS[suffix].encodings:
            data.write(tmp_path / f"a.{suffix}", a_cloud(20), encoding=encoding)
            assert len(data.read(tmp_path / f"a.{suffix}")) == 20


def test_doctests():
    for module in pkgutil.iter_modules(pointgrad.data.files.__path__, "pointgrad.data.files."):
        result = doctest.testmod(importlib.import_module(module.name))
        assert result.failed == 0

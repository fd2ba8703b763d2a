"""Truncated, damaged, empty and wrong files: a one-line error that names the file, and never fewer points."""

import gzip
import io
import os
import pickle
import random
import struct
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.data import Cloud

COUNT = 40
PACKAGES = {"pcd": "lzf", "las": "laspy", "laz": "lazrs", "h5": "h5py", "hdf5": "h5py"}
KINDS = {
    "little.ply": {"encoding": "binary_little_endian"},
    "big.ply": {"encoding": "binary_big_endian"},
    "text.ply": {"encoding": "ascii"},
    "packed.pcd": {"encoding": "binary_compressed"},
    "binary.pcd": {"encoding": "binary"},
    "text.pcd": {"encoding": "ascii"},
    "a.las": {},
    "a.laz": {},
    "a.off": {},
    "a.obj": {},
    "binary.stl": {},
    "text.stl": {},
    "a.xyz": {},
    "a.csv": {},
    "a.txt.gz": {},
    "a.npy": {},
    "a.npz": {},
    "a.bin": {},
    "a.pcd.bin": {},
    "a.h5": {},
}
# Formats without a count of points: a file truncated between two points is still valid.
UNCOUNTED = ("a.xyz", "a.csv", "a.obj", "a.bin", "a.pcd.bin")


def suffix(name):
    return name.partition(".")[2]


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """The bytes of a valid file of each kind."""
    folder = tmp_path_factory.mktemp("good")
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(COUNT, 3, generator=draw)
    columns = {
        "intensity": torch.randint(0, 256, (COUNT,), generator=draw).float(),
        "ring": torch.randint(0, 32, (COUNT,), generator=draw).float(),
    }
    found = {}
    for name, options in KINDS.items():
        if suffix(name) in PACKAGES and not _installed(PACKAGES[suffix(name)]):
            continue
        if name.endswith("stl"):
            found[name] = _stl(points.numpy(), name.startswith("text"))
            continue
        holds = data.FORMATS[suffix(name)].holds
        features = {key: column for key, column in columns.items() if holds is None or key in holds}
        labels = torch.arange(COUNT) % 4 if holds is None else None
        data.write(folder / name, Cloud(points, features, labels), **options)
        found[name] = (folder / name).read_bytes()
    return found


def _installed(package):
    try:
        __import__(package)
    except ModuleNotFoundError:
        return False
    return True


def _stl(points, text):
    triangles = points[: COUNT // 3 * 3].reshape(-1, 3, 3)
    if text:
        facets = "".join(
            "facet normal 0 0 1\nouter loop\n"
            + "".join(f"vertex {x} {y} {z}\n" for x, y, z in corners)
            + "endloop\nendfacet\n"
            for corners in triangles
        )
        return f"solid a\n{facets}endsolid a\n".encode()
    rows = [struct.pack("<12fH", 0, 0, 1, *corners.ravel(), 0) for corners in triangles]
    return b"a comment".ljust(80) + struct.pack("<I", len(rows)) + b"".join(rows)


def refused(path, **options):
    """Read a file, which must raise a FileError, and return its message: one line that begins with the path."""
    with pytest.raises(data.FileError) as caught:
        data.read(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}: expected ")
    assert "\n" not in message
    if not options:
        with pytest.raises(data.FileError) as caught:
            data.info(path)
        assert str(caught.value).partition("got: ")[0] == message.partition("got: ")[0]
    return message


def attempt(path):
    """Read a file. Returns None if that raises a FileError with a well-formed message."""
    try:
        return data.read(path, sample=20 if path.suffix == ".stl" else 0)
    except data.FileError as error:
        message = str(error)
        assert message.startswith(f"{path}: expected ")
        assert "\n" not in message
        return None


@pytest.fixture(params=KINDS)
def original(request, originals, tmp_path):
    if request.param not in originals:
        pytest.skip(f"{PACKAGES[suffix(request.param)]} is not installed")
    return tmp_path / request.param, originals[request.param]


def test_undamaged_files_are_read(original):
    path, raw = original
    path.write_bytes(raw)
    assert len(data.read(path)) == (10_000 if path.suffix == ".stl" else COUNT)


def test_truncated_files(original):
    """An error, never silently fewer points."""
    path, raw = original
    places = {0, 1, 2, 4, 10, 50, 100, 200, 300, 400, len(raw) // 2, len(raw) - 1, len(raw) - 2, len(raw) - 9}
    places |= {int(len(raw) * part) for part in np.linspace(0.05, 0.99, 20)}
    for place in sorted(place for place in places if place < len(raw)):
        path.write_bytes(raw[:place])
        cloud = attempt(path)
        if path.name in UNCOUNTED:
            assert cloud is None or len(cloud) <= COUNT
        elif cloud is not None:  # the last digits or the last newline of a text file may be missing
            assert raw[place:].count(b"\n") <= 1
            assert len(cloud) == (20 if path.suffix == ".stl" else COUNT)


def test_trailing_bytes(original):
    """A count that is too small must not drop points. LAZ, HDF5 and ZIP have tables and may ignore trailing bytes."""
    path, raw = original
    path.write_bytes(raw + raw[-60:])
    cloud = attempt(path)
    assert cloud is None or path.name in UNCOUNTED or suffix(path.name) in ("laz", "h5", "npz")


def test_flipped_bits(original):
    """Reading returns a cloud or raises an error, but never crashes, hangs or loses points."""
    path, raw = original
    draw = random.Random(path.name)
    for _ in range(60):
        damaged = bytearray(raw)
        for _ in range(draw.choice((1, 1, 2, 5))):
            place = draw.randrange(min(len(raw), draw.choice((400, len(raw)))))
            damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        cloud = attempt(path)
        if cloud is not None and path.name not in UNCOUNTED and path.suffix not in (".stl", ".laz"):
            assert len(cloud) == COUNT


def test_replaced_bytes(original):
    path, raw = original
    draw = random.Random(path.name)
    for _ in range(30):
        start = draw.randrange(len(raw))
        filling = bytes(draw.randrange(256) for _ in range(draw.randrange(40)))
        path.write_bytes(raw[:start] + filling + raw[start + draw.randrange(40) :])
        attempt(path)


@pytest.mark.parametrize("name", KINDS)
def test_files_that_are_not_point_clouds(tmp_path, name):
    if suffix(name) in PACKAGES:
        pytest.importorskip(PACKAGES[suffix(name)])
    path = tmp_path / name
    assert "No such file" in refused(path)
    path.mkdir()
    assert refused(path).endswith("expected a file, found a folder")
    path.rmdir()
    path.touch()
    assert refused(path).endswith("expected a file with points, found an empty one")
    draw = random.Random(0)
    for size in (1, 7, 83, 1001):
        path.write_bytes(bytes(draw.randrange(256) for _ in range(size)))
        attempt(path)
    path.write_text("Dear reader,\nthis is a letter.\n")
    if not name.endswith("bin"):
        refused(path)


def test_no_permission(tmp_path):
    path = tmp_path / "a.xyz"
    path.write_text("1 2 3\n")
    path.chmod(0)
    tmp_path.chmod(0o555)
    user = os.geteuid()
    if user == 0:  # root may read everything
        os.seteuid(65534)
    try:
        assert "Permission denied" in refused(path)
        with pytest.raises(data.FileError, match=r"b.xyz: expected a file that can be written, got: Permission denied"):
            data.write(tmp_path / "b.xyz", Cloud(torch.rand(1, 3)))
    finally:
        os.seteuid(user)


def test_wrong_suffix(originals, tmp_path):
    alike = ({"csv", "xyz"}, {"csv", "txt.gz"}, {"las", "laz"})
    for name, raw in originals.items():
        for other in ("ply", "pcd", "las", "off", "obj", "stl", "csv", "npy", "npz", "h5"):
            installed = other not in PACKAGES or _installed(PACKAGES[other])
            if installed and other != suffix(name) and {other, suffix(name)} not in alike:
                (tmp_path / f"a.{other}").write_bytes(raw)
                refused(tmp_path / f"a.{other}")
    path = tmp_path / "a.dxf"
    path.write_bytes(b"x")
    assert "expected one of the formats ply, pcd, las, laz, e57, off, obj, stl, xyz" in refused(path)
    path = tmp_path / "README"
    path.write_bytes(b"x")
    assert refused(path).endswith("got no suffix")


HUGE = 10**18


@pytest.mark.parametrize("count", [-1, HUGE, 10**30, 2**31, 39, 41, 0, "many", "1e3", "4_0"])
@pytest.mark.parametrize("name", ["little.ply", "text.ply", "packed.pcd", "binary.pcd", "text.pcd", "a.off", "a.npy"])
def test_wrong_counts(originals, tmp_path, name, count):
    """Negative, huge (must not be allocated), one too few, one too many, and not a number."""
    if name not in originals:
        pytest.skip("its package is not installed")
    old = {"ply": b"vertex 40", "pcd": b"WIDTH 40", "off": b"40 0 0", "npy": b"(40,)"}[suffix(name)]
    raw = originals[name].replace(old, old.replace(b"40", str(count).encode()))
    if suffix(name) == "pcd":
        raw = raw.replace(b"POINTS 40", f"POINTS {count}".encode())
    assert raw != originals[name]
    path = tmp_path / name
    path.write_bytes(raw)
    refused(path)


@pytest.mark.parametrize("suffix", ["las", "laz"])
@pytest.mark.parametrize("number", [1, 6])
@pytest.mark.parametrize("count", [0, 39, 41, 2**31, 2**32 - 1])
def test_wrong_counts_in_las(tmp_path, suffix, number, count):
    """LAZ chunks before point format 6 do not store their number of points: only whole missing chunks are detected."""
    laspy = pytest.importorskip("laspy")
    if suffix == "laz":
        pytest.importorskip("lazrs")
    las = laspy.LasData(laspy.LasHeader(point_format=number, version="1.2" if number == 1 else "1.4"))
    las.x = las.y = las.z = np.random.default_rng(0).random(COUNT)
    path = tmp_path / f"a.{suffix}"
    las.write(path)
    raw = bytearray(path.read_bytes())
    place, layout = (107, "<I") if number == 1 else (247, "<Q")
    assert struct.unpack_from(layout, raw, place) == (COUNT,)
    struct.pack_into(layout, raw, place, count)
    path.write_bytes(raw)
    if suffix == "laz" and number == 1 and count == 39:
        assert len(data.read(path)) == count
    else:
        refused(path)


def test_wrong_chunk_tables_in_laz(originals, tmp_path):
    """Number of chunks, size of chunks and number of records, which would make the decoder abort the process."""
    if "a.laz" not in originals:
        pytest.skip("lazrs is not installed")
    good = originals["a.laz"]
    _, start, _ = struct.unpack_from("<HII", good, 94)
    (table,) = struct.unpack_from("<q", good, start)
    chunk_size = good.index(b"laszip encoded") - 2 + 54 + 12
    assert struct.unpack_from("<I", good, chunk_size) == (50_000,)
    for place, layout, value in (
        (table + 4, "<I", 2**32 - 1),
        (start, "<q", HUGE),
        (start, "<q", -1),
        (chunk_size, "<I", 2**32 - 2),
        (chunk_size, "<I", 0),
        (100, "<I", 2**32 - 1),
        (96, "<I", 2**32 - 1),
    ):
        raw = bytearray(good)
        struct.pack_into(layout, raw, place, value)
        (tmp_path / "a.laz").write_bytes(raw)
        refused(tmp_path / "a.laz")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 2 3\n4 5\n", "expected 3 numbers on every line, found: the number of columns changed from 3 to 2 at row 2"),
        ("1 2 3\n4 5 6 7\n", "changed from 3 to 4"),
        ("1 2 3\n4 five 6\n", "could not convert string 'five'"),
        ("1 2\n3 4\n", "expected columns x, y, z, found x, y"),
        ("a,b,c\n1,2,3\n", "expected columns x, y, z, found a, b, c"),
        ("x,y,z\n1,2,3,4\n", "expected 3 columns, as named in the header, found 4"),
        ("x,y,z,x\n1,2,3,4\n", "expected unique column names, found x y z x"),
        ("x y z\n", "expected lines of numbers, found none"),
        ("# nothing\n\n", "expected lines of numbers, found none"),
        ("x,y,z\n1,,3\n", "could not convert string '' to float64 at row 0, column 2"),
        ("x;y;z\n1,5;2,5;3,5\n", "could not convert string '1,5'"),
        ("one\ntwo\n1 2 3\n", "expected numbers, found line 2: 'two'"),
    ],
)
def test_bad_text(tmp_path, text, reason):
    (tmp_path / "a.csv").write_text(text)
    assert reason in refused(tmp_path / "a.csv")


def test_bad_columns(tmp_path):
    (tmp_path / "a.txt").write_text("1 2 3 4\n")
    assert "expected 5 columns (x y z a b), found 4: '1 2 3 4'" in refused(tmp_path / "a.txt", columns="x y z a b")
    assert "expected columns x, y, z, found a, b, c, d" in refused(tmp_path / "a.txt", columns=["a", "b", "c", "d"])
    np.save(tmp_path / "a.npy", np.zeros((2, 4)))
    assert "expected 3 columns (x y z), found 4" in refused(tmp_path / "a.npy", columns="x y z")
    (tmp_path / "a.off").write_text("OFF\n1 0 0\n1 2 3\n")
    assert "expected no column names for off" in refused(tmp_path / "a.off", columns="x y z")
    assert "expected sample to be at least 0, got -1" in refused(tmp_path / "a.off", sample=-1)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.off", "OFF\n", "expected the counts of vertices, faces and edges, found ''"),
        ("a.off", "OFF BINARY\n1 0 0\n", "expected OFF, COFF, NOFF or CNOFF in text"),
        ("a.off", "OFF\n2 0 0\n1 2 3\n", "expected 2 vertices, but the file ends after 1"),
        ("a.off", "OFF\n1 2 0\n1 2 3\n1 0\n", "expected 2 faces, as declared in the header, found 1"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 3\n", "expected faces of vertices 0 to 2, found 3"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n4 0 1 2\n", "expected a face as its number of vertices"),
        ("a.off", "OFF\n1 0 0\n1 2\n", "expected 3 numbers per vertex of OFF, found 2"),
        ("a.off", "OFF\n1 0 0\n1 2 x\n", "expected vertices as numbers"),
        ("a.obj", "v 1 2\n", "expected 3, 4, 6 or 7 numbers for a vertex, found 2"),
        ("a.obj", "f 1 2 3\n", "expected lines v with vertices, found none"),
        ("a.obj", "v 1 2 3\nf 1 2 3\n", "expected faces of vertices 0 to 0, found 2"),
        ("a.obj", "v 1 2 3\nf 0 1 1\n", "expected a face as indices of vertices"),
        ("a.obj", "v 1 2 3\nhello\n", "expected an OBJ statement, found line 2: 'hello'"),
        ("a.stl", "solid a\nfacet\nvertex 1 2 3\n", "expected 3 vertices in each facet, found 1 in 1"),
        ("a.stl", "solid a\nendsolid\n", "expected at least one point, found none"),
        ("a.pcd", "VERSION 0.7\n", "expected a PCD header that ends with DATA, found the end of the file"),
        ("a.pcd", "FIELDS x y\nSIZE 4 4\nTYPE F F\nWIDTH 1\nPOINTS 1\nDATA ascii\n1 2\n", "expected columns x, y, z"),
        ("a.pcd", "FIELDS x y z\nSIZE 4 4\nTYPE F F F\nWIDTH 1\nPOINTS 1\nDATA ascii\n1 2 3\n", "expected one SIZE"),
        ("a.pcd", "FIELDS x\nSIZE 3\nTYPE F\nWIDTH 1\nPOINTS 1\nDATA ascii\n1\n", "expected numbers of type F, I or U"),
        ("a.pcd", "FIELDS x\nSIZE 4\nTYPE F\nCOUNT 999999999\nWIDTH 1\nPOINTS 1\nDATA ascii\n1\n", "expected a COUNT"),
        ("a.pcd", "FIELDS x\nSIZE 4\nTYPE F\nWIDTH 1\nHEIGHT 2\nPOINTS 1\nDATA ascii\n1\n", "expected WIDTH times"),
        ("a.ply", "ply\nformat ascii 1.0\nend_header\n", "expected an element vertex, found none"),
        ("a.ply", "ply\nformat ascii 1.0\nelement vertex 0\nproperty float x\nend_header\n", "expected "),
        ("a.ply", "ply\nformat ascii 1.0\nelement vertex 1\nproperty list uchar int x\nend_header\n1 2\n", "list x"),
        ("a.ply", "ply\nformat ascii 1.0\nelement vertex 2\nproperty int x\nend_header\n1\n", "file ends after 1"),
        ("a.ply", "ply\nformat ascii 1.0\nelement vertex 1\nproperty uchar x\nend_header\n300\n", "expected "),
    ],
)  # fmt: skip
def test_bad_headers_and_rows(tmp_path, name, text, reason):
    if suffix(name) in PACKAGES:
        pytest.importorskip(PACKAGES[suffix(name)])
    (tmp_path / name).write_text(text)
    assert reason in refused(tmp_path / name)


class Bomb:
    """Unpickling it creates a folder."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


def test_nothing_is_unpickled(tmp_path):
    mark = tmp_path / "mark"
    np.save(tmp_path / "a.npy", np.array([Bomb(mark)] * 3, dtype=object), allow_pickle=True)
    assert "Python objects" in refused(tmp_path / "a.npy")
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Bomb(mark)))
    refused(tmp_path / "b.npy")
    np.savez(tmp_path / "a.npz", points=np.zeros((3, 3)), extra=np.array([Bomb(mark)] * 3, dtype=object))
    assert "Python objects in extra" in refused(tmp_path / "a.npz")
    assert not mark.exists()


def _npz(path, **members):
    """Write an archive with the given bytes of each member."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in members.items():
            archive.writestr(f"{name}.npy", raw)


def _header(shape, dtype="<f8"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_archives_with_too_large_arrays(tmp_path, monkeypatch):
    """Shapes of 10^18 without data, and real data (64 MB compressed to 64 kB) that does not fit in memory."""
    path = tmp_path / "a.npz"
    _npz(path, points=_header((HUGE, 3)) + bytes(240))
    assert f"expected {HUGE * 24} bytes for points ({HUGE}, 3), found 240" in refused(path)
    _npz(path, points=_header((-1, 3)) + bytes(240))
    refused(path)
    zeros = bytes(64 * 2**20 - 128)
    _npz(path, points=_header((len(zeros) // 24, 3)) + zeros[: len(zeros) // 24 * 24])
    assert path.stat().st_size < 2**17
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8192}[name])
    assert "expected arrays to fit in memory (0.0312 GiB), found 0.0625 GiB" in refused(path)
    (tmp_path / "a.xyz.gz").write_bytes(gzip.compress(b"0 0 0\n" * 2**20))
    assert "to fit in memory" in refused(tmp_path / "a.xyz.gz")
    (tmp_path / "a.npy").write_bytes(_header((HUGE, 3)))
    assert f"expected {HUGE * 24} bytes for the array" in refused(tmp_path / "a.npy")


def test_huge_datasets_in_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("points", (10**12, 3), "f8", chunks=(1000, 3))  # no data is stored
    expected = "expected points of at most 0 bytes, which 0 compressed bytes can hold, found 24000000000000"
    assert expected in refused(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"points": np.zeros((4, 128, 3))}, "expected one cloud, points (N, 3), found points (4, 128, 3): a data set?"),
        ({"points": np.zeros((4, 2))}, "expected one cloud, points (N, 3), found points (4, 2)"),
        ({"delta": np.zeros((4, 3))}, "expected an array points (N, 3), or x, y, z, found delta (4, 3)"),
        ({"points": np.zeros((4, 3)), "label": np.zeros(3)}, "expected 4 rows in every array, found points (4, 3)"),
        ({"points": np.zeros((4, 3)), "name": np.array(["a"] * 4)}, "expected numbers in the column name, found <U1"),
        ({"points": np.zeros((4, 3), complex)}, "expected a number for each of x, y and z, found complex128"),
        ({"points": np.zeros((0, 3))}, "expected at least one point, found none"),
        ({}, "found none"),
    ],
)  # fmt: skip
def test_wrong_arrays(tmp_path, arrays, reason):
    np.savez(tmp_path / "a.npz", **arrays)
    assert reason in refused(tmp_path / "a.npz")
    if _installed("h5py") and "name" not in arrays:
        import h5py

        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, array in arrays.items():
                file[name] = array
        refused(tmp_path / "a.h5")


@pytest.mark.parametrize("array", [np.zeros(9), np.zeros((3, 2)), np.zeros((2, 3, 3)), np.array([["a", "b", "c"]])])
def test_npy_with_wrong_shape(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    refused(tmp_path / "a.npy")


@pytest.mark.parametrize("name", [name for name in KINDS if not name.endswith(("las", "laz", "stl"))])
def test_nan_is_kept_and_reported(tmp_path, name):
    if suffix(name) in PACKAGES:
        pytest.importorskip(PACKAGES[suffix(name)])
    points = torch.tensor([[0.0, 1.0, 2.0], [torch.nan, 0.0, 0.0], [0.0, -torch.inf, 0.0]])
    data.write(tmp_path / name, Cloud(points), **KINDS[name])
    assert torch.equal(data.read(tmp_path / name).points.float().nan_to_num(9.0), points.nan_to_num(9.0))
    assert data.info(tmp_path / name).nonfinite == 2


def test_file_error_can_be_pickled():
    """Workers of a loader send it to the parent process."""
    error = pickle.loads(pickle.dumps(data.FileError("a.ply: expected")))
    assert isinstance(error, data.FileError)
    assert isinstance(error, ValueError)
    assert str(error) == "a.ply: expected"


@pytest.mark.parametrize("text", ["1.5", "1e0"])
def test_fraction_in_an_integer_column(tmp_path, text):
    """NumPy before 2.4 accepts it with a warning."""
    properties = "property float x\nproperty float y\nproperty float z\nproperty int ring\n"
    (tmp_path / "a.ply").write_text(f"ply\nformat ascii 1.0\nelement vertex 1\n{properties}end_header\n0 0 0 {text}\n")
    with pytest.raises(data.FileError, match=r"a\.ply: expected .* as numbers, found: could not convert"):
        data.read(tmp_path / "a.ply")


def test_reading_text_in_threads_restores_warning_filters(tmp_path):
    (tmp_path / "a.xyz").write_text("1 2 3\n4 5 6\n" * 50)
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(data.read, [tmp_path / "a.xyz"] * 400))
    assert warnings.filters == before

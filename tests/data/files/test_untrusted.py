"""Untrusted files: they cannot exhaust memory, run code or read other files."""

import ast
import gzip
import importlib
import io
import json
import os
import pickle
import resource
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import data, models, train
from pointgrad.data import Cloud
from pointgrad.data.datasets.folder import point_labels
from pointgrad.data.datasets.shapenetpart import read_entries
from pointgrad.data.files import memory, npy, ply
from pointgrad.data.untrusted import parse_yaml, read_yaml
from pointgrad.train import checkpoint, evaluation

for package in ("tyro", "plyfile", "lzf", "laspy", "lazrs", "h5py", "yaml"):
    pytest.importorskip(package)
compressed = importlib.import_module("reliability.files.compressed")
corpus = importlib.import_module("reliability.files.corpus")
false_sizes = importlib.import_module("reliability.files.false_sizes")
SUBJECTS = importlib.import_module("reliability.files.subjects").SUBJECTS


class Call:
    """Unpickling it calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is measured through Linux's /proc")
def test_false_sizes_and_damaged_files():
    """Small files that declare huge sizes are refused with a one-line error, using less than 64 MB in a process that
    may allocate 512 MB. Highly compressed files use no more than 64 MB where that is left. Ten damaged files of each
    kind are read or refused; `make corpus` tries thousands."""
    files = false_sizes.false_sizes()
    damaged = [(subject, number) for subject in SUBJECTS for number in range(1, 11)]
    dense = list(compressed.compressed())
    tasks = [(file.subject, file.raw) for file in files] + damaged
    outcomes = list(corpus.run([*tasks, *((subject, raw, compressed.LIMIT) for *_, subject, raw in dense)]))
    outcomes, unpacked = outcomes[: len(tasks)], outcomes[len(tasks) :]
    for (kind, share, *_), outcome in zip(dense, unpacked, strict=True):
        first, *_, last = compressed.SHARES
        read = kind != "evaluation" and (share == first or (share != last and outcome.what == corpus.READ))
        assert outcome.what == (corpus.READ if read else corpus.REFUSED), (kind, share, outcome.words)
        assert outcome.peak <= compressed.LIMIT, (kind, share, outcome.what)
    assert len(files) > 40
    for file, outcome in zip(files, outcomes, strict=False):
        assert (file.subject, file.declared, outcome.what) == (file.subject, file.declared, corpus.REFUSED)
        assert outcome.peak < false_sizes.LARGE, (file.subject, file.declared)
    result = corpus.count(outcomes[len(files) :])
    assert result["files"] == len(damaged) >= 300
    assert result["failures"] == []
    assert result["read"] > 20
    assert result["refused"] > 150


def test_corpus_detects_failures(tmp_path, monkeypatch):
    """Wrong messages, wrong exception types and memory errors count as failures."""

    class Other(Exception):
        pass

    path = tmp_path / "a.xyz"
    assert corpus.judge(data.FileError(f"{path}: expected"), path)[0] == corpus.REFUSED
    for wrong in (
        data.FileError("expected"),
        ValueError(f"{path}: a\nb"),
        Other(f"{path}: a"),
        KeyError(f"{path}: "),
    ):
        assert corpus.judge(wrong, path)[0] == "exception"
    wrong = data.FileError(f"{path}: expected")
    wrong.__cause__ = MemoryError()
    assert corpus.judge(wrong, path)[0] == "memory"


@pytest.mark.parametrize("subject", SUBJECTS)
def test_pipes_and_devices_are_not_read(tmp_path, subject):
    """Reading a pipe would block, and /dev/zero never ends."""
    path = tmp_path / f"a.{SUBJECTS[subject].suffix}"
    read = point_labels if subject == "labels" else SUBJECTS[subject].read
    if subject == "labels":  # used only if they are a regular file
        data.write(tmp_path / "a.xyz", Cloud(torch.zeros(2, 3)))
        path, read = tmp_path / "a.xyz", lambda _path: npy.load_array(tmp_path / "a.labels.npy")
        file = tmp_path / "a.labels.npy"
    else:
        file = path
    for make in (os.mkfifo, lambda name: name.symlink_to("/dev/zero")):
        make(file)
        with pytest.raises(ValueError, match=r"a device or a pipe|damaged"):
            read(path)
        file.unlink()


def test_link_to_a_file_is_read(tmp_path):
    data.write(tmp_path / "a.xyz", Cloud(torch.zeros(2, 3)))
    (tmp_path / "b.xyz").symlink_to("a.xyz")
    assert len(data.read(tmp_path / "b.xyz")) == 2


def _read_label_file(path):
    data.write(path.with_name("a.xyz"), Cloud(torch.zeros(3, 3)))
    return point_labels(path.with_name("a.xyz"), None)


def _objects(mark, **more):
    stream = io.BytesIO()
    np.savez(stream, **more, extra=np.array([Call(os.mkdir, str(mark))], dtype=object))
    return stream.getvalue()


def _object_array(mark):
    stream = io.BytesIO()
    np.save(stream, np.array([Call(os.mkdir, str(mark))] * 3, dtype=object), allow_pickle=True)
    return stream.getvalue()


def _new_torch(mark, protocol):
    return false_sizes.torch_archive(pickle.dumps(Call(os.mkdir, str(mark)), protocol))


def _old_torch(mark):
    stream = io.BytesIO()
    torch.save({"format": Call(os.mkdir, str(mark))}, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def _config(path):
    from pointgrad.cli.config import read_config
    from pointgrad.cli.train import Train

    return read_config(Train, path)


MALICE = {
    "npy": ("a.npy", _object_array, data.read),
    "npz": ("a.npz", lambda mark: _objects(mark, points=np.zeros((1, 3))), data.read),
    "pickle called npy": ("a.npy", lambda mark: pickle.dumps(Call(os.mkdir, str(mark))), data.read),
    "pickle called npz": ("a.npz", lambda mark: pickle.dumps(Call(os.mkdir, str(mark))), data.read),
    "labels": ("a.labels.npy", _object_array, _read_label_file),
    "data set": ("a.npz", lambda mark: _objects(mark, points=np.zeros((1, 2, 3)), label=np.zeros(1, int)), data.Arrays),
    "evaluation": ("evaluation.npz", lambda mark: _objects(mark, format=1), evaluation.read),
    "checkpoint": ("a.pt", lambda mark: _new_torch(mark, 2), train.load),
    "newer": ("a.pt", lambda mark: _new_torch(mark, 4), train.load),
    "old checkpoint": ("a.pt", _old_torch, train.load),
    "pickle called pt": ("a.pt", lambda mark: pickle.dumps(Call(os.mkdir, str(mark))), train.load),
    "config": ("a.yaml", lambda mark: f"epochs: !!python/object/apply:os.mkdir [{mark}]\n".encode(), _config),
    "config, new": ("a.yaml", lambda mark: f"!!python/object/new:os.mkdir [{mark}]\n".encode(), _config),
}  # fmt: skip


@pytest.mark.parametrize("kind", MALICE)
def test_files_cannot_run_code(tmp_path, kind):
    name, make, read = MALICE[kind]
    mark = tmp_path / "mark"
    (tmp_path / name).write_bytes(make(mark))
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # FileError, CheckpointError, ConfigError
        read(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    if "pickle" in kind and name.endswith("npy"):
        pickle.loads((tmp_path / name).read_bytes())
        assert mark.exists()  # the attack works where it is not prevented


def test_hdf5_reads_no_other_file(tmp_path):
    """External links, external data and virtual datasets are not followed."""
    import h5py

    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["points"] = np.full((4, 3), 42.0)
    np.full((4, 3), 42.0).tofile(tmp_path / "secret.bin")

    def linked(file):
        file["points"] = h5py.ExternalLink(str(secret), "points")

    def external(file):
        file.create_dataset("points", (4, 3), "f8", external=[(str(tmp_path / "secret.bin"), 0, 96)])

    def virtual(file):
        layout = h5py.VirtualLayout((4, 3), "f8")
        layout[:] = h5py.VirtualSource(str(secret), "points", (4, 3))
        file.create_virtual_dataset("points", layout)

    for make in (linked, external, virtual):
        path = tmp_path / f"{make.__name__}.h5"
        with h5py.File(path, "w") as file:
            make(file)
            file["label"] = np.zeros(4, int)
        for read in (data.read, data.Arrays):
            with pytest.raises(data.FileError, match=r"found a reference to another file|found label|got label"):
                read(path)
    with h5py.File(tmp_path / "soft.h5", "w") as file:
        file["real"] = np.zeros((4, 3))
        file["points"] = h5py.SoftLink("/real")
    with pytest.raises(data.FileError, match=r"found real \(4, 3\)"):
        data.read(tmp_path / "soft.h5")


def test_arrays_are_not_memory_mapped(tmp_path):
    """Access to a memory map of a file that was truncated later would abort the process."""
    path = tmp_path / "a.ply"
    data.write(path, Cloud(torch.rand(5000, 3), {"height": torch.rand(5000)}))
    table = ply.read(path)
    os.truncate(path, 10)
    column = table.columns["height"]
    while isinstance(column, np.ndarray):
        assert not isinstance(column, np.memmap)
        column = column.base
    assert table.columns["height"].sum() > 0


@pytest.mark.parametrize("length", [2**63, 2**40, 10**6])
def test_records_after_the_points_are_checked(tmp_path, length):
    """Prediction copies them, so their declared length must be possible."""
    import laspy

    from pointgrad import predict
    from tests.support.scenes import trained

    las = laspy.LasData(laspy.LasHeader(point_format=6, version="1.4"))
    las.x = las.y = las.z = np.arange(50.0)
    las.evlrs = laspy.vlrs.vlrlist.VLRList([laspy.VLR("someone", 7, "notes", b"something")])
    las.write(tmp_path / "a.las")
    raw = bytearray((tmp_path / "a.las").read_bytes())
    (place,) = struct.unpack_from("<Q", raw, 235)
    assert struct.unpack_from("<Q", raw, place + 20) == (9,)
    struct.pack_into("<Q", raw, place + 20, length)
    (tmp_path / "a.las").write_bytes(raw)
    with pytest.raises(data.FileError, match=rf"fit in {len(raw)} bytes, found one of {length}"):
        predict.label_file(trained(), tmp_path / "a.las", tmp_path / "out" / "a.las")


def test_compression_limit_of_laz_allows_identical_points(tmp_path):
    """Identical points have the highest compression ratio, which must be below the limit of the check."""
    import laspy
    import lazrs

    from pointgrad.data.files.las_check import LAZ

    header = laspy.LasHeader(point_format=6, version="1.4")
    las = laspy.LasData(header, laspy.ScaleAwarePointRecord.zeros(200_000, header=header))
    las.write(tmp_path / "same.laz")
    assert len(data.read(tmp_path / "same.laz")) == 200_000
    with open(tmp_path / "same.laz", "rb") as stream:
        found = laspy.LasHeader.read_from(stream)
        vlr = lazrs.LazVlr(found.vlrs.get("LasZipVlr")[0].record_data)
        lengths = [length for _, length in lazrs.read_chunk_table(stream, vlr)]
    assert min(lengths) * LAZ > 50_000 * 30


def test_layers_of_laz_are_checked(tmp_path):
    """The decoder allocates the declared length of a layer, and aborts the process if that fails."""
    raw = bytearray(SUBJECTS["laz 1.4"].make(tmp_path))
    (start,) = struct.unpack_from("<I", raw, 96)
    (size,) = struct.unpack_from("<H", raw, 105)
    place = start + 8 + size
    assert struct.unpack_from("<I", raw, place) == (40,)
    for layer in range(13):  # nine for the point, four for a float
        damaged = bytearray(raw)
        struct.pack_into("<I", damaged, place + 4 + 4 * layer, 2**32 - 256)
        (tmp_path / "a.laz").write_bytes(damaged)
        with pytest.raises(data.FileError, match="expected layers that fit in a chunk of"):
            data.read(tmp_path / "a.laz")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &x 1\nb: *x\n", "expected YAML without aliases, found one"),
        ("a: 1\nb: {c: 2, d: 3, c: 4}\n", "expected unique keys, found c 2 times"),
        ("[" * 30 + "]" * 30, "at most 20 levels deep"),
        ("a: 2001-99-99\n", "is not YAML: month must be in 1..12"),
        ("a: !!timestamp x\n", "is not YAML"),
        ("a: !!int x\n", "is not YAML"),
        ("a: " + "9" * 5000, "expected numbers of at most 100 characters, found 5000"),
        ("a: 0x" + "f" * 6000, "expected numbers of at most 100 characters, found 6002"),
        ("a: " + ":".join("1" * 200), "expected numbers of at most 100 characters, found 399"),
        ("a: " + ":".join("1" * 200) + ".5", "expected numbers of at most 100 characters, found 401"),
        ("a: !!float " + "9" * 400, "expected numbers of at most 100 characters, found 400"),
        ("a: [", "is not YAML: while parsing"),
        ("\0", "is not YAML"),
    ],
)  # fmt: skip
def test_unsafe_or_invalid_yaml(tmp_path, text, reason):
    with pytest.raises(data.FileError, match=reason) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=reason):
        _config(tmp_path / "a.yaml")


def test_valid_yaml(tmp_path):
    (tmp_path / "a.yaml").write_text("epochs: 3\nlr: 1e-3\n")
    assert (_config(tmp_path / "a.yaml").epochs, _config(tmp_path / "a.yaml").lr) == (3, 1e-3)
    (tmp_path / "large.yaml").write_text("# " + "x" * (1 << 16))
    with pytest.raises(data.FileError, match="at most 65536 bytes"):
        read_yaml(tmp_path / "large.yaml")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("epochs: 1" + "0" * 90, r"epochs must be an integer of 64 bits, got 10+"),
        ("seed: 0x" + "f" * 90, r"seed must be an integer of 64 bits, got \d+\.\.\."),
        ("prepare: {points: -1" + "0" * 90 + "}", r"prepare.points must be an integer of 64 bits, got -1"),
        ("lr: 1" + "0" * 400, "expected numbers of at most 100 characters"),
        ("lr: '1" + "0" * 400 + "'", "lr must be a finite number, got inf"),
        ("checkpoint_minutes: 1e400", "checkpoint_minutes must be a finite number, got inf"),
        ("checkpoint_minutes: .nan", "checkpoint_minutes must be a finite number, got nan"),
        ("augment: {scale: [1, .inf]}", r"augment.scale\[1\] must be a finite number, got inf"),
    ],
)
def test_numbers_in_configurations_are_bounded(tmp_path, line, reason):
    (tmp_path / "a.yaml").write_text(line)
    with pytest.raises(ValueError, match=reason) as caught:
        _config(tmp_path / "a.yaml")
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits are read from Linux's /proc")
def test_memory_limit(tmp_path, monkeypatch):
    """The smallest of physical memory, the limits of the control group, and what is left of the address space."""
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.memory_limit() <= physical
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.memory_limit() <= physical
    (tmp_path / "memory.max").write_text(f"{200 << 20}\n")
    assert memory.memory_limit() == 200 << 20
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{100 << 20}\n")
    assert memory.memory_limit() == 100 << 20
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (50 << 20), before[1]))
    try:
        assert 40 << 20 < memory.memory_limit() <= 50 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    (tmp_path / "a.xyz.gz").write_bytes(gzip.compress(b"0 0 0\n" * 800_000))
    with pytest.raises(data.FileError, match=r"expected points to fit in memory \(0.0977 GiB\), found"):
        data.read(tmp_path / "a.xyz.gz")


def test_npz_with_an_array_twice(tmp_path):
    """Such an archive would have two meanings."""
    np.savez(tmp_path / "a.npz", points=np.zeros((3, 3)))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("points", archive.read("points.npy"))
    with pytest.raises(data.FileError, match="expected unique names of arrays, found one twice"):
        data.read(tmp_path / "a.npz")


def test_invalid_option_gives_a_one_line_error():
    from pointgrad.cli.train import option

    with pytest.raises(ValueError, match=r"--options width: is not YAML"):
        option("width=[")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": [1]}, "state in a checkpoint must be a dict, got list"),
        ({"state": {"head.weight": 3}}, "belongs to a different network: .* is missing"),
        ({"classes": "abc"}, "classes in a checkpoint must be a list, got str"),
        ({"model": {"name": "pointnet", "classes": "many"}}, "cannot build the network"),
        ({"model": {"name": "os.system"}}, "cannot build the network: name must be one of pointnet,"),
        ({"model": {"name": ["pointnet"]}}, "cannot build the network"),
        ({"prepare": {"points": "many"}}, "cannot build the network"),
        ({"format": 2}, "expected a pointgrad checkpoint of format 1, got 2"),
    ],
)  # fmt: skip
def test_invalid_checkpoints(tmp_path, change, reason):
    model = models.build("pointnet", classes=2, width=0.0625)
    content = checkpoint.content_of(model, model.state_dict(), "classification", ("a", "b"), data.Prepare())
    checkpoint.save(tmp_path / "a.pt", content)
    assert train.load(tmp_path / "a.pt").classes == ("a", "b")
    checkpoint.save(tmp_path / "a.pt", {**content, **change})
    with pytest.raises(train.CheckpointError, match=reason) as caught:
        train.load(tmp_path / "a.pt")
    assert str(caught.value).startswith(f"{tmp_path / 'a.pt'}: ")


def test_faces_against_plyfile(tmp_path):
    """Faces of equal and different sizes, with other properties around them, in all three encodings."""
    from plyfile import PlyData, PlyElement

    draw = np.random.default_rng(0)
    vertex = np.zeros(50, [("x", "f4"), ("y", "f4"), ("z", "f4")])
    for name in "xyz":
        vertex[name] = draw.normal(size=50)
    for sizes in ((3, 3), (4, 4), (3, 5), (1, 6)):
        faces = np.empty(20, [("flag", "u1"), ("vertex_indices", object), ("weight", "f8"), ("uv", object)])
        for row in faces:
            row["vertex_indices"] = draw.integers(0, 50, draw.integers(sizes[0], sizes[1] + 1)).astype("i4")
            row["uv"] = draw.normal(size=draw.integers(0, 4)).astype("f4")
        strips = np.empty(3, [("strip", object)])
        strips["strip"] = [np.arange(n, dtype="i2") for n in (0, 2, 5)]
        elements = [
            PlyElement.describe(strips, "strips"),
            PlyElement.describe(vertex, "vertex"),
            PlyElement.describe(faces, "face"),
        ]
        expected = [
            (face[0], face[corner], face[corner + 1])
            for face in faces["vertex_indices"] for corner in range(1, len(face) - 1)
        ]  # fmt: skip
        for options in ({"text": True}, {"byte_order": "<"}, {"byte_order": ">"}):
            PlyData(elements, **options).write(str(tmp_path / "a.ply"))
            table = ply.read(tmp_path / "a.ply")
            assert table.faces.tolist() == [list(map(int, face)) for face in expected]
            assert np.allclose(table.xyz, np.stack([vertex[name] for name in "xyz"], 1))


def test_highly_compressed_gzip_is_read(tmp_path):
    (tmp_path / "a.xyz.gz").write_bytes(gzip.compress(b"0 0 0\n" * 100_000))
    assert len(data.read(tmp_path / "a.xyz.gz")) == 100_000


def test_split_that_is_not_a_list(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(data.FileError, match="got different content"):
        read_entries(tmp_path / "a.json")


# Calls that could run code from a file, and the modules that may use them.
ALLOWED = {
    "yaml.load": {"data/untrusted.py"},
    "h5py.File": {"data/files/hdf5.py"},
    "zipfile.ZipFile": {"data/files/npy.py", "train/archive.py", "train/checkpoint.py"},
    "importlib.import_module": {
        "cli/target.py",  # named by the user on the command line
        "models/hub.py",  # installed packages with fixed names
        "compat/__init__.py", "compat/_finder.py", "compat/_startup/sitecustomize.py", "compat/pointops/__init__.py",
        "ops/native/__init__.py", "ops/registry.py", "catalog/__init__.py",
        "bench/families/__init__.py", "bench/families/compat.py", "bench/peers/__init__.py", "bench/peers/dense.py",
        "bench/peers/voxels.py",
    },
}  # fmt: skip
BANNED = {
    "eval", "exec", "__import__", "os.system", "os.popen", "np.load", "numpy.load", "np.memmap", "yaml.unsafe_load",
    "yaml.full_load", "yaml.load_all", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads",
    "shelve.open", "tarfile.open", "shutil.unpack_archive", "torch.jit.load", "torch.package.PackageImporter",
    "torch.hub.load", "torch.load", "runpy.run_path",
}  # fmt: skip


def test_library_has_no_unsafe_calls():
    source = Path(pointgrad.__file__).parent
    found = {name: set() for name in ALLOWED}
    banned = set()
    for path in source.rglob("*.py"):
        place = str(path.relative_to(source))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if name in ALLOWED:
                found[name].add(place)
            if name in BANNED or name.endswith((".extractall", ".extract")):
                banned.add((place, name))
            assert keywords.get("allow_pickle") != "True"
            assert keywords.get("shell") != "True"
            assert not (name == "npy.read_array" and keywords.get("allow_pickle") != "False")
    assert found == ALLOWED
    # ops/launch.py generates a function from the parameter names of kernels. isolated.py reads what the process that
    # started it has pickled, from a pipe.
    assert banned == {
        ("inspect/audit/isolated.py", "pickle.load"),
        ("inspect/audit/isolated.py", "pickle.loads"),
        ("predict/las.py", "np.memmap"),
        ("compat/__main__.py", "runpy.run_path"),
        ("ops/launch.py", "exec"),
    }

"""Small valid files of every kind that pointgrad reads, and their readers, for `corpus.py`."""

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pointgrad import data, models, train
from pointgrad.cli.config import read_config
from pointgrad.cli.train import Train
from pointgrad.data import Cloud
from pointgrad.data.datasets.arrays import Arrays
from pointgrad.data.datasets.folder import point_labels
from pointgrad.data.datasets.shapenetpart import read_entries
from pointgrad.train import checkpoint, evaluation
from pointgrad.train.run_folder import to_yaml

COUNT = 40


class Subject(NamedTuple):
    """A kind of file: `make(folder)` returns the bytes of a valid file, and `read(path)` reads it as a user would."""

    make: Callable[[Path], bytes]
    suffix: str
    read: Callable[[Path], object]


def _cloud(holds: Any = None, *, labels: bool = True) -> Cloud:
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(COUNT, 3, generator=draw)
    columns = {
        "intensity": torch.randint(0, 256, (COUNT,), generator=draw).float(),
        "ring": torch.randint(0, 32, (COUNT,), generator=draw).float(),
    }
    features = {name: column for name, column in columns.items() if holds is None or name in holds}
    return Cloud(points, features, torch.arange(COUNT) % 4 if labels and holds is None else None)


def _written(suffix: str, **options: Any) -> Subject:
    def make(folder: Path) -> bytes:
        path = folder / f"good.{suffix}"
        data.write(path, _cloud(data.FORMATS[suffix].holds), **options)
        return path.read_bytes()

    return Subject(make, suffix, data.read)


def _given(suffix: str, make: Callable[[], bytes], read: Callable[[Path], object] = data.read) -> Subject:
    return Subject(lambda _folder: make(), suffix, read)


def _corners() -> np.ndarray:
    return _cloud().points.numpy()[: COUNT // 3 * 3].reshape(-1, 3, 3)


def _stl_text() -> bytes:
    facets = "".join(
        "facet normal 0 0 1\nouter loop\n"
        + "".join(f"vertex {x} {y} {z}\n" for x, y, z in corners)
        + "endloop\nendfacet\n"
        for corners in _corners()
    )
    return f"solid a\n{facets}endsolid a\n".encode()


def _stl() -> bytes:
    rows = [struct.pack("<12fH", 0, 0, 1, *corners.ravel(), 0) for corners in _corners()]
    return b"a comment".ljust(80) + struct.pack("<I", len(rows)) + b"".join(rows)


def _mesh_ply(encoding: str) -> bytes:
    """Vertices, and faces of three and four corners."""
    points = _cloud().points.numpy()
    faces = [list(range(start, start + 3 + start % 2)) for start in range(COUNT - 4)]
    head = (
        f"ply\nformat {encoding} 1.0\ncomment a mesh\nelement vertex {COUNT}\nproperty float x\nproperty float y\n"
        f"property float z\nelement face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n"
    ).encode()
    if encoding == "ascii":
        rows = [" ".join(map(str, row)) for row in [*points, *([len(face), *face] for face in faces)]]
        return head + ("\n".join(rows) + "\n").encode()
    order = "<" if "little" in encoding else ">"
    body = points.astype(f"{order}f4").tobytes()
    return head + body + b"".join(struct.pack(f"{order}B{len(face)}i", len(face), *face) for face in faces)


def _off() -> bytes:
    rows = [" ".join(map(str, row)) for row in _cloud().points.numpy()]
    faces = [f"3 {start} {start + 1} {start + 2}" for start in range(COUNT - 3)]
    return "\n".join(["OFF", f"{COUNT} {len(faces)} 0", *rows, *faces, ""]).encode()


def _obj() -> bytes:
    rows = ["v " + " ".join(map(str, row)) for row in _cloud().points.numpy()]
    faces = [f"f {start} {start + 1}/1 {start + 2}//3" for start in range(1, COUNT - 2)]
    return "\n".join(["# a mesh", "o thing", *rows, *faces, ""]).encode()


def _las(suffix: str, number: int) -> Subject:
    def make(folder: Path) -> bytes:
        import laspy

        made = laspy.LasData(laspy.LasHeader(point_format=number, version="1.2" if number < 6 else "1.4"))
        made.x, made.y, made.z = _cloud().points.double().numpy().T
        made.add_extra_dim(laspy.ExtraBytesParams("height", "f4"))
        made.write(folder / f"good.{suffix}")
        return (folder / f"good.{suffix}").read_bytes()

    return Subject(make, suffix, lambda path: (data.read(path), data.info(path)))


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    memory = io.BytesIO()
    save(memory)
    return memory.getvalue()


def _npy_fields() -> bytes:
    rows = np.zeros(COUNT, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("class", "<u2")])
    return _saved(lambda memory: np.save(memory, rows))


def _dataset() -> dict[str, np.ndarray]:
    points = _cloud().points.numpy().reshape(5, -1, 3)
    return {"points": points, "label": np.arange(5) % 2, "classes": np.array(["a", "b"])}


def _h5_dataset() -> bytes:
    import h5py

    def save(memory: io.BytesIO) -> None:
        with h5py.File(memory, "w") as file:
            for name, array in _dataset().items():
                file[name] = array.astype("S") if array.dtype.kind == "U" else array

    return _saved(save)


def _h5_plain() -> bytes:
    """Contiguous and chunked datasets, one of them in a group."""
    import h5py

    def save(memory: io.BytesIO) -> None:
        with h5py.File(memory, "w") as file:
            file["points"] = _cloud().points.numpy()
            file.create_dataset("more/height", data=np.arange(COUNT), chunks=(8,), shuffle=True, fletcher32=True)
            file["label"] = 3

    return _saved(save)


def _checkpoint() -> bytes:
    torch.manual_seed(0)
    model = models.build("pointnet", classes=3, width=0.0625)
    content = checkpoint.content_of(model, model.state_dict(), "classification", ("a", "b", "c"), data.Prepare())
    return _saved(lambda memory: torch.save(content, memory))


def _config() -> bytes:
    from dataclasses import asdict

    return to_yaml(asdict(Train())).encode()


def _evaluation() -> bytes:
    points = _cloud().points
    examples = [evaluation.Example(points, torch.zeros(COUNT), torch.ones(COUNT), "a.ply", 0, 0.5, 0.5, 0.5)] * 2
    return evaluation.Evaluation(1, "segmentation", ("a", "b"), torch.ones(2, 2), 2, examples).to_bytes()


def _entries() -> bytes:
    return json.dumps([f"shape_data/0269{number}/name{number}" for number in range(20)]).encode()


def _labels(path: Path) -> object:
    """Read labels that are stored next to a cloud."""
    return point_labels(path.with_name(path.name.partition(".")[0] + ".xyz"), None)


SUBJECTS: dict[str, Subject] = {
    "ply little-endian": _written("ply", encoding="binary_little_endian"),
    "ply big-endian": _written("ply", encoding="binary_big_endian"),
    "ply ascii": _written("ply", encoding="ascii"),
    "ply mesh": _given("ply", lambda: _mesh_ply("binary_little_endian")),
    "ply mesh ascii": _given("ply", lambda: _mesh_ply("ascii")),
    "pcd compressed": _written("pcd", encoding="binary_compressed"),
    "pcd binary": _written("pcd", encoding="binary"),
    "pcd ascii": _written("pcd", encoding="ascii"),
    "las": _las("las", 3),
    "las 1.4": _las("las", 6),
    "laz": _las("laz", 3),
    "laz 1.4": _las("laz", 6),
    "off": _given("off", _off),
    "obj": _given("obj", _obj),
    "stl": _given("stl", _stl),
    "stl ascii": _given("stl", _stl_text),
    "xyz": _written("xyz"),
    "csv": _written("csv"),
    "txt.gz": _written("txt.gz"),
    "npy": _given("npy", lambda: _saved(lambda memory: np.save(memory, _cloud().points.numpy()))),
    "npy fields": _given("npy", _npy_fields),
    "npz": _written("npz"),
    "bin": _written("bin"),
    "pcd.bin": _written("pcd.bin"),
    "h5 compressed": _written("h5"),
    "h5": _given("h5", _h5_plain),
    "data set npz": _given("npz", lambda: _saved(lambda memory: np.savez(memory, **_dataset())), Arrays),
    "data set h5": _given("h5", _h5_dataset, Arrays),
    "labels": _given("labels.npy", lambda: _saved(lambda m: np.save(m, np.arange(COUNT))), _labels),
    "json list": _given("json", _entries, read_entries),
    "checkpoint": _given("pt", _checkpoint, train.load),
    "config": _given("yaml", _config, lambda path: read_config(Train, path)),
    "evaluation": _given("npz", _evaluation, evaluation.read),
}

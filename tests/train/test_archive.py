"""Checkpoints from untrusted sources: sizes are checked before memory is allocated, and nothing is called."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict

import pytest
import torch

from pointgrad import data, models, train
from pointgrad.train import archive, checkpoint


def saved(content, **replaced):
    """The archive of `torch.save`, with some records replaced; None removes one. `main` is the pickle."""
    memory, out = io.BytesIO(), io.BytesIO()
    torch.save(content, memory)
    with zipfile.ZipFile(memory) as good, zipfile.ZipFile(out, "w") as forged:
        for entry in good.infolist():
            name = entry.filename.partition("/")[2]
            raw = replaced.pop({"data.pkl": "main"}.get(name, name), good.read(entry))
            if raw is not None:
                forged.writestr(entry.filename, raw)
        for name, raw in replaced.items():
            forged.writestr(f"archive/{name}", raw)
    return out.getvalue()


def pickled(content):
    with zipfile.ZipFile(io.BytesIO(saved(content))) as found:
        return found.read(next(name for name in found.namelist() if name.endswith("data.pkl")))


def load(raw):
    return archive.load(io.BytesIO(raw))


def same(one, other):
    if isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in other)
    if isinstance(other, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or one != one)


def test_content_equals_that_of_torch_load():
    torch.manual_seed(0)
    network = models.build("pointnet2", classes=3, width=0.125)
    network(torch.rand(2, 64, 3)).sum().backward()
    optimizer = torch.optim.AdamW(network.parameters(), fused=False)
    optimizer.step()
    base = torch.arange(24.0).reshape(4, 6)
    dtypes = (
        torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
        torch.bool,
    )  # fmt: skip
    content = {
        "state": network.state_dict(),
        "ordered": OrderedDict(b=1, a=[None, True, -3, 2**40, 0.5, float("nan"), "é", (), (1,), (1, 2, 3, 4)]),
        "optimizer": optimizer.state_dict(),
        "views": [base.T, base[1:3, ::2], base[3, 5], base],
        "dtypes": [base.to(dtype) for dtype in dtypes],
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "empty": torch.zeros(0, 5),
        3: torch.Size((2, 3)),
    }
    raw = saved(content)
    expected = torch.load(io.BytesIO(raw), weights_only=True)
    expected[3] = tuple(expected[3])
    found = load(raw)
    assert same(found, expected)
    found["state"][next(iter(found["state"]))].zero_()  # tensors are writable


def _numel(first, second):
    """Three numbers whose storage or size is declared as longer."""
    raw = pickled(torch.zeros(3))
    assert raw.count(b"K\x03") == 2
    for number in (first, second):
        raw = raw.replace(b"K\x03", b"J" + struct.pack("<i", number), 1)
    return raw


def _laughs():
    value = [1]
    for _ in range(25):
        value = [value, value]
    return value


def _cycle():
    value = []
    value.append(value)
    return value


FORGED = {
    "expanded": (lambda: saved(torch.zeros(1).expand(10**11)), "tensors of at most"),
    "expanded matrix": (lambda: saved([torch.zeros(1, 100).expand(10**6, 100)]), "tensors of at most"),
    "a view many times": (lambda: saved(list(torch.zeros(1000).expand(200, 1000))), "at most"),
    "a longer storage": (lambda: saved(torch.zeros(3), main=_numel(2**30, 3)), "bytes for a tensor, found 12"),
    "a longer size": (lambda: saved(torch.zeros(3), main=_numel(3, 2**30)), "tensors of at most"),
    "a shorter record": (lambda: saved(torch.zeros(3), **{"data/0": bytes(4)}), "expected 12 bytes"),
    "no record": (lambda: saved(torch.zeros(3), **{"data/0": None}), "no item named"),
    "another case": (lambda: saved({}, **{"DATA.PKL": pickle.dumps(bytearray, 2)}), "differ only in case"),
    "only another case": (lambda: saved({}, main=None, **{"DATA.PKL": b"."}), "not enough values"),
    "nested lists": (lambda: saved(_laughs()), "contain one another"),
    "a cycle": (lambda: saved(_cycle()), "contain one another"),
    "deep": (lambda: saved(0, main=b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."), "contain one another"),
    "a call": (lambda: saved(0, main=pickle.dumps(bytearray(5), 2)), r"a call of (__builtin__|builtins)\.bytearray"),
    "a large bytearray": (lambda: saved(0, main=b"\x80\x05\x96" + struct.pack("<Q", 2**40)), "expected"),
    "a large memo": (lambda: saved(0, main=b"\x80\x02]r\xff\xff\xff\xff0."), "the operation POP"),
    "a storage": (lambda: saved(0, main=b"\x80\x02ctorch\nFloatStorage\n."), "found a storage or a name"),
    "a call of a storage": (lambda: saved(0, main=b"\x80\x02ctorch\nFloatStorage\nJ\0\0\0\x40\x85R."), "is not made"),
    "a long integer": (lambda: saved({"epoch": 10**400}), "expected integers of 64 bits"),
    "no end": (lambda: saved(0, main=b"\x80\x02K\1"), "exhausted before seeing STOP"),
    "other byte order": (lambda: saved(0, byteorder=b"big"), "expected little-endian numbers"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORGED)
def test_forged_archives(kind):
    make, reason = FORGED[kind]
    with pytest.raises((ValueError, KeyError), match=reason):  # `checkpoint.read` makes a CheckpointError of both
        load(make())


@pytest.mark.parametrize("compress", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_compressed_archives_are_refused(compress):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", compress) as forged:
        forged.writestr("archive/data.pkl", b"\x80\x02]q" + b"\0" * 1000)
    with pytest.raises(data.FileError, match="found a compressed one"):
        load(memory.getvalue())


def test_wide_network_with_expanded_weights(tmp_path):
    """The weights of a network of gigabytes are declared by strides of zero, in a file of two kilobytes."""
    wide = {"name": "pointnet", "classes": 2, "width": 30.0}
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in models.build(**wide).state_dict().items()}
    content = checkpoint.content_of(torch.nn.Module(), {}, "classification", ("a", "b"), data.Prepare())
    forged = {
        "expanded": {name: torch.zeros(()).expand(shape) for name, shape in shapes.items()},
        "one weight": {"weight": torch.zeros(1).expand(10**11)},
    }
    for state in forged.values():
        checkpoint.save(tmp_path / "a.pt", {**content, "model": wide, "state": state})
        with pytest.raises(train.CheckpointError, match="expected tensors of at most"):
            train.load(tmp_path / "a.pt")


def test_network_is_not_built_before_its_shapes_are_compared(tmp_path, monkeypatch):
    network = models.build("pointnet", classes=2, width=0.0625)
    content = checkpoint.content_of(network, network.state_dict(), "classification", ("a", "b"), data.Prepare())
    content["model"] = {**content["model"], "width": 0.5}
    checkpoint.save(tmp_path / "a.pt", content)
    built = []
    build = models.build
    monkeypatch.setattr(models, "build", lambda **options: built.append(build(**options)) or built[-1])
    with pytest.raises(train.CheckpointError, match=r"belongs to a different network: .* must have shape"):
        train.load(tmp_path / "a.pt")
    assert len(built) == 1
    assert all(tensor.is_meta for tensor in built[0].state_dict().values())

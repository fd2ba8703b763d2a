"""Messages of errors on one line."""

import doctest
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from pointgrad import data, errors, train
from pointgrad.cli import main
from pointgrad.data.files.workspace import publish_bytes
from pointgrad.data.untrusted import read_yaml
from pointgrad.errors import one_line, printable


@pytest.mark.parametrize(
    ("error", "options", "expected"),
    [
        (ValueError("  a\n\tb  "), {}, "a b"),
        (ValueError("a\nb"), {"first": True}, "a"),
        (ValueError("a\nb"), {"with_type": True}, "ValueError: a b"),
        (ValueError(), {"with_type": True}, "ValueError"),
        ("", {}, ""),
        ("x" * 10, {"limit": 10}, "x" * 10),
        ("x" * 11, {"limit": 10}, "x" * 7 + "..."),
        ("name\udcff", {}, "name\\xff"),
        ("half of a pair \ud800", {}, "half of a pair \\ud800"),
        ("a\x1b[31mb\x07\u202e", {}, "a\\x1b[31mb\\x07\\u202e"),
    ],
)
def test_one_line(error, options, expected):
    assert one_line(error, **options) == expected


def test_documented_examples_run():
    assert doctest.testmod(errors).failed == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scan 1 é 点.ply", "scan 1 é 点.ply"),
        ("a\nb\r\t", "a\\nb\\r\\t"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m\u2028\u202e\U000e0001", "\\x9b31m\\u2028\\u202e\\U000e0001"),
        ("name\udcff\udce9", "name\\xff\\xe9"),
        (Path("a\nb"), "a\\nb"),
    ],
)
def test_printable(text, expected):
    assert printable(text) == expected
    assert printable(text).isprintable()
    printable(text).encode()


NAME = "a\nb\x1b[31m c\u202e\udcff"
SHOWN = "a\\nb\\x1b[31m c\\u202e\\xff"


@pytest.fixture
def folder(tmp_path):
    """A folder with an unusual name that holds a good cloud, and damaged files of every kind."""
    folder = tmp_path / NAME
    folder.mkdir()
    data.write(folder / f"{NAME}.xyz", data.Cloud(torch.rand(30, 3)))
    for suffix in (*data.FORMATS, "pt", "yaml"):
        (folder / f"{NAME} bad.{suffix}").write_bytes(b"\x1b[31m\n\x1b" * 40 + b"!")
    return folder


def test_names_in_messages_of_readers(folder):
    reads = {"pt": train.load, "yaml": read_yaml}
    for path in sorted(folder.glob("* bad.*")):
        read = reads.get(path.suffix[1:], data.read)
        with pytest.raises(ValueError) as caught:  # noqa: PT011  # FileError or CheckpointError
            read(path)
        assert str(caught.value).isprintable()
        assert str(caught.value).startswith(f"{folder.parent}/{SHOWN}/{SHOWN} bad")
    with pytest.raises(data.FileError, match="already exists") as caught:
        publish_bytes(folder / f"{NAME}.xyz", b"", overwrite=False)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("command", ["info", "convert", "render", "predict", "train", "evaluate", "view"])
def test_names_in_output_of_commands(folder, command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    good, bad, out = folder / f"{NAME}.xyz", folder / f"{NAME} bad.xyz", folder / f"{NAME} out"
    arguments = {
        "info": [[str(good), str(bad)]],
        "convert": [[str(good), f"{out}.csv"], [str(bad), f"{out}.csv"], [str(good), str(good)]],
        "render": [[str(good), "--out", f"{out}.png", "--width", "64", "--height", "64"],
                   [str(bad), "--out", f"{out}.png"]],
        "predict": [[f"{folder / NAME} bad.pt", str(good)]],
        "train": [["--data", f"{out}.npz"], ["--data", str(folder), "--out", str(good)],
                  ["--config", f"{folder / NAME} bad.yaml"]],
        "evaluate": [[f"{folder / NAME} bad.pt", "--data", "shapes"]],
        "view": [[str(folder / "missing\x1b.ply")]],
    }[command]  # fmt: skip
    for each in arguments:
        with suppress(SystemExit):
            main([command, *each])
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert SHOWN in text, each
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert all(line.startswith(f"pointgrad {command}: ") for line in captured.err.splitlines())


def test_names_in_the_viewer(folder):
    from pointgrad.view import text
    from pointgrad.view.inputs import File

    path = folder / f"{NAME}.xyz"
    label = File(path).label
    assert label == f"{folder.parent}/{SHOWN}/{SHOWN}.xyz"
    for error in (OSError(28, "No space left"), ValueError(f"{path}: wrong"), ValueError("wrong\x1b"), ValueError()):
        message = text.describe_error(label, error)
        assert message.isprintable()
        assert message.count(SHOWN) == 2

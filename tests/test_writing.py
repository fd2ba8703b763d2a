"""Atomic writing, and that no writer follows symbolic links inside a chosen folder."""

import ast
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import data, predict, train, writing
from pointgrad.bench import write as write_bench
from pointgrad.data import Cloud
from pointgrad.data.datasets.layout import Cache
from pointgrad.data.files.workspace import FOLDER, publish, publish_bytes, workspace
from pointgrad.train import checkpoint
from pointgrad.train.run_folder import RunFolder
from tests.support.scenes import las_file, scene, trained

PRECIOUS = b"precious"


def _write_formats(folder):
    for suffix, chosen in data.FORMATS.items():
        if chosen.write is not None and chosen.holds is None and suffix in ("ply", "las", "csv", "npz", "h5"):
            data.write(folder / f"a.{suffix}", Cloud(torch.rand(4, 3)))


def _label_files(folder):
    inputs = folder.parent / "inputs"
    inputs.mkdir(exist_ok=True)
    data.write(inputs / "a.ply", Cloud(scene(50)))
    data.write(inputs / "b.bin", Cloud(scene(50).float()))
    las_file(inputs / "c.las", 50)
    for path in sorted(inputs.iterdir()):
        predict.label_file(trained(), path, predict.output(path, folder), overwrite=True)


def _picture(folder):
    pytest.importorskip("PIL")
    pointgrad.render.save(folder / "a.png", np.zeros((4, 4, 3), np.uint8), overwrite=True)


def _train(folder):
    pytest.importorskip("yaml")
    run = RunFolder(folder, resume=True)
    checkpoint.save(run.last, {"format": 1})
    run.write_metrics([{"epoch": 1}])
    run.start({"epochs": 1}, 0, torch.device("cpu"))
    (run.make("tensorboard") / "events").touch()
    run.log("something")


def _cache(folder):
    source = folder.parent / "source"
    source.touch()
    Cache(folder / "cache").get("deep/a", [source], lambda: {"rows": np.zeros(3)})


def _graph(folder):
    from pointgrad.inspect import graph

    for suffix in (".svg", ".html", ".json"):
        graph(torch.ones(2, requires_grad=True).sum()).write(folder / f"a{suffix}")


WRITERS = {
    "formats": _write_formats,
    "predict": _label_files,
    "render": _picture,
    "train": _train,
    "cache": _cache,
    "graph": _graph,
    "evaluate": lambda folder: train.files.write_atomically(folder / "figures.json", b"{}"),
    "bench": lambda folder: write_bench({}, folder / "bench.json"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_writers_do_not_follow_links(tmp_path, writer):
    """Links in place of each file, folder and temporary file of a writer: their targets do not change, and no files
    are created next to them."""
    write = WRITERS[writer]
    chosen, outside = tmp_path / "chosen", tmp_path / "outside"
    chosen.mkdir()
    write(chosen)
    made = sorted(path.relative_to(chosen) for path in chosen.rglob("*"))
    assert any((chosen / path).is_file() for path in made)
    folders = [path for path in made if (chosen / path).is_dir()]
    files = [path for path in made if (chosen / path).is_file() and path.parts[0] != "tensorboard"]
    shutil.rmtree(chosen)
    for planted in [
        *([folder] for folder in folders),
        [*files, *(path.with_name(f".{path.name}.tmp") for path in files)],
    ]:
        chosen.mkdir()
        outside.mkdir()
        for number, path in enumerate(planted):
            (chosen / path).parent.mkdir(parents=True, exist_ok=True)
            victim = outside / f"{number}"
            if path in folders:
                victim.mkdir()
            else:
                victim.write_bytes(PRECIOUS)
            (chosen / path).symlink_to(victim)
        before = sorted(outside.rglob("*"))
        with suppress(train.WriteError):  # for links in place of the log and of folders
            write(chosen)
        assert sorted(outside.rglob("*")) == before
        assert all(path.read_bytes() == PRECIOUS for path in before if path.is_file())
        shutil.rmtree(chosen)
        shutil.rmtree(outside)


def test_links_are_replaced_by_files_and_refused_for_logs(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(PRECIOUS)
    (tmp_path / "a").symlink_to(victim)
    with pytest.raises(OSError, match="Is a symbolic link"):
        writing.append(tmp_path / "a", b"more")
    writing.replace_bytes(tmp_path / "a", b"new")
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "a").read_bytes() == b"new"
    writing.append(tmp_path / "a", b" more")
    assert (tmp_path / "a").read_bytes() == b"new more"
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    writing.replace_bytes(tmp_path / "dangling", b"new")
    assert not (tmp_path / "nowhere").exists()
    assert victim.read_bytes() == PRECIOUS


def test_devices_pipes_and_folders_are_refused(tmp_path):
    """Opening a pipe must not block, and a device must not be replaced."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "folder", "null"):
        with pytest.raises(OSError, match="Is a folder or a device"):
            writing.replace_bytes(tmp_path / name, b"new")
        with pytest.raises(OSError, match=r"Is a folder or a device|Is a symbolic link|Is a directory|No such device"):
            writing.append(tmp_path / name, b"new")
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)


def test_chosen_folder_may_be_a_link_but_not_folders_inside(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "named").symlink_to("real")
    assert writing.make_folder(tmp_path / "named", "a/b") == tmp_path / "named" / "a" / "b"
    assert (tmp_path / "real" / "a" / "b").is_dir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "real" / "c").symlink_to(tmp_path / "elsewhere")
    for inside in ("c", "c/d", "../elsewhere/d", "/tmp"):
        with pytest.raises(OSError, match="Is a symbolic link"):
            writing.make_folder(tmp_path / "named", inside)
    assert not any((tmp_path / "elsewhere").iterdir())


def test_abandoned_workspaces_are_removed(tmp_path):
    """Folders of killed processes are removed. A pipe with such a name must not block, a link must not be followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    os.mkfifo(tmp_path / ".a.ply.pointgrad-pipe")
    (tmp_path / ".a.ply.pointgrad-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".a.ply.pointgrad-left").mkdir()
    with workspace(tmp_path / "a.ply", tmp_path) as drafts:
        assert drafts.is_dir()
        with workspace(tmp_path / "a.ply", tmp_path) as other:  # does not remove the one in use
            assert other != drafts
        assert drafts.is_dir()
    assert not (tmp_path / ".a.ply.pointgrad-left").exists()
    assert (tmp_path / "elsewhere" / "kept").exists()
    assert not drafts.exists()


def test_workspace_without_locks(tmp_path, monkeypatch):
    """Platforms without locks, and those that cannot open folders: only abandoned folders are not removed."""
    (tmp_path / ".a.ply.pointgrad-left").mkdir()
    open_file = os.open

    def open_no_folder(path, flags, *arguments, **options):
        if flags == FOLDER:
            raise PermissionError
        return open_file(path, flags, *arguments, **options)

    for change in (("pointgrad.locking.fcntl", None), ("os.open", open_no_folder)):
        monkeypatch.setattr(*change)
        with workspace(tmp_path / "a.ply", tmp_path) as drafts:
            assert drafts.is_dir()
        assert not drafts.exists()
    assert (tmp_path / ".a.ply.pointgrad-left").exists()


def test_workspace_that_is_removed_before_it_is_locked(tmp_path, monkeypatch):
    """A process that looks for abandoned folders may lock a new folder first; then a second one is created."""
    locked = iter([False, True])
    monkeypatch.setattr("pointgrad.data.files.workspace.try_lock", lambda *_: next(locked))
    made = []
    monkeypatch.setattr(tempfile, "mkdtemp", _recorded(tempfile.mkdtemp, made))
    with workspace(tmp_path / "a.ply", tmp_path) as drafts:
        assert str(drafts) == made[1]


def _recorded(function, results):
    def call(*arguments, **options):
        results.append(function(*arguments, **options))
        return results[-1]

    return call


def test_publish_keeps_an_existing_file(tmp_path):
    for content, overwrite in ((b"old", False), (b"new", True)):
        publish_bytes(tmp_path / "deep" / "a", content, overwrite)
        (tmp_path / "draft").write_bytes(content)
        publish(tmp_path / "draft", tmp_path / "b", overwrite)
        for act in (
            lambda: publish_bytes(tmp_path / "deep" / "a", b"other", False),
            lambda: publish(tmp_path / "b", tmp_path / "deep" / "a", False),
        ):
            with pytest.raises(data.FileError, match=r"/a: already exists; set overwrite to replace it$"):
                act()
        assert (tmp_path / "deep" / "a").read_bytes() == (tmp_path / "b").read_bytes() == content
    with pytest.raises(data.FileError, match="/b/a: expected a file that can be written, got: "):
        publish_bytes(tmp_path / "b" / "a", b"", False)  # in a file instead of a folder


def test_predictions_do_not_follow_links(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tyro")
    from pointgrad.cli import main

    (tmp_path / "in" / "deep").mkdir(parents=True)
    data.write(tmp_path / "in" / "deep" / "a.ply", Cloud(scene(50)))
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "deep").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr("pointgrad.train.load", lambda path, device="cpu": trained())
    assert main(["predict", "a run", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"{tmp_path / 'out' / 'deep'}: expected a folder to write to, got: Is a symbolic link" in printed
    assert not any((tmp_path / "elsewhere").iterdir())


# Modules that may open files for writing, with the reason.
OPENED = {
    "writing.py",  # writes all other files
    "data/files/npy.py",  # a member of an archive
    "predict/files.py",  # in a new workspace
    "predict/las.py",  # in a new workspace
    "bench/clocks.py",  # a counter of the kernel
    "cli/child.py",  # a pipe
    "scaffold/__init__.py",  # in a new folder
}


def test_files_are_written_by_one_module():
    source = Path(pointgrad.__file__).parent
    found = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            modes = [arg.value for arg in [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "mode")]
                     if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]  # fmt: skip
            opened = name in ("open", "fdopen") and any(set(mode) & set("wax+") for mode in modes)
            if opened or name in ("write_text", "write_bytes", "tofile", "memmap", "mkstemp", "symlink", "copyfile"):
                found.add(str(path.relative_to(source)))
    assert found == OPENED


def test_existing_file_is_kept_unless_overwritten(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError

    for folder in ("with links", "without links"):
        target = tmp_path / folder / "a"
        target.parent.mkdir()
        writing.replace_bytes(target, b"old", overwrite=False)
        with pytest.raises(FileExistsError):
            writing.replace_bytes(target, b"new", overwrite=False)
        (target.parent / "draft").write_bytes(b"new")
        with pytest.raises(FileExistsError):
            writing.publish(target.parent / "draft", target, overwrite=False)
        assert target.read_bytes() == b"old"
        writing.publish(target.parent / "draft", target)
        assert target.read_bytes() == b"new"
        assert [path.name for path in target.parent.iterdir()] == ["a"]
        monkeypatch.setattr(os, "link", no_links)


def test_previous_file_is_kept_under_its_own_name(tmp_path):
    for content in (b"1", b"2", b"3"):
        writing.replace_bytes(tmp_path / "a", content, tmp_path / "before")
    assert (tmp_path / "a").read_bytes() == b"3"
    assert (tmp_path / "before").read_bytes() == b"2"

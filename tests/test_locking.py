"""File locks, and a package that works on platforms without `fcntl`."""

import errno
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pointgrad import locking
from pointgrad.locking import try_lock

TRY = "import os, sys; from pointgrad.locking import try_lock; print(try_lock(os.open(sys.argv[1], os.O_RDWR)))"


@pytest.fixture
def handle(tmp_path):
    opened = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.write(opened, b"123\n")
    yield opened
    os.close(opened)


def lock_in_another_process(path):
    return subprocess.run([sys.executable, "-c", TRY, path], check=True, capture_output=True, text=True).stdout.strip()


def test_a_process_lock_excludes_other_processes_until_it_is_closed(tmp_path):
    path = tmp_path / "lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    assert try_lock(handle)
    assert lock_in_another_process(path) == "False"
    os.close(handle)
    assert lock_in_another_process(path) == "True"


def test_a_handle_lock_excludes_the_same_process(tmp_path, handle):
    other = os.open(tmp_path / "lock", os.O_RDWR)
    assert try_lock(handle, "handle")
    assert not try_lock(other, "handle")
    os.close(other)


def test_windows_locks_a_byte_beyond_the_content(handle, monkeypatch):
    """With a stand-in for `msvcrt` that records where it is called."""
    calls = []

    def lock(handle, mode, size):
        calls.append((os.lseek(handle, 0, os.SEEK_CUR), mode, size))
        if len(calls) > 1:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(locking, "fcntl", None)
    monkeypatch.setattr(locking, "msvcrt", SimpleNamespace(locking=lock, LK_NBLCK=2))
    os.lseek(handle, 0, os.SEEK_SET)
    assert try_lock(handle)
    assert not try_lock(handle)
    assert calls == [(1 << 30, 2, 1)] * 2
    assert os.read(handle, 10) == b"123\n"


def test_a_platform_without_locks_is_an_error(handle, monkeypatch):
    monkeypatch.setattr(locking, "fcntl", None)
    monkeypatch.setattr(locking, "msvcrt", None)
    with pytest.raises(OSError, match="No locks available"):
        try_lock(handle)


WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = None  # importing it is an error
import pathlib, torch
import pointgrad, pointgrad.train
from pointgrad import data, locking
from pointgrad.cli import main
from pointgrad.train.run_folder import RunFolder
assert locking.fcntl is None
folder = pathlib.Path(sys.argv[1])
data.write(folder / "a.ply", data.Cloud(torch.rand(9, 3)))
RunFolder(folder / "run").hold()
sys.exit(main(["convert", str(folder / "a.ply"), str(folder / "b.las")]))
"""


def test_the_package_and_its_command_work_without_fcntl(tmp_path):
    pytest.importorskip("laspy")
    pytest.importorskip("tyro")
    done = subprocess.run([sys.executable, "-c", WITHOUT_FCNTL, tmp_path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'b.las'}: 9 points\n"
    assert (tmp_path / "run" / ".lock").exists()

"""The folder of a run: what was asked, where it ran, and what came out."""

import contextlib
import csv
import datetime
import errno
import fcntl
import io
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import pointgrad
from pointgrad.writing import append, make_folder

from .checkpoint import LAST, PREVIOUS
from .files import WriteError, write_atomically

LOCK = ".lock"
ENDED = "ended early:"  # what the log says before the reason
PACKAGES = ("numpy", "lightning-fabric", "pytorch-lightning", "triton", "laspy", "h5py", "tyro")


class RunFolder:
    """Writes the files of a run. A folder that holds something is used only to resume."""

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self.path, self._resume = Path(path), resume
        self._lock: int | None = None
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path}: expected a folder for the run, this is a file")
        self._refuse_a_run()

    def _refuse_a_run(self) -> None:
        if not self._resume and self.path.exists() and any(file.name != LOCK for file in self.path.iterdir()):
            raise ValueError(f"{self.path}: exists and is kept; continue it with --resume, or give a new name")

    @property
    def last(self) -> Path:
        return self.path / LAST

    @property
    def previous(self) -> Path:
        return self.path / PREVIOUS

    def hold(self) -> None:
        """Makes the folder, and keeps other processes from training into it until `release`, or the end of this one.
        A lock of this kind belongs to the process: a kill ends it, and workers that outlive the process do not have it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:  # a link among them, which may lead out of the folder
            raise WriteError(f"{self.path / LOCK}: cannot be written: {error.strerror}") from error
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                pid = os.read(lock, 20).decode(errors="replace").strip()
                owner = f"process {pid}" if pid else "another process"
                os.close(lock)
                raise ValueError(f"{self.path}: is being trained by {owner}") from None
            # else a file system that has no locks
        self._lock = lock
        try:
            self._refuse_a_run()  # one may have begun and ended since
        except ValueError:
            self.release()
            raise
        for left in self.path.glob(".*.part"):  # of a run that was killed while it wrote
            with contextlib.suppress(OSError):
                left.unlink()
        with contextlib.suppress(OSError):  # a full disk: what is written is only for the message
            os.truncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def put_aside(self) -> None:
        """The last checkpoint cannot be used. Nothing is deleted, but the next one must not make it the previous."""
        if self.last.exists():
            os.replace(self.last, self.path / "unusable.pt")

    def start(self, config: Mapping[str, Any], seed: int, device: torch.device) -> None:
        """Makes the folder, with the configuration and the environment. What a run is continued with may be another
        configuration: the log says what has changed."""
        self.path.mkdir(parents=True, exist_ok=True)
        file, text = self.path / "config.yaml", to_yaml(config)
        known = file.read_text().splitlines() if file.exists() else text.splitlines()
        for line in text.splitlines():
            if line not in known:
                self.log(f"continued with {line.strip()}")
        write_atomically(file, text.encode())
        earlier = self.path / "environment.txt"
        before = earlier.read_text() + "\n" if earlier.exists() else ""
        write_atomically(earlier, (before + environment(seed, device)).encode())

    def make(self, name: str) -> Path:
        """A folder in it."""
        try:
            return make_folder(self.path, name)
        except OSError as error:
            raise WriteError(f"{self.path / name}: cannot be written: {error.strerror}") from error

    def log(self, line: str) -> None:
        """Adds a line to the log, with the time."""
        path = self.path / "log.txt"
        before = path.stat().st_size if path.exists() else 0
        try:
            append(path, f"{datetime.datetime.now().isoformat(' ', 'seconds')} {line}\n".encode())
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(path, before)  # a disk may become full in the middle of a line
            raise WriteError(f"{path}: cannot be written: {error.strerror}") from error

    def write_metrics(self, history: Sequence[Mapping[str, float]]) -> None:
        """A row per epoch. Always the whole history, so that no row is missing or comes twice after an interruption."""
        text = io.StringIO()
        names = list(dict.fromkeys(name for row in history for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
        write_atomically(self.path / "metrics.csv", text.getvalue().encode())


def to_yaml(config: Mapping[str, Any]) -> str:
    import yaml  # type: ignore[import-untyped]

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value]
        return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

    return yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)


def environment(seed: int, device: torch.device) -> str:
    """Versions, device, git commit, command and seed, one per line."""
    lines = {
        "date": datetime.datetime.now().isoformat(" ", "seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": seed,
        "pointgrad": pointgrad.__version__,
        "git": _git(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version for name in PACKAGES if (version := _version(name))},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads",
        "cuda": torch.version.cuda or "none",
    }
    return "".join(f"{name}: {value}\n" for name, value in lines.items())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _git() -> str:
    """The commit of the working tree that this file belongs to, if it belongs to one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
        return "unknown"

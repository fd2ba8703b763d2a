"""Run folder: configuration, environment and results of a training run."""

import contextlib
import csv
import datetime
import io
import os
import platform
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import pointgrad
from pointgrad.errors import printable
from pointgrad.locking import try_lock
from pointgrad.writing import NO_FOLLOW, append, make_folder

from .checkpoint import LAST, PREVIOUS
from .files import write_atomically, write_errors

LOCK = ".lock"
_held: set[tuple[int, int, int]] = set()  # process, device and inode of the lock files that this process has locked
_guard = threading.Lock()
ENDED = "ended early:"  # precedes the reason in the log
PACKAGES = ("numpy", "lightning-fabric", "pytorch-lightning", "triton", "laspy", "h5py", "tyro")


class RunFolder:
    """Files of a run. A folder that is not empty is only used to resume.

    Args:
        path: The folder; created by `hold`.
        resume: Whether the folder may hold a run.

    Raises:
        ValueError: The path is a file, or a folder that is not empty and must not be resumed.
    """

    def __init__(self, path: str | Path, *, resume: bool = False) -> None:
        self._lock: tuple[int, tuple[int, int, int]] | None = None
        self.path, self._resume = Path(path), resume
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{printable(self.path)}: expected a folder for the run, this is a file")
        self._refuse_existing_run()

    def _refuse_existing_run(self) -> None:
        if not self._resume and self.path.exists() and any(file.name != LOCK for file in self.path.iterdir()):
            raise ValueError(
                f"{printable(self.path)}: exists and is kept; continue it with --resume, or give a new name"
            )

    @property
    def last(self) -> Path:
        """Checkpoint to resume from."""
        return self.path / LAST

    @property
    def previous(self) -> Path:
        """The checkpoint before `last`."""
        return self.path / PREVIOUS

    def hold(self) -> None:
        """Create the folder, and lock it until `release` or the end of the process. Does nothing if it is locked.

        The lock belongs to the process: it ends when the process is killed, and workers that outlive the process do
        not keep it.

        Raises:
            ValueError: Another process, or another trainer of this process, is training in the folder, or has finished
                a run there in the meantime.
            WriteError: The folder cannot be written.
        """
        if self._lock is not None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with _guard, write_errors(self.path / LOCK):
            with contextlib.suppress(FileNotFoundError):
                # Checked before the file is opened: closing it again would release the lock of this process.
                if _key(os.lstat(self.path / LOCK)) in _held:
                    raise ValueError(f"{printable(self.path)}: is being trained by another trainer of this process")
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o644)
            obtained = True
            with contextlib.suppress(OSError):  # a file system without locks
                obtained = try_lock(lock)
            if not obtained:
                pid = os.read(lock, 20).decode(errors="replace").strip()
                os.close(lock)
                raise ValueError(
                    f"{printable(self.path)}: is being trained by {f'process {pid}' if pid else 'another process'}"
                )
            self._lock = lock, _key(os.fstat(lock))
            _held.add(self._lock[1])
        try:
            self._refuse_existing_run()  # another process may have trained here since the first check
        except ValueError:
            self.release()
            raise
        for draft in self.path.glob(".*.part"):  # left by a run that was killed while writing
            with contextlib.suppress(OSError):
                draft.unlink()
        with contextlib.suppress(OSError):  # a full disk: the process id only serves the message above
            os.truncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            (lock, key), self._lock = self._lock, None
            os.close(lock)  # first: a lock that is taken before the file is closed would be released with it
            _held.discard(key)

    def __del__(self) -> None:
        self.release()

    def put_aside(self) -> None:
        """Rename an unusable last checkpoint, so that the next one does not overwrite `previous` with it."""
        if self.last.exists():
            os.replace(self.last, self.path / "unusable.pt")

    def start(self, config: Mapping[str, Any], seed: int, device: torch.device) -> None:
        """Write the configuration and the environment; log settings that differ from those of the resumed run."""
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
        """Create a subfolder."""
        with write_errors(self.path / name):
            return make_folder(self.path, name)

    def log(self, line: str) -> None:
        """Append a line with the current time to the log."""
        path = self.path / "log.txt"
        with write_errors(path):
            append(path, f"{datetime.datetime.now().isoformat(' ', 'seconds')} {line}\n".encode())

    def write_metrics(self, history: Sequence[Mapping[str, float]]) -> None:
        """Write one row per epoch. The whole history is rewritten, so that an interruption loses or repeats no row."""
        text = io.StringIO()
        names = list(dict.fromkeys(name for row in history for name in row))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
        write_atomically(self.path / "metrics.csv", text.getvalue().encode())


def _key(state: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), state.st_dev, state.st_ino


def to_yaml(config: Mapping[str, Any]) -> str:
    """Write nested settings as YAML; values that YAML does not have become text."""
    import yaml  # type: ignore[import-untyped]

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value]
        return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

    return yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)


def environment(seed: int, device: torch.device) -> str:
    """Describe versions, device, git commit, command and seed, one per line."""
    lines = {
        "date": datetime.datetime.now().isoformat(" ", "seconds"),
        "command": printable(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])),
        "seed": seed,
        "pointgrad": pointgrad.__version__,
        "git": _git_commit(),
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


def _git_commit() -> str:
    """Return the commit of the working tree that contains this file, or "unknown"."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
        return "unknown"

"""`pointgrad view FILES... [--checkpoint RUN]`: clouds, or a training, in a browser."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from pointgrad import train
from pointgrad.data.datasets.folder import is_cloud
from pointgrad.data.files.formats import FORMATS
from pointgrad.view import Viewer, server

from .device import device
from .fail import fail, line

WRONG = 2


@dataclass
class View:
    """Shows clouds in a browser: what they hold, what operators do on them, what a network says of them. Ctrl-C ends.

    Exit status: 0; 2 if nothing can be shown.
    """

    inputs: Positional[tuple[Path, ...]]
    """Files of any format that pointgrad reads, or folders, which are searched for such files."""

    checkpoint: Path | None = None
    """A run folder of `pointgrad train`, or a checkpoint: labels the clouds, and shows what the network looks at."""

    host: str = "127.0.0.1"
    """The address to listen on. As it is, only programs of this machine can connect; 0.0.0.0: everybody who can reach
    this machine, without a password."""

    port: int | None = None
    """Without it, the first free one from 8080 on."""

    points: int = 1_000_000
    """How many points are drawn at once; of larger clouds the nearest parts in detail, the rest in fewer points."""

    columns: str | None = None
    """Names of the columns of text, NPY and BIN files that have none: "x y z class intensity"."""

    category: int | None = None
    """Part segmentation: the number of the kind of object that the files show."""

    device: str = "auto"
    """Of the network: cpu, cuda, cuda:1 ...; auto: a GPU if there is one."""

    def run(self) -> int:
        try:
            paths = _files(self.inputs)
            if self.points < 1:
                raise ValueError(f"--points must be at least 1, got {self.points}")
            trained = None if self.checkpoint is None else train.load(self.checkpoint, device(self.device))
            web = server.start(self.host, self.port, "pointgrad")
        except (ValueError, OSError, ModuleNotFoundError) as error:
            return fail("view", WRONG, line(error))
        viewer = Viewer(web, paths, trained=trained, budget=self.points, columns=self.columns, category=self.category)
        try:
            print(f"{server.address(web)}  (Ctrl-C ends)", flush=True)
            if not server.is_local(self.host):
                print(f"listening on {self.host}: whoever can reach this machine can see and steer this", flush=True)
            for path in paths[1:]:
                if viewer.wait():
                    break
                viewer.open(path)
            if not viewer.wait():
                return WRONG
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0
        finally:
            server.stop(web)


def _files(inputs: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*")) if is_cloud(file)]
            if not inside:
                raise ValueError(f"{path}: expected a folder with files that end in {', '.join(FORMATS)}, found none")
            found += inside
        else:
            found.append(path)
    if not found:
        raise ValueError("expected files or folders to show, got none")
    return list(dict.fromkeys(found))

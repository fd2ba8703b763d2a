"""`pointgrad view FILES... [--checkpoint RUN]`: clouds, or a training, in a browser."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from tyro.conf import Positional

from pointgrad import train
from pointgrad.view import RunViewer, Viewer, server
from pointgrad.view.run_data import is_run
from pointgrad.view.viewer import BUDGET

from .device import device
from .evaluate_run import evaluate_run
from .fail import fail, line
from .inputs import cloud_files

WRONG = 2


@dataclass
class View:
    """Shows clouds in a browser: what they hold, what operators do on them, what a network says of them. Ctrl-C ends.

    Exit status: 0; 2 if nothing can be shown.
    """

    inputs: Positional[tuple[Path, ...]]
    """Files of any format that pointgrad reads, or folders, which are searched for such files; or one run folder of
    `pointgrad train`, which is followed: curves, confusion matrix, worst examples."""

    checkpoint: Path | None = None
    """A run folder of `pointgrad train`, or a checkpoint: labels the clouds, and shows what the network looks at."""

    host: str = "127.0.0.1"
    """The address to listen on. As it is, only programs of this machine can connect; 0.0.0.0: everybody who can reach
    this machine, without a password."""

    port: int | None = None
    """Without it, the first free one from 8080 on."""

    points: int = BUDGET
    """How many points are drawn at once; of larger clouds the nearest parts in detail, the rest in fewer points."""

    columns: str | None = None
    """Names of the columns of text, NPY and BIN files that have none: "x y z class intensity"."""

    category: int | None = None
    """Part segmentation: the number of the kind of object that the files show."""

    device: str = "auto"
    """Of the network: cpu, cuda, cuda:1 ...; auto: a GPU if there is one."""

    def run(self) -> int:
        try:
            return self._run()
        except KeyboardInterrupt:
            _end()

    def _run(self) -> int:
        try:
            runs = [path for path in self.inputs if is_run(path)]
            if runs and (len(self.inputs) > 1 or self.checkpoint is not None):
                raise ValueError(f"{runs[0]}: a run folder must be the only thing to show, without --checkpoint")
            paths = runs or list(dict.fromkeys(path for path, _ in cloud_files(self.inputs, "show")))
            if self.points < 1:
                raise ValueError(f"--points must be at least 1, got {self.points}")
            trained = None if self.checkpoint is None else train.load(self.checkpoint, device(self.device))
            web = server.start(self.host, self.port, "pointgrad")
        except (ValueError, OSError, ModuleNotFoundError) as error:
            return fail("view", WRONG, line(error))
        if runs:
            RunViewer(web, runs[0], evaluate=partial(evaluate_run, device=self.device))
        else:
            viewer = Viewer(
                web, paths, trained=trained, budget=self.points, columns=self.columns, category=self.category
            )
        try:
            print(f"{server.address(web)}  (Ctrl-C ends)", flush=True)
            if not server.is_local(self.host):
                print(f"listening on {self.host}: whoever can reach this machine can see and steer this", flush=True)
            if not runs and not _opened(viewer, paths):
                return WRONG
            while True:
                time.sleep(3600)
        finally:
            server.stop(web)


def _end() -> NoReturn:
    """Without taking the interpreter down: a thread that is in compiled code by then, which reads or predicts, would
    abort the process. Temporary files have no names, and vanish with it."""
    with suppress(OSError):  # nobody may listen any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _opened(viewer: Viewer, paths: Sequence[Path]) -> bool:
    """Whether one of the files can be shown: the first that can is."""
    for path in paths[1:]:
        if viewer.wait():
            return True
        viewer.open(path)
    return viewer.wait()

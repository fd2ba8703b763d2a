"""`pointgrad view FILES... [--checkpoint RUN]`: point clouds, or a training run, in a browser."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

from tyro.conf import Positional

from pointgrad import train
from pointgrad.render.palette import Palette, PaletteName
from pointgrad.view import RunViewer, Viewer, server
from pointgrad.view.run_data import is_run
from pointgrad.view.viewer import BUDGET

from .class_maps import shown_classes, with_classes
from .device import device
from .evaluate_run import evaluate_run
from .inputs import cloud_files
from .status import ExitStatus, fail


@dataclass
class View:
    """Show point clouds in a browser: their contents, results of operators, predictions of a network. Ctrl-C quits.

    Exit status: 0; 2 if nothing can be shown.
    """

    inputs: Positional[tuple[Path, ...]]
    """Point cloud files of any supported format, or folders, which are searched for them;
    or one run folder of `pointgrad train`, whose curves, confusion matrix and worst examples are shown."""

    checkpoint: Path | None = None
    """Run folder of `pointgrad train`, or a checkpoint, to label the clouds and show which points influence a label."""

    host: str = "127.0.0.1"
    """Address to listen on. By default only this machine can connect;
    with 0.0.0.0, everyone who can reach this machine and knows the token in the printed address can."""

    allow_host: tuple[str, ...] = ()
    """Host names under which browsers may open the viewer, for example behind a proxy,
    besides localhost and, with another --host, IP addresses and the name of this machine."""

    token: Literal["auto", "on", "off"] = "auto"
    """Secret in the address of the page, without which no request is answered;
    auto: on, unless only this machine can connect."""

    port: int | None = None
    """Port; by default the first free one from 8080."""

    points: int = BUDGET
    """Maximum number of points drawn. Larger clouds are drawn in detail near the camera, and coarsely elsewhere."""

    classes: tuple[str, ...] = ()
    """Classes of the labels: --classes ground=2 vegetation=3,4,5, or a YAML file with lines name: code.
    By default those of the checkpoint, those next to the file, or those of the LAS standard."""

    other_classes: Literal["ignore", "refuse"] = "ignore"
    """Points whose code belongs to none of --classes are shown without a class, or refused with an error."""

    colors: tuple[str, ...] = ()
    """Colors of classes, by name or number: --colors ground=#8c6d31 water=#2a7ab8."""

    palette: PaletteName = "standard"
    """Colors of the other classes: standard, or colorblind, which color vision deficiencies affect less."""

    columns: str | None = None
    """Names of the columns, for text, NPY and BIN files that do not name them: "x y z class intensity"."""

    category: int | None = None
    """Part segmentation: number of the category of the objects in the files."""

    device: str = "auto"
    """Device of the network: cpu, cuda, cuda:1 ...; auto: a GPU if one is available."""

    def run(self) -> int:
        try:
            return self._run()
        except KeyboardInterrupt:
            _quit()

    def _run(self) -> int:
        try:
            runs = [path for path in self.inputs if is_run(path)]
            if runs and (len(self.inputs) > 1 or self.checkpoint is not None):
                raise ValueError(f"{runs[0]}: a run folder must be the only input, without --checkpoint")
            paths = runs or list(dict.fromkeys(path for path, _ in cloud_files(self.inputs, "show")))
            if self.points < 1:
                raise ValueError(f"--points must be at least 1, got {self.points}")
            palette = Palette.parse(self.palette, self.colors)
            classes = shown_classes(self.classes, self.other_classes)
            if runs and classes is not None:
                raise ValueError(f"{runs[0]}: --classes must not be given for a run folder, which has its own classes")
            trained = None if self.checkpoint is None else train.load(self.checkpoint, device(self.device))
            if trained is not None and classes is not None:
                trained = with_classes(trained, self.classes, self.other_classes)
                classes = trained.class_map  # in the order of the network
            token = None if self.token == "auto" else self.token == "on"
            web = server.start(self.host, self.port, "pointgrad", allow_hosts=self.allow_host, token=token)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            return fail("view", ExitStatus.USAGE, error, self)
        if runs:
            RunViewer(web, runs[0], evaluate=partial(evaluate_run, device=self.device), palette=palette)
        else:
            viewer = Viewer(
                web,
                paths,
                trained=trained,
                budget=self.points,
                columns=self.columns,
                category=self.category,
                palette=palette,
                classes=classes,
            )
        try:
            print(f"{server.address(web)}  (Ctrl-C quits)", flush=True)
            if not server.is_local(self.host):
                who = "knows this address" if web.access.token else "can reach this machine"
                print(f"listening on {self.host}: everyone who {who} can see and control the viewer", flush=True)
            if not runs and not _opened(viewer, paths):
                return ExitStatus.USAGE
            while True:
                time.sleep(3600)
        finally:
            web.stop()


def _quit() -> NoReturn:
    """Exit without shutting down the interpreter, which would abort if a thread is in compiled code.

    Temporary files have no names, and disappear with the process.
    """
    with suppress(OSError):  # the other end of a pipe may be closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _opened(viewer: Viewer, paths: Sequence[Path]) -> bool:
    """Open the first file that can be shown, and return whether there is one."""
    for path in paths[1:]:
        if viewer.wait():
            return True
        viewer.open(path)
    return viewer.wait()

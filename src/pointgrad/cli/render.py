"""`pointgrad render FILES... --out picture.png`: pictures of files, without a display."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from pointgrad.data.files.formats import choose
from pointgrad.data.files.workspace import exists
from pointgrad.data.stream import Source
from pointgrad.render import class_names, save
from pointgrad.render.legend import Title
from pointgrad.render.save import LONGEST, SECONDS, check_suffix
from pointgrad.render.scene import SAMPLE, Scene
from pointgrad.render.still import AZIMUTH, ELEVATION, FRAMES, SIZE, Background, Look, compose, shared_scales

from .fail import fail, line
from .inputs import cloud_files

FAILED, WRONG, INTERRUPTED = 1, 2, 130  # exit statuses, as the help of the command says
MOST_FRAMES = 360  # which are all in memory before they are written
TURNED = 4_000_000  # points of a file that a turntable shows: each frame draws them all
ERRORS = (ValueError, OSError, ModuleNotFoundError, MemoryError)


@dataclass
class Render:
    """Draws files of points: a picture, or a turntable. Several files stand side by side, in the same colours; or each
    gets a picture of its own, if --out is a folder. LAS and LAZ may be larger than memory.

    Exit status: 0; 1 if some of the files could not be drawn, the others are; 2 if none could, or for a wrong command
    line.
    """

    inputs: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILE")]
    """Files of any format that pointgrad reads, or folders, which are searched for such files."""

    out: Path
    """The picture: .png, .jpg, .webp, or .gif for a turntable. Without a suffix: a folder, for a .png of each file."""

    by: str | None = None
    """What colours show: label, rgb, height, or a column of the file. Without it: labels, if there are several; else
    colours; else height."""

    azimuth: float = AZIMUTH
    """Where the camera stands, seen from above: degrees from +x over +y."""

    elevation: float = ELEVATION
    """How high it stands: 0 looks level, 90 straight down."""

    width: int = SIZE[0]
    """Of the picture, in pixels."""

    height: int = SIZE[1]
    """Of the picture, in pixels."""

    point_size: float | None = None
    """Diameter of the dots, in pixels. Without it: so that surfaces are closed."""

    background: Background = "white"
    """Transparent needs .png or .webp."""

    legend: bool = True
    """The names of classes, or the range of a quantity."""

    titles: tuple[str, ...] = ()
    """A line above each file. Without it: their names, if there are several."""

    frames: int | None = None
    """Of a turntable; 48 in a .gif. Makes a turntable of a .webp too."""

    seconds: float = SECONDS
    """That a turn takes."""

    columns: str | None = None
    """Names of the columns of text, NPY and BIN files that have none: "x y z class intensity"."""

    overwrite: bool = False
    """Replaces pictures that are already there."""

    def run(self) -> int:
        try:
            return self._run()
        except KeyboardInterrupt:
            return fail("render", INTERRUPTED, "interrupted; pictures that are there are complete")

    def _run(self) -> int:
        try:
            look = Look(
                (self.width, self.height), self.azimuth, self.elevation, self.point_size, self.background, self.legend
            )
            if not 0 < self.seconds <= LONGEST:
                raise ValueError(f"--seconds must be above 0 and at most {LONGEST:.0f}, got {self.seconds}")
            if self.frames is not None and not 2 <= self.frames <= MOST_FRAMES:
                raise ValueError(f"--frames must be from 2 to {MOST_FRAMES}, got {self.frames}")
            files = [(file, self.out / place) for file, place in cloud_files(self.inputs, "draw", self.out)]
            if self.titles and len(self.titles) != len(files):
                raise ValueError(f"--titles must be one for each of {len(files)} files, got {len(self.titles)}")
            targets = self._targets(files)
        except ERRORS as error:
            return fail("render", WRONG, line(error))
        done = [self._draw(target, sources, look) for target, sources in targets.items()]
        drawn = sum(done)
        return 0 if drawn == len(files) else FAILED if drawn else WRONG

    def _targets(self, files: Sequence[tuple[Path, Path]]) -> dict[Path, list[tuple[Path, str]]]:
        """Which files, and their titles, are in which picture."""
        titles = [*self.titles] or [source.name if len(files) > 1 else "" for source, _ in files]
        targets: dict[Path, list[tuple[Path, str]]] = {}
        if self.out.is_dir() or not self.out.suffix:
            for (source, folder), title in zip(files, titles, strict=True):
                target = folder / f"{_stem(source)}.png"
                if target in targets:
                    raise ValueError(f"{source} and {targets[target][0][0]} would have the same picture {target}")
                targets[target] = [(source, title if self.titles else "")]
        else:
            targets[self.out] = [(source, title) for (source, _), title in zip(files, titles, strict=True)]
        for target in targets:
            check_suffix(target, moving=self._frames(target) > 0, clear=self.background == "transparent")
            if target.exists() and not self.overwrite:
                raise exists(target)
            _check_writable(target)
        return targets

    def _frames(self, target: Path) -> int:
        return self.frames or (FRAMES if target.suffix.lower() == ".gif" else 0)

    def _draw(self, target: Path, sources: Sequence[tuple[Path, str]], look: Look) -> int:
        """Draws those files that can be; how many."""
        frames = self._frames(target)
        scenes: list[Scene] = []
        titles: list[Title] = []
        names: dict[int, str] = {}
        for path, title in sources:
            try:
                scene = Scene(Source(path, self.columns).parts, look.view, self.by, TURNED if frames else SAMPLE)
                scene = scene.sampled() if frames else scene
                names = {**class_names(path, scene.scale(self.by, None).by), **names}
            except ERRORS as error:
                fail("render", WRONG, _about(path, error))
                continue
            scenes.append(scene)
            titles.append(Title(title))
            if scene.dropped:
                print(f"{path}: {scene.dropped:,} points without finite coordinates are left out")
        if not scenes:
            return 0
        try:
            scales = shared_scales(scenes, self.by, names)
            shown = titles if any(title.text for title in titles) else ()
            images = list(compose(scenes, scales, look, shown, frames=frames))
            save(target, images if frames else images[0], seconds=self.seconds, overwrite=self.overwrite)
        except ERRORS as error:
            fail("render", WRONG, _about(target, error))
            return 0
        print(f"{target}: {sum(scene.count for scene in scenes):,} points by {scales[0].by}")
        return len(scenes)


def _stem(source: Path) -> str:
    """The name without the suffix of its format, pcd.bin as well as ply."""
    try:
        return source.name[: -len(choose(source, None)) - 1]
    except ValueError:
        return source.stem


def _check_writable(target: Path) -> None:
    """Before hours of drawing."""
    place = target.parent
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise ValueError(f"{target}: expected a folder that can be written to, got {place}")


def _about(path: Path, error: BaseException) -> str:
    text = line(error)
    return text if str(path) in text else f"{path}: {text}"

"""`pointgrad render FILES... --out image.png`: images of point clouds, without a display."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from pointgrad.data import ClassMap
from pointgrad.data.files.formats import choose
from pointgrad.data.files.workspace import exists
from pointgrad.data.stream import Source
from pointgrad.errors import one_line, printable
from pointgrad.render import save
from pointgrad.render.legend import Title
from pointgrad.render.palette import Palette, PaletteName
from pointgrad.render.save import LONGEST, SECONDS, check_suffix
from pointgrad.render.scene import SAMPLE, Scene
from pointgrad.render.still import (
    AZIMUTH,
    ELEVATION,
    FRAMES,
    LEAST,
    MOST,
    SIZE,
    Background,
    Look,
    compose,
    shared_scales,
)

from .class_maps import shown_classes
from .inputs import cloud_files
from .status import ExitStatus, fail

MAX_FRAMES = 360  # all are in memory before they are written
TURNTABLE_POINTS = 4_000_000  # limit per file in a turntable: each frame draws them all
ERRORS = (ValueError, OSError, ModuleNotFoundError, MemoryError)


@dataclass
class Render:
    """Render point clouds to an image or a turntable animation. Several files are drawn side by side with the same
    colors, or one image per file if --out is a folder. LAS and LAZ files may be larger than memory.

    Exit status: 0; 1 if some files could not be drawn (the others are); 2 if no file could be drawn, or for an invalid
    command line.
    """

    inputs: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILE")]
    """Point cloud files of any supported format, or folders, which are searched for them."""

    out: Path
    """Image file: .png, .jpg, .webp, or .gif for a turntable. Without a suffix: a folder for one .png per file."""

    by: str | None = None
    """Quantity shown by colors: label, rgb, height, or a column of the file.
    By default label if there are several labels, else rgb if available, else height."""

    azimuth: float = AZIMUTH
    """Direction of the camera around the vertical axis, in degrees from +x towards +y."""

    elevation: float = ELEVATION
    """Elevation of the camera in degrees: 0 looks horizontally, 90 straight down."""

    width: int = SIZE[0]
    """Width of the image, in pixels."""

    height: int = SIZE[1]
    """Height of the image, in pixels."""

    point_size: float | None = None
    """Diameter of points, in pixels. By default large enough to close gaps in surfaces."""

    background: Background = "white"
    """Background; transparent requires .png or .webp."""

    legend: bool = True
    """Show a legend: names of classes, or the range of the quantity."""

    classes: tuple[str, ...] = ()
    """Classes of the labels: --classes ground=2 vegetation=3,4,5, or a YAML file with lines name: code.
    By default those next to the file, or those of the LAS standard."""

    other_classes: Literal["ignore", "refuse"] = "ignore"
    """Points whose code belongs to none of --classes are drawn without a class, or refused with an error."""

    colors: tuple[str, ...] = ()
    """Colors of classes, by name or number: --colors ground=#8c6d31 water=#2a7ab8."""

    palette: PaletteName = "standard"
    """Colors of the other classes: standard, or colorblind, which color vision deficiencies affect less."""

    titles: tuple[str, ...] = ()
    """Title of each file. By default the file names, if there are several."""

    frames: int | None = None
    """Frames of a turntable; by default 48 for .gif. With .webp, the image becomes a turntable."""

    seconds: float = SECONDS
    """Duration of one turn, in seconds."""

    columns: str | None = None
    """Names of the columns, for text, NPY and BIN files that do not name them: "x y z class intensity"."""

    overwrite: bool = False
    """Replace existing images."""

    def run(self) -> int:
        try:
            return self._run()
        except KeyboardInterrupt:
            return fail("render", ExitStatus.INTERRUPTED, "interrupted; all images written so far are complete")

    def _run(self) -> int:
        try:
            for name in ("width", "height"):
                if not LEAST <= getattr(self, name) <= MOST:
                    raise ValueError(f"--{name} must be {LEAST} to {MOST} pixels, got {getattr(self, name)}")
            look = Look(
                (self.width, self.height), self.azimuth, self.elevation, self.point_size, self.background, self.legend
            )
            palette = Palette.parse(self.palette, self.colors)
            classes = shown_classes(self.classes, self.other_classes)
            if not 0 < self.seconds <= LONGEST:
                raise ValueError(f"--seconds must be above 0 and at most {LONGEST:.0f}, got {self.seconds}")
            if self.frames is not None and not 2 <= self.frames <= MAX_FRAMES:
                raise ValueError(f"--frames must be from 2 to {MAX_FRAMES}, got {self.frames}")
            files = [(file, self.out / place) for file, place in cloud_files(self.inputs, "draw", self.out)]
            if self.titles and len(self.titles) != len(files):
                raise ValueError(f"--titles must have one title for each of {len(files)} files, got {len(self.titles)}")
            targets = self._targets(files)
        except ERRORS as error:
            return fail("render", ExitStatus.USAGE, error, self)
        done = [self._draw(target, sources, look, palette, classes) for target, sources in targets.items()]
        drawn = sum(done)
        if drawn == len(files):
            return ExitStatus.OK
        return ExitStatus.FAILED if drawn else ExitStatus.USAGE

    def _targets(self, files: Sequence[tuple[Path, Path]]) -> dict[Path, list[tuple[Path, str]]]:
        """Return the files of each image, with their titles."""
        titles = [*self.titles] or [source.name if len(files) > 1 else "" for source, _ in files]
        targets: dict[Path, list[tuple[Path, str]]] = {}
        if self.out.is_dir() or not self.out.suffix:
            for (source, folder), title in zip(files, titles, strict=True):
                target = folder / f"{_stem(source)}.png"
                if target in targets:
                    raise ValueError(f"{source} and {targets[target][0][0]} would have the same image {target}")
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

    def _draw(
        self,
        target: Path,
        sources: Sequence[tuple[Path, str]],
        look: Look,
        palette: Palette,
        classes: ClassMap | None,
    ) -> int:
        """Draw the files that can be read, and return their number."""
        frames = self._frames(target)
        scenes: list[Scene] = []
        titles: list[Title] = []
        names: dict[int, str] = {}
        for path, title in sources:
            try:
                source = Source(path, self.columns, classes)
                scene = Scene(source.parts, look.view, self.by, TURNTABLE_POINTS if frames else SAMPLE)
                scene = scene.sampled() if frames else scene
                names = {**source.names(scene.scale(self.by, None).by), **names}
            except ERRORS as error:
                fail("render", ExitStatus.USAGE, _about(path, error), self)
                continue
            scenes.append(scene)
            titles.append(Title(title))
            if scene.dropped:
                print(f"{printable(path)}: {scene.dropped:,} points without finite coordinates are omitted")
        if not scenes:
            return 0
        try:
            scales = shared_scales(scenes, self.by, names, palette)
            palette.check(scales[0].names, scales[0].counts)
            shown = titles if any(title.text for title in titles) else ()
            images = list(compose(scenes, scales, look, shown, frames=frames))
            save(target, images if frames else images[0], seconds=self.seconds, overwrite=self.overwrite)
        except ERRORS as error:
            fail("render", ExitStatus.USAGE, _about(target, error), self)
            return 0
        print(f"{printable(target)}: {sum(scene.count for scene in scenes):,} points by {scales[0].by}")
        return len(scenes)


def _stem(source: Path) -> str:
    """Return the file name without the suffix of its format, such as ply or pcd.bin."""
    try:
        return source.name[: -len(choose(source, None)) - 1]
    except ValueError:
        return source.stem


def _check_writable(target: Path) -> None:
    """Raise ValueError if the image cannot be written, before hours of drawing."""
    place = target.parent
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise ValueError(f"{target}: expected a folder that can be written to, got {place}")


def _about(path: Path, error: BaseException) -> str:
    text = one_line(error)
    return text if printable(path) in text else f"{path}: {text}"

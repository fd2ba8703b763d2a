"""Shared by all figures: colours, and reproducible SVG files."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.figure

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "pointgrad"  # makes the ids inside an SVG reproducible

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "docs" / "book" / "images"
BLUE, ORANGE, GRAY, GREEN = "#1f5fa8", "#e07b39", "#8a94a0", "#3a8f5c"


def save_svg(figure: mpl.figure.Figure, path: Path) -> None:
    figure.savefig(path, facecolor="white", bbox_inches="tight", metadata={"Date": None})

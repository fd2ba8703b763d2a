"""Screenshots of the viewer in a headless browser."""

import importlib.util
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SOFTWARE = ("--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")  # 3D without a GPU
SIZE = {"width": 1280, "height": 800}
COLORS = 128  # size of the palette; the loss is hardly visible


def missing() -> str:
    """The reason why no screenshots can be taken; empty if they can."""
    for name in ("playwright", "viser"):
        if importlib.util.find_spec(name) is None:
            return f"skipped: screenshots of the viewer need {name}"
    return "" if _browser() else f"skipped: screenshots of the viewer need {' or '.join(BROWSERS)}"


@contextmanager
def page(url: str) -> Iterator[Any]:
    """The page of a viewer, after closing the browser's notice about the missing GPU."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=_browser(), args=SOFTWARE)
        opened = browser.new_page(viewport=SIZE)
        opened.set_default_timeout(60_000)
        opened.goto(url)
        opened.locator(".mantine-Notification-closeButton").first.click()
        yield opened
        browser.close()


def save(opened: Any, path: Path) -> None:
    """Save a screenshot once points are visible and nothing moves."""
    from PIL import Image

    before = b""
    for _ in range(60):
        opened.wait_for_timeout(1000)
        now = opened.screenshot()
        image = Image.open(io.BytesIO(now)).convert("RGB")
        scene = np.asarray(image)[:, :860].astype(int)  # left of the panel
        if now == before and int((np.ptp(scene, axis=2) > 25).sum()) > 3000:
            image.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
            return
        before = now
    raise RuntimeError(f"{path.name}: points must appear and stop moving within a minute")


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)

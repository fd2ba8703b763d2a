"""Photographs of the viewer: a real browser, without a window."""

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
COLORS = 256  # fewer than there are, which nobody sees


def missing() -> str:
    """Why no photographs can be taken here; empty if they can."""
    for name in ("playwright", "viser"):
        if importlib.util.find_spec(name) is None:
            return f"skipped: pictures of the viewer need {name}"
    return "" if _browser() else f"skipped: pictures of the viewer need {' or '.join(BROWSERS)}"


@contextmanager
def page(url: str) -> Iterator[Any]:
    """The page of a viewer, without the browser's note that there is no GPU."""
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
    """As soon as points are there and nothing moves any more."""
    from PIL import Image

    before = b""
    for _ in range(60):
        opened.wait_for_timeout(1000)
        now = opened.screenshot()
        image = Image.open(io.BytesIO(now)).convert("RGB")
        scene = np.asarray(image)[:, :860].astype(int)  # left of the panel
        if now == before and int((np.ptp(scene, axis=2) > 25).sum()) > 3000:
            image.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
            return
        before = now
    raise RuntimeError(f"{path.name}: the points do not appear, or do not rest, within a minute")


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)

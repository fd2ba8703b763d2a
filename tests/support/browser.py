"""A real browser, without a window: pages of the viewer, and what is on them."""

import io
import os
import shutil
import time
from contextlib import contextmanager

import numpy as np
import pytest

FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60  # seconds until what should be seen must be seen; a loaded machine draws slowly
EXPECTED = ("GPU stall due to ReadPixels", "THREE.Clock")  # the browser about itself


def executable():
    return os.environ.get("POINTGRAD_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium():
    playwright = pytest.importorskip("playwright.sync_api")
    path = executable()
    if path is None:
        pytest.skip("no browser: install Debian's chromium, or name one in POINTGRAD_BROWSER")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Page:
    """A page of a viewer. `complaints`: errors and warnings on its console."""

    def __init__(self, browser, url, width=1100, height=700):
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.complaints = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.set_default_timeout(PATIENCE * 1000)
        self.page.goto(url)

    def _said(self, message):
        if message.type in ("error", "warning") and not any(known in message.text for known in EXPECTED):
            self.complaints.append(message.text)

    def picture(self):
        """(H, W, 3) of the scene, without the panel and the notices of the page."""
        from PIL import Image

        shown = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        return np.asarray(shown)[:, :-330].astype(int)

    def count(self, color, near=24):
        """Pixels of about a colour."""
        return int((abs(self.picture() - np.array(color)).max(2) <= near).sum())

    def until(self, holds):
        """Waits until a condition holds, and returns what it is; the last try is returned even if it does not."""
        end = time.monotonic() + PATIENCE
        while not (value := holds()) and time.monotonic() < end:
            self.page.wait_for_timeout(100)
        return value

    def choose(self, control, option):
        self.page.get_by_role("combobox", name=control).click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def number(self, control, value):
        """Types into the number field of a slider."""
        label = self.page.locator("label", has_text=control)
        field = label.locator("xpath=ancestor::div[.//input[@type='text']][1]").get_by_role("textbox")
        field.fill(str(value))
        field.press("Enter")

    def click(self, where):
        """where: (row, column) of the picture."""
        self.page.mouse.click(float(where[1]), float(where[0]))

    def text(self):
        return self.page.inner_text("body")

    def close(self):
        self.page.close()

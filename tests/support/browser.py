"""A headless browser for tests of the viewer's pages."""

import io
import os
import shutil
import time
from contextlib import contextmanager

import numpy as np
import pytest

FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 60  # seconds; a loaded machine draws slowly
IGNORED = ("GPU stall due to ReadPixels", "THREE.Clock")  # console messages that do not come from the viewer


def executable():
    return os.environ.get("POINTGRAD_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium():
    playwright = pytest.importorskip("playwright.sync_api")
    path = executable()
    if path is None:
        pytest.skip("no browser: install chromium, or set POINTGRAD_BROWSER to the path of one")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Page:
    """A page of a viewer.

    Attributes:
        page: The page of playwright.
        messages: Errors and warnings on the console.
    """

    def __init__(self, browser, url, width=1100, height=700):
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.messages = []
        self.page.on("console", self._record)
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.set_default_timeout(TIMEOUT * 1000)
        self.page.goto(url)

    def _record(self, message):
        if message.type in ("error", "warning") and not any(known in message.text for known in IGNORED):
            self.messages.append(message.text)

    def picture(self):
        """Pixels (H, W, 3) of the scene, without the control panel and notifications."""
        from PIL import Image

        shown = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        return np.asarray(shown)[:, :-330].astype(int)

    def count(self, color, near=24):
        """Number of pixels that are close to a color."""
        return int((abs(self.picture() - np.array(color)).max(2) <= near).sum())

    def middle_of(self, color):
        """(row, column) of a pixel whose neighbours have the same colour."""
        same = abs(self.picture() - np.array(color)).max(2) <= 24
        inner = same.copy()
        for axis in (0, 1):
            for step in (-3, 3):
                inner &= np.roll(same, step, axis)
        places = np.argwhere(inner)
        return places[len(places) // 2]

    def until(self, holds):
        """Wait until a condition is true and return its last value, also after a timeout."""
        end = time.monotonic() + TIMEOUT
        while not (value := holds()) and time.monotonic() < end:
            self.page.wait_for_timeout(100)
        return value

    def choose(self, control, option):
        """Choose an option of a dropdown."""
        self.page.get_by_role("combobox", name=control).click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def number(self, control, value):
        """Type a number into the text field of a slider."""
        label = self.page.locator("label", has_text=control)
        field = label.locator("xpath=ancestor::div[.//input[@type='text']][1]").get_by_role("textbox")
        field.fill(str(value))
        field.press("Enter")

    def click(self, where):
        """Click at (row, column) of the picture."""
        self.page.mouse.click(float(where[1]), float(where[0]))

    def text(self):
        """All text on the page."""
        return self.page.inner_text("body")

    def close(self):
        self.page.close()

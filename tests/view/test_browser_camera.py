"""Cameras of the viewer in a real browser, and windows of any size."""

import io

import numpy as np
import pytest

from pointgrad.render.colors import PALETTE

pytest.importorskip("viser")
pytestmark = pytest.mark.long

BLUE, ORANGE, GREEN = (tuple(int(part) for part in color) for color in PALETTE[:3])


def test_the_whole_cloud_is_shown_at_any_window_size(opened):
    _, page = opened("walls.laz")

    def shown():
        """Bounds of the cloud, relative to the canvas."""
        canvas = page.page.locator("canvas[data-engine]").bounding_box()
        from PIL import Image

        image = np.asarray(Image.open(io.BytesIO(page.page.screenshot())).convert("RGB")).astype(int)
        image = image[: int(canvas["height"]), : int(canvas["width"]) - 2]
        rows, columns = np.nonzero(np.ptp(image, axis=2) > 60)
        if len(rows) < 300:
            return 0, 0
        ends = np.array([columns.min(), columns.max()]) / canvas["width"], np.array([rows.min(), rows.max()])
        ends = np.stack([ends[0], ends[1] / canvas["height"]])
        return ends[:, 0].min(), np.ptp(ends, axis=1).max() * (ends[:, 1] < 1 - 1e-3).all()

    def fits():
        nearest, extent = shown()
        return nearest > 0.01 and 0.8 < extent < 0.98

    for width, height in ((1100, 700), (700, 900), (900, 300), (390, 844)):
        page.page.set_viewport_size({"width": width, "height": height})
        assert page.until(fits), (width, height, shown())
    page.page.set_viewport_size({"width": 1100, "height": 700})
    before = page.until(lambda: fits() and page.count(GREEN))
    page.page.mouse.move(300, 350)
    for _ in range(6):
        page.page.mouse.wheel(0, 800)
    assert page.until(lambda: page.count(GREEN) < before / 2)
    page.page.set_viewport_size({"width": 1000, "height": 700})
    page.page.wait_for_timeout(1000)
    assert page.count(GREEN) < before / 2  # a camera that was moved stays
    page.page.get_by_role("button", name="Reset camera").click()
    assert page.until(fits)
    page.page.get_by_role("button", name="Top").click()
    assert page.until(lambda: 100 < page.count(GREEN, 60) < before / 2)  # the walls are thin
    page.page.get_by_role("button", name="Front").click()
    assert page.until(lambda: page.count(GREEN) > before / 2)
    assert page.messages == []


def test_wheel_zooms_to_the_point_under_the_cursor(opened):
    """The middle of the picture is behind the walls: zooming there would pass through them."""
    viewer, page = opened("walls.laz")
    assert page.until(lambda: page.count(GREEN) > 500)
    page.page.get_by_role("button", name="Front").click()
    assert page.until(lambda: page.count(BLUE) > 1000)
    where, before = page.middle_of(BLUE), page.count(BLUE)
    page.click(where)
    assert page.until(lambda: viewer.picked is not None)
    page.page.mouse.move(float(where[1]), float(where[0]))
    for _ in range(7):
        page.page.mouse.wheel(0, -400)
    assert page.until(lambda: page.count(ORANGE) == page.count(GREEN) == 0)
    assert page.count(BLUE) > 200
    (client,) = viewer.server.get_clients().values()
    distance = np.linalg.norm(np.asarray(client.camera.position) - viewer.picked.position)
    assert 0.02 < distance < 1.5
    for _ in range(14):
        page.page.mouse.wheel(0, 400)
    assert page.until(lambda: 0 < page.count(BLUE) < before / 4)
    page.page.mouse.move(20, 680)  # no point is here: the cloud must not leave the picture
    for _ in range(14):
        page.page.mouse.wheel(0, -400)
    assert page.until(lambda: sum(page.count(color) for color in (BLUE, ORANGE, GREEN)) > 200)
    assert page.messages == []


def test_phone(opened):
    """The controls are as wide as the window, and a tap on their title folds them."""
    _, page = opened("walls.laz")
    page.page.set_viewport_size({"width": 390, "height": 844})
    title = page.page.get_by_text("pointgrad", exact=True)
    controls = page.page.get_by_role("combobox", name="Colour by")
    arrow = "element => getComputedStyle(element.parentElement, '::after').content"
    for _ in range(2):
        assert page.until(lambda: title.bounding_box()["y"] > 400 and controls.is_visible())
        assert title.evaluate("element => element.closest('.mantine-Paper-root').offsetWidth") == 390
        assert title.evaluate(arrow) == '"▾"'
        page.page.mouse.move(200, 700)
        page.page.mouse.wheel(0, 300)  # the title stays in view
        assert page.until(lambda: 0 < title.bounding_box()["y"] < 600)
        title.click()
        assert page.until(lambda: title.bounding_box()["y"] > 780 and title.evaluate(arrow) == '"▴"')
        assert not controls.is_visible()
        title.click()
    assert page.messages == []


def test_long_file_names_are_complete(opened, scene):
    names = [f"tile_of_an_airborne_survey_with_a_very_long_name_{number}.ply" for number in range(2)]
    for name in names:
        (scene / name).write_bytes((scene / "other.ply").read_bytes())
    viewer, page = opened(*names)
    assert page.until(lambda: viewer.levels is not None and names[0] in page.text())
    page.page.get_by_role("combobox", name="File").click()
    option = page.page.get_by_role("option", name=names[1])
    for element in (page.page.locator("p", has_text=names[0]), option, page.page.get_by_role("tooltip")):
        element.wait_for()
        assert element.evaluate("element => element.scrollWidth <= element.clientWidth")
        assert element.bounding_box()["height"] > 30  # more than one line

"""The viewer in a real browser: drawing, controls and clicks."""

import http.server
import io
import threading
import time

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import data
from pointgrad.render.colors import PALETTE, RIGHT, WRONG
from pointgrad.view import server
from pointgrad.view.measure import MARK_COLOR
from tests.support.browser import TIMEOUT, Page
from tests.support.scenes import Relative, trained

pytest.importorskip("viser")
pytestmark = pytest.mark.long

BLUE, ORANGE, GREEN = (tuple(int(part) for part in color) for color in PALETTE[:3])
CHOSEN = (214, 48, 49)


def test_colors_point_size_classes_and_click(opened):
    viewer, page = opened("walls.laz")
    assert page.until(lambda: all(page.count(color) > 500 for color in (BLUE, ORANGE, GREEN)))
    text = page.text()
    for name in ("brick", "glass", "wood", "3,000", "33.3%", "walls.laz"):
        assert name in text

    page.click(page.middle_of(ORANGE))
    assert page.until(lambda: "glass (1)" in page.text())
    picked = viewer.picked
    assert picked.row.cloud.labels.tolist() == [1]
    number = int(picked.row.number[0])
    world = data.read(viewer.paths[0]).world()[number]
    assert torch.equal(picked.row.cloud.world()[0], world)
    assert f"{float(world[0]):.6f}".rstrip("0").rstrip(".") in page.text()

    before = page.count(BLUE)
    page.number("Point size", 0.2)
    assert page.until(lambda: page.count(BLUE) < before / 2)
    page.number("Point size", 1)
    assert page.until(lambda: page.count(BLUE) > 0.9 * before)

    page.page.get_by_text("Visible classes").click()
    page.page.get_by_role("checkbox", name="glass").click()
    assert page.until(lambda: page.count(ORANGE) == 0)
    assert page.count(BLUE) > 500
    page.page.get_by_role("checkbox", name="glass").click()
    assert page.until(lambda: page.count(ORANGE) > 500)

    page.choose("Colour by", "height")
    assert page.until(lambda: page.count(BLUE, 8) == page.count(ORANGE, 8) == 0)
    assert page.until(lambda: page.count((53, 183, 121), 30) > 100)  # the middle of the ramp

    page.choose("Background", "black")
    assert page.until(lambda: (page.picture()[:40, -40:] < 40).all())
    assert page.messages == []


def mark(picture):
    """Center (row, column) of the mark of the clicked point, None if there is none."""
    places = np.argwhere(abs(picture - np.array(MARK_COLOR)).max(2) <= 30)
    return None if len(places) < 40 else (places.min(0) + places.max(0)) / 2


def test_linked_views_have_one_camera(opened):
    viewer, page = opened("walls.laz")
    assert page.until(lambda: page.count(GREEN) > 500)
    page.choose("Compare with", "intensity")
    ramp = (38, 130, 142)
    half = page.picture().shape[1] // 2

    def ready():
        picture = page.picture()
        left, right = picture[:, : half - 4], picture[:, half + 4 :]
        return has(left, GREEN) and has(right, ramp, 30) and not has(right, GREEN, 10) and not has(left, ramp, 10)

    assert page.until(ready)
    assert page.page.locator(".pointgrad-titles").inner_text().split() == ["label", "intensity"]
    for turn in range(2):
        canvas = page.page.locator("canvas[data-engine]").bounding_box()
        where = page.middle_of(GREEN)
        if turn:  # the same point of the other view
            where = where + np.array([0, canvas["width"] / 2])
        page.click(where)
        width = canvas["width"] / 2
        assert page.until(lambda width=width: two_marks(page, width) is not None)
        marks = two_marks(page, width)
        assert marks[1] - marks[0] == pytest.approx([0, canvas["width"] / 2], abs=1.5)
        assert marks[turn] == pytest.approx(np.asarray(where, float), abs=8)  # within the reach of a click
        assert viewer.picked.row.cloud.labels.tolist() == [2]
        page.page.mouse.move(250, 350)
        page.page.mouse.down()
        page.page.mouse.move(210, 330, steps=4)  # turns both views
        page.page.mouse.up()
    page.choose("Compare with", "none")
    assert page.until(lambda: not has(page.picture(), ramp, 12))
    assert page.messages == []


def two_marks(page, width):
    """Centers of the marks in two views, (2, 2); None if one is missing."""
    picture = page.picture()
    left, right = mark(picture[:, : int(width)]), mark(picture[:, int(width) :])
    return None if left is None or right is None else np.stack([left, right + np.array([0, int(width)])])


def has(picture, color, near=24):
    return int((abs(picture - np.array(color)).max(2) <= near).sum()) > 100


def test_shading_clipping_and_measuring(opened):
    viewer, page = opened("walls.laz")
    assert page.until(lambda: page.count(GREEN) > 500)
    exact = page.count(GREEN, 3)
    page.page.get_by_role("checkbox", name="Shading").click()
    assert page.until(lambda: page.count(GREEN, 3) > 1.1 * exact)  # no pixel is darker
    page.page.get_by_role("checkbox", name="Shading").click()
    assert page.until(lambda: page.count(GREEN, 3) < 1.05 * exact)

    page.page.get_by_text("Measure", exact=True).click()
    page.page.get_by_role("checkbox", name="Measure distances").click()
    picked = []
    for color in (ORANGE, GREEN):
        page.click(page.middle_of(color))
        assert page.until(lambda: viewer.picked is not None and all(viewer.picked is not each for each in picked))
        picked.append(viewer.picked)
    first, second = (each.row.cloud.world()[0] for each in picked)
    assert page.until(lambda: f"{float((first - second).norm()):,.6g}" in page.text())
    assert f"{float(second[2] - first[2]):,.6g}" in page.text()
    page.page.get_by_role("checkbox", name="Measure distances").click()
    assert page.until(lambda: mark(page.picture()) is None)

    page.page.get_by_text("Clipping box", exact=True).click()
    page.page.get_by_role("checkbox", name="Clip").click()
    slider = page.page.locator(".multi-slider").first
    slider.scroll_into_view_if_needed()
    upper, track = slider.locator(".multi-slider-thumb").nth(1).bounding_box(), slider.bounding_box()
    page.page.mouse.move(upper["x"] + upper["width"] / 2, upper["y"] + upper["height"] / 2)
    page.page.mouse.down()
    page.page.mouse.move(track["x"] + track["width"] / 2, upper["y"], steps=5)
    page.page.mouse.up()
    assert page.until(lambda: 5e6 + 5 < viewer._clipping._sliders[0].value[1] < 5e6 + 9)
    assert page.until(lambda: page.count(GREEN) == 0 and page.count(BLUE) > 500)
    assert page.messages == []


def test_screenshot_is_the_scene_as_png(opened):
    from PIL import Image

    _, page = opened("walls.laz")
    assert page.until(lambda: page.count(GREEN) > 500)
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name="Screenshot").click()
    assert download.value.suggested_filename == "walls.png"
    picture = np.asarray(Image.open(io.BytesIO(download.value.path().read_bytes())).convert("RGB")).astype(int)
    assert (abs(picture - np.array(GREEN)).max(2) < 24).sum() > 500


def test_panel_follows_its_slider(opened):
    viewer, page = opened("walls.laz")
    page.page.get_by_role("tab", name="Operators").click()
    page.choose("Operator", "farthest points")
    assert page.until(lambda: page.count(CHOSEN, 60) > 50)
    assert page.until(lambda: page.count(GREEN) == 0)
    dimmed = np.rint(0.4 * np.array(GREEN) + 0.6 * 255)
    assert page.until(lambda: page.count(dimmed, 12) > 500)
    points = viewer.sample.cloud.points
    for count in (5, 400):
        page.number("Samples (m)", count)
        local = (points - points.amin(0)).float()
        expected = pointgrad.farthest_point_sampling(local, count, return_radius=True).radius[-1]
        assert page.until(lambda shown=f"{float(expected):.4g}": shown in page.text())
    page.page.get_by_role("tab", name="View").click()
    assert "farthest points is drawn over the dimmed cloud" in page.text()
    page.page.get_by_role("button", name="Remove operator").click()
    assert page.until(lambda: page.count(GREEN) > 500 and not viewer.overlay._nodes)
    assert "is drawn over" not in page.text()
    assert page.messages == []


def test_predictions_next_to_labels(opened):
    network = trained(Relative(), normalize="center")
    viewer, page = opened("walls.laz", trained=network)
    assert page.until(lambda: "predicted 9,000 of 9,000 points" in page.text())
    assert page.page.get_by_role("combobox", name="Colour by").input_value() == "prediction"
    assert page.page.get_by_role("combobox", name="Compare with").input_value() == "label"
    assert page.until(lambda: page.count(GREEN) > 100)  # only the labels have a third class
    cloud = data.read(viewer.paths[0])
    expected = pointgrad.predict.label(network, cloud).labels
    row = viewer.levels.sample(10_000)
    assert torch.equal(row.cloud.features["prediction"].long(), expected[torch.from_numpy(row.number)])
    known = cloud.labels < len(network.classes)
    accuracy = float((expected == cloud.labels)[known].float().mean())
    assert f"accuracy {accuracy:.1%}" in page.text()
    page.choose("Colour by", "error")
    assert page.until(lambda: page.count(WRONG) > 100 and page.count(RIGHT, 6) > 100)


def test_missing_and_invalid_files(opened, scene, capfd):
    (scene / "gone.ply").write_bytes((scene / "other.ply").read_bytes())
    (scene / "broken.ply").write_bytes(b"ply\nnothing else")
    viewer, page = opened("walls.laz", "gone.ply", "broken.ply", "other.ply")
    (scene / "gone.ply").unlink()
    for name in ("gone.ply", "broken.ply"):
        page.choose("File", name)
        assert page.until(lambda name=name: f"{scene / name}: " in page.text())  # a notification
        assert page.page.get_by_role("combobox", name="File").input_value() == "walls.laz"
    errors = capfd.readouterr().err
    assert errors.count("pointgrad view: ") == 2
    assert "Traceback" not in errors
    assert page.until(lambda: page.count(GREEN) > 500)  # the first file is still shown
    page.choose("File", "other.ply")
    assert page.until(lambda: page.count(GREEN, 4) == 0)
    assert "other.ply 500 points" in page.text()
    assert page.messages == []
    viewer.wait()


def test_page_closed_and_reopened(browser, opened, capfd):
    viewer, first = opened("walls.laz")
    assert first.until(lambda: first.count(GREEN) > 500)
    first.choose("Colour by", "height")
    first.until(lambda: first.count(GREEN, 4) == 0)
    first.close()
    output, end = "", time.monotonic() + TIMEOUT
    while "disconnected" not in output and time.monotonic() < end:
        time.sleep(0.1)
        output += capfd.readouterr().out
    assert f"last browser disconnected; still serving {server.address(viewer.server)} until Ctrl-C" in output
    second = Page(browser, server.address(viewer.server))
    try:
        assert second.until(lambda: second.count((53, 183, 121), 30) > 100)  # the controls keep their values
        assert second.page.get_by_role("combobox", name="Colour by").input_value() == "height"
        second.choose("Colour by", "label")
        assert second.until(lambda: second.count(GREEN) > 500)
        assert second.messages == []
    finally:
        second.close()


@pytest.fixture
def notebook():
    """Serves a page with the given HTML from another port of this machine, as a notebook does, and returns its URL."""
    started = []

    def serve(content):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, *_):
                pass

        web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        started.append(web)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        return f"http://localhost:{web.server_port}"

    yield serve
    for web in started:
        web.shutdown()
        web.server_close()


def test_frame_of_a_notebook_follows_updates(browser, notebook):
    flat = torch.cartesian_prod(torch.linspace(0, 1, 60), torch.linspace(0, 1, 60))
    wall = torch.stack([flat[:, 0], torch.zeros(3600), flat[:, 1]], 1)
    window = pointgrad.view({"still": wall, "moving": wall + torch.tensor([1.2, 0, 0])})
    page = Page(browser, notebook(f"<link rel='icon' href='data:,'><h1>cell</h1>{window._repr_html_()}"))
    try:
        frame = page.page.frame_locator("iframe")
        frame.get_by_text("Colour by").wait_for()
        assert page.until(lambda: page.count(BLUE) > 1000 and page.count(ORANGE) > 1000)
        for name in ("still", "moving", "50.0%"):
            assert name in frame.locator("body").inner_text()
        orange = page.count(ORANGE)
        pointgrad.view((wall + torch.tensor([1.2, 0, 0]))[:900], name="moving")
        assert page.until(lambda: page.count(ORANGE) < orange / 2)
        assert page.count(BLUE) > 1000
        pointgrad.view(wall, colors=torch.tensor([[1.0, 0, 1]]).expand(3600, 3), name="moving")
        assert page.until(lambda: page.count((255, 0, 255)) > 1000)
        frame.get_by_label("Side by side").click()
        assert page.until(lambda: page.count((255, 0, 255)) > 500 and page.count((150, 150, 150)) > 500)
        assert page.messages == []
    finally:
        page.close()
        window.close()


def test_two_viewers(opened):
    one, first = opened("walls.laz")
    two, second = opened("other.ply")
    assert one.server.get_port() != two.server.get_port()
    assert first.until(lambda: first.count(GREEN) > 500)
    assert second.until(lambda: "500 points" in second.text())
    assert second.count(GREEN, 4) == 0

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
from pointgrad.view import Viewer, server
from tests.support.browser import TIMEOUT, Page, chromium
from tests.support.scenes import Relative, trained

pytest.importorskip("viser")
pytestmark = pytest.mark.long

BLUE, ORANGE, GREEN = (tuple(int(part) for part in color) for color in PALETTE[:3])
CHOSEN = (214, 48, 49)


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A folder with a labelled cloud of three walls and a cloud without labels."""
    folder = tmp_path_factory.mktemp("clouds")
    generator = torch.Generator().manual_seed(0)
    walls = []
    for number in range(3):
        wall = torch.rand(3000, 3, generator=generator) * torch.tensor([4.0, 0.2, 4.0])
        walls.append(wall + torch.tensor([5.0 * number, 0, 0]))
    labels = torch.arange(3).repeat_interleave(3000)
    cloud = data.Cloud(torch.cat(walls).double() + 5e6, {"intensity": torch.rand(9000, generator=generator)}, labels)
    data.write(folder / "walls.laz", cloud)
    data.write(folder / "other.ply", data.Cloud(torch.rand(500, 3, generator=generator)))
    (folder / "classes.txt").write_text("brick\nglass\nwood\n")
    return folder


@pytest.fixture
def opened(browser, scene):
    """Open files of the scene in a viewer and its page in the browser."""
    made = []

    def opens(*names, **options):
        web = server.start("127.0.0.1", None, "pointgrad", token=True)
        viewer = Viewer(web, [scene / name for name in names], **options)
        page = Page(browser, server.address(web))
        made.append((web, viewer, page))
        page.page.wait_for_selector("text=Colour by")
        return viewer, page

    yield opens
    for web, viewer, page in made:
        page.close()
        viewer.close()
        web.stop()


def middle_of(page, color):
    """(row, column) of a pixel whose neighbours have the same colour."""
    same = abs(page.picture() - np.array(color)).max(2) <= 24
    inner = same.copy()
    for axis in (0, 1):
        for step in (-3, 3):
            inner &= np.roll(same, step, axis)
    places = np.argwhere(inner)
    return places[len(places) // 2]


def test_colors_point_size_classes_and_click(opened):
    viewer, page = opened("walls.laz")
    assert page.until(lambda: all(page.count(color) > 500 for color in (BLUE, ORANGE, GREEN)))
    text = page.text()
    for name in ("brick", "glass", "wood", "3,000", "33.3%", "walls.laz"):
        assert name in text

    page.click(middle_of(page, ORANGE))
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


def test_second_copy_and_camera(opened):
    _, page = opened("walls.laz")
    assert page.until(lambda: page.count(GREEN) > 500)
    page.choose("Compare with", "intensity")
    ramp = (38, 130, 142)
    assert page.until(lambda: page.count(ramp, 30) > 100 and page.count(GREEN) > 100)
    right = page.picture()[:, 385:]
    assert (abs(right - np.array(ramp)).max(2) < 30).sum() > 100  # the copy is on the right
    page.choose("Compare with", "none")
    assert page.until(lambda: page.count(ramp, 12) == 0)

    before = page.until(lambda: page.count(GREEN))
    page.page.mouse.move(300, 350)
    for _ in range(6):
        page.page.mouse.wheel(0, 800)
    assert page.until(lambda: page.count(GREEN) < before / 2)
    page.page.get_by_role("button", name="Reset camera").click()
    assert page.until(lambda: page.count(GREEN) > 0.9 * before)
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
    assert page.count(GREEN) == 0
    dimmed = np.rint(0.4 * np.array(GREEN) + 0.6 * 255)
    assert page.count(dimmed, 12) > 500
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

"""The viewer's operator panels: results and drawings against brute force, without a browser."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.data import Cloud
from pointgrad.view.overlay import BEADS, Overlay, _ball
from tests.view.panel_helpers import TITLES, rows, sample, show

pytest.importorskip("viser")


def plane(count=300):
    return torch.rand(count, 3) * torch.tensor([5.0, 3.0, 0.0]) + torch.tensor([0.0, 0.0, 7.0])


def covering(points, index):
    return float(torch.cdist(points, points[index]).amin(1).max())


def bold(value):
    return f"**{value:.4g}**"


def test_farthest_points(see):
    viewer = see(torch.randn(500, 3) * torch.tensor([30.0, 5.0, 1.0]))
    points, places = sample(viewer)
    drawn, text = show(viewer, "farthest points", count=10, random=True, balls=True)
    chosen = rows(drawn["chosen"][0], places)
    assert len(chosen.unique()) == 10
    radius = covering(points, chosen)
    assert bold(radius) in text
    other = covering(points, rows(drawn["random"][0], places))
    assert bold(other) in text
    assert other > radius
    assert drawn["balls"][1] == pytest.approx(radius * viewer.stage.factor, rel=1e-5)
    following = rows(drawn["next"][0], places)  # the farthest point
    assert float(torch.cdist(points[following], points[chosen]).min()) == pytest.approx(radius, rel=1e-5)
    assert float(np.linalg.norm(drawn["line"][0] - drawn["next"][0])) == pytest.approx(
        radius * viewer.stage.factor, rel=1e-4
    )
    assert rows(show(viewer, "farthest points", count=11)[0]["chosen"][0], places).tolist() == [*chosen, *following]


def test_farthest_points_curve(see):
    viewer = see(torch.randn(400, 3))
    points, places = sample(viewer)
    drawn, _ = show(viewer, "farthest points", count=37, random=True)
    m, farthest, random, here = viewer.operators.panels["farthest points"]._curve.data
    assert m[np.isfinite(here)] == [37]
    assert farthest[m == 37] == pytest.approx(covering(points, rows(drawn["chosen"][0], places)), rel=1e-5)
    assert random[m == 37] == pytest.approx(covering(points, rows(drawn["random"][0], places)), rel=1e-5)
    low, high = viewer.operators.panels["farthest points"]._curve.scales["y"]["range"]
    assert f"{low:.6e}"[1:8] == ".000000"  # so that ticks have one digit
    assert 0 < low <= farthest.min()
    assert high >= np.nanmax([farthest, random])
    assert (np.diff(farthest) <= 0).all()
    assert (np.diff(random) <= 0).all()


def test_voxel_sampling(see):
    viewer = see(torch.rand(800, 3) * 4 + 100)
    points, places = sample(viewer)
    drawn, text = show(viewer, "voxel sampling", edge=0.5, click=3)
    cells = torch.floor((points - points.amin(0)) / 0.5)
    occupied = cells.unique(dim=0)
    kept = rows(drawn["chosen"][0], places)
    assert torch.equal(cells[kept].unique(dim=0), occupied)
    assert len(kept) == len(occupied)
    assert f"**{len(occupied)}** of 800" in text
    assert f"**{800 / len(occupied):.1f}** points on average" in text
    assert len(drawn["grid"][0]) % 12 == 0  # whole cubes
    edges = drawn["grid"][0] / viewer.stage.factor
    assert np.isfinite(edges).all()


def test_nearest_neighbors(see):
    viewer = see(torch.randn(300, 3))
    points, places = sample(viewer)
    drawn, text = show(viewer, "neighbours", k=12, click=5)
    nearest = torch.cdist(points[5:6], points)[0].topk(12, largest=False)
    assert set(rows(drawn["neighbors"][0], places).tolist()) == set(nearest.indices.tolist())
    assert "**12** found" in text
    assert bold(float(nearest.values.max())) in text
    assert "-1" not in text
    assert "ball" not in drawn
    colors = drawn["neighbors"][1]
    assert len(np.unique(colors, axis=0)) == 12
    assert "Click a point." in show(viewer, "neighbours")[1]


@pytest.mark.parametrize("select", ["nearest", "first", "random"])
def test_ball_neighbors(see, select):
    viewer = see(torch.rand(300, 3) * 10)
    points, places = sample(viewer)
    controls = {"kind": "ball", "select": select, "inner": 0.5, "click": 7}
    apart = torch.cdist(points[7:8], points)[0]
    inside = ((apart >= 0.5) & (apart <= 3.0)).nonzero()[:, 0]
    drawn, text = show(viewer, "neighbours", k=5, radius=3.0, **controls)
    found = rows(drawn["neighbors"][0], places)
    assert len(found.unique()) == 5 < len(inside)
    assert torch.isin(found, inside).all()
    if select == "nearest":
        assert set(found.tolist()) == set(inside[apart[inside].topk(5, largest=False).indices].tolist())
    if select == "first":
        assert found.tolist() == inside[:5].tolist()
    assert f"contains {len(inside)} points" in text
    assert drawn["ball"][1] == pytest.approx(3.0 * viewer.stage.factor)
    assert drawn["inner ball"][1] == pytest.approx(0.5 * viewer.stage.factor)
    _, text = show(viewer, "neighbours", k=256, radius=3.0, **controls)
    assert f"the remaining {256 - len(inside)} are **-1**" in text
    with pytest.raises(ValueError, match="minimum radius must be below the radius"):
        show(viewer, "neighbours", k=5, radius=0.4, **controls)
    assert not viewer.overlay.drawn  # the drawing of the last valid radius disappears
    assert viewer.operators.panels["neighbours"].text.content == ""
    assert "not shown: the minimum radius must be below" in viewer.operators.basis.content
    show(viewer, "neighbours", k=5, radius=3.0, **controls)
    assert viewer.operators.basis.content.startswith("computed on ")


def test_groups(see):
    viewer = see(torch.rand(600, 3) * 2)
    points, places = sample(viewer)
    drawn, text = show(viewer, "groups", count=20, radius=0.3, k=8, click=0)
    centers = rows(drawn["centers"][0], places)
    apart = torch.cdist(points[centers], points)
    near = apart.masked_fill(apart > 0.3, torch.inf).topk(8, largest=False)
    valid = near.values.isfinite()
    covered = near.indices[valid].unique()
    assert set(rows(drawn["members"][0], places).tolist()) == set(covered.tolist())
    assert f"**{len(covered) / 600:.1%}** of the points" in text
    assert f"on average in **{int(valid.sum()) / len(covered):.2f}** groups" in text
    assert f"{int((~valid).sum())} of the 160 index entries" in text
    assert "(M, K) = (20, 8)" in text
    assert "= (20, 8, 6)" in text
    # Each point has the color of the nearest center whose group contains it.
    groups = torch.zeros(20, 600, dtype=torch.bool).scatter(1, near.indices, valid)
    owner = apart.masked_fill(~groups, torch.inf).argmin(0)
    order = rows(drawn["members"][0], places)
    colors = [tuple(color) for color in drawn["members"][1]]
    assert len({(int(owner[row]) % 16, color) for row, color in zip(order, colors, strict=True)}) == len(set(colors))


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_interpolation(see, power):
    cloud = Cloud(torch.rand(400, 3) * 3, {"heat": torch.rand(400)})
    viewer = see(cloud)
    points, places = sample(viewer)
    controls = {"count": 30, "k": 4, "power": power, "column": "heat", "click": 311}
    drawn, text = show(viewer, "interpolation", **controls)
    samples = rows(drawn["samples"][0], places)
    near = torch.cdist(points, points[samples]).topk(4, largest=False)
    weights = near.values**-power
    weights = torch.where(weights.isinf().any(1, keepdim=True), weights.isinf().double(), weights)
    weights = weights / weights.sum(1, keepdim=True)
    heat = viewer.sample.cloud.features["heat"].double()
    expected = (weights * heat[samples][near.indices]).sum(1)
    assert bold(float((expected - heat).abs().mean())) in text
    assert 0.01 < float(weights[311].max()) < 0.99  # the point is not a sample
    for weight in weights[311].tolist():
        assert f"| {weight:.3f} |" in text
    widths = {name: entry[2] for name, entry in drawn.items() if name.startswith("weights/line")}
    assert len(widths) == 4
    assert np.allclose(sorted(widths.values()), sorted(3 + 12 * weights[311].numpy()), atol=1e-4)
    labels = {value for name, value in drawn.items() if name.startswith("weights/label")}
    assert labels == {f"{weight:.2f}" for weight in weights[311].tolist() if weight >= 0.01}
    painted = {by: show(viewer, "interpolation", colors=by, **controls)[0]["values"][1] for by in ("actual", "error")}
    assert (painted["actual"] != painted["error"]).any()


def test_interpolation_with_missing_values(see):
    heat = torch.rand(200)
    heat[::4] = torch.nan
    nothing = torch.full((200,), torch.nan)
    kinds = torch.randint(0, 3, (200,))
    viewer = see(Cloud(torch.rand(200, 3), {"heat": heat, "nothing": nothing, "kind": kinds}))
    _, places = sample(viewer)
    drawn, text = show(viewer, "interpolation", column="heat", count=40)
    known = viewer.sample.cloud.features["heat"].isfinite()
    assert known[rows(drawn["samples"][0], places)].all()
    assert "50 points without a finite value" in text
    assert "nan" not in text
    with pytest.raises(ValueError, match="nothing must have at least one finite value to interpolate, got none"):
        show(viewer, "interpolation", column="nothing")
    assert viewer.operators.panels["interpolation"]._column.options == ("height", "heat", "nothing")


@pytest.mark.parametrize(("kernel", "dilation", "level"), [(3, 1, 0), (2, 3, 0), (3, 2, 2)])
def test_sparse_convolution(see, kernel, dilation, level):
    viewer = see(torch.rand(500, 3) * torch.tensor([4.0, 4.0, 1.0]) - 50)
    points, _ = sample(viewer)
    drawn, text = show(viewer, "sparse convolution", edge=0.25, kernel=kernel, dilation=dilation, level=level, click=9)
    cells = [tuple(cell) for cell in torch.floor((points - points.amin(0)) / 0.25).long().tolist()]
    levels = [sorted({tuple(part >> shift for part in cell) for cell in cells}) for shift in range(6)]
    steps = [(step - kernel // 2) * dilation for step in range(kernel)]
    window = [(x, y, z) for x in steps for y in steps for z in steps]

    def reads(output):
        return {(output[0] + x, output[1] + y, output[2] + z) for x, y, z in window} & set(levels[level])

    voxels, clicked = levels[level], tuple(part >> level for part in cells[9])
    counts = [len(reads(voxel)) for voxel in voxels]
    assert f"Level {level} has **{len(voxels)}** voxels of edge length {0.25 * 2**level:.4g}." in text
    assert f"reads **{sum(counts) / len(counts):.1f}** of {kernel**3} inputs" in text
    assert f"reads **{len(reads(clicked))}** inputs" in text
    for number, each in enumerate(levels):
        assert f"| {number} | {0.25 * 2**number:.4g} | {len(each)} |" in text
    assert len(drawn["voxels"][0]) == len(voxels)

    def boxes(name, edge):
        """The lower corners of the cubes that were drawn, in voxels of the level."""
        low = viewer.stage.place(points.amin(0, keepdim=True))
        ends = (drawn[name][0] - low) / (viewer.stage.factor * 0.25 * 2**level)
        corners = ends.reshape(-1, 12, 3).max(1) - edge
        assert np.allclose(corners, corners.round(), atol=1e-3)
        return {tuple(corner) for corner in corners.round().astype(int).tolist()}

    assert boxes("inputs", 1) == reads(clicked)
    assert boxes("output", 1) == {clicked}
    assert boxes("window", (kernel - 1) * dilation + 1) == {tuple(part + steps[0] for part in clicked)}
    drawn, text = show(viewer, "sparse convolution")
    assert "Click a point" in text
    assert set(drawn) == {"voxels"}


def test_space_filling_curve(see):
    viewer = see(torch.rand(500, 3) * torch.tensor([4.0, 4.0, 1.0]) - 50)
    points, _ = sample(viewer)
    controls = {"edge": 0.25, "curve": "z-trans", "patch": 48, "click": 9}
    drawn, text = show(viewer, "space-filling curve", **controls)
    cells = torch.floor((points - points.amin(0)) / 0.25).long()
    voxels = cells.unique(dim=0)

    def code(voxel):
        x, y, z = (f"{value:04b}" for value in voxel)
        return int("".join(a + b + c for a, b, c in zip(y, x, z, strict=True)), 2)

    path = sorted(voxels.tolist(), key=code)
    assert f"**{len(voxels)}** voxels of edge length 0.25 along the curve z-trans of 4 bits, from dark" in text
    step = np.linalg.norm(np.diff(path, axis=0), axis=1).mean() * 0.25
    assert f"are {bold(step)} apart" in text
    assert f"**{-(-len(voxels) // 48)}**" in text
    low = viewer.stage.place(points.amin(0, keepdim=True))
    line = (drawn["line"][0] - low) / (viewer.stage.factor * 0.25) - 0.5
    assert np.allclose(line, path[1:], atol=1e-3)
    place = path.index(cells[9].tolist())
    assert f"place **{place}** and is in patch **{place // 48}**" in text
    own = path[place // 48 * 48 : place // 48 * 48 + 48]
    assert f"whose {len(own)} voxels" in text
    assert len(drawn["patch"][0]) == 12 * len(own)
    painted, text = show(viewer, "space-filling curve", colors="patch", line=False, **{**controls, "click": None})
    assert len(np.unique(painted["voxels"][1], axis=0)) == min(16, -(-len(voxels) // 48))
    assert "Click a point" in text
    assert set(painted) == {"voxels"}


@pytest.mark.parametrize("points", [
    torch.rand(1, 3), torch.full((50, 3), 2.5), torch.rand(3, 3), plane(), torch.rand(40, 3) * 1e-6,
    torch.rand(40, 3, dtype=torch.float64) + torch.tensor([5e5, 5e6, 0.0], dtype=torch.float64),
], ids=["one", "equal", "three", "plane", "tiny", "far"])  # fmt: skip
def test_edge_cases(see, points):
    """Few, equal, coplanar, tiny and distant points: the text contains no NaN, and the drawings have a bounded size."""
    viewer = see(points)
    for title in TITLES:
        for kind in ("k nearest", "ball") if title == "neighbours" else (None,):
            drawn, text = show(viewer, title, click=0, **({"kind": kind} if kind else {}))
            assert text
            assert "nan" not in text
            assert "inf" not in text
            for entry in drawn.values():
                assert isinstance(entry, str) or len(entry[0]) <= 24 * len(points) + 12 * 512
    if len(points) == 1:
        assert "**1** found" in show(viewer, "neighbours", click=0, kind="k nearest")[1]
        assert "15 are **-1**" in show(viewer, "neighbours", click=0, kind="k nearest")[1]
        assert bold(0.0) in show(viewer, "farthest points")[1]


def test_panels_update_for_a_new_file(see, tmp_path):
    viewer = see(torch.rand(100, 3))
    before = show(viewer, "neighbours", kind="ball", click=0)[1]
    assert viewer.operators.panels["neighbours"]._radius.max < 20
    data.write(tmp_path / "other.npz", Cloud(torch.rand(80, 3) * 1000))
    viewer.open(tmp_path / "other.npz")
    viewer.wait()
    assert viewer.operators.panels["neighbours"].text.content == "Click a point."
    after = show(viewer, "neighbours", kind="ball", click=0)[1]
    assert before != after
    assert viewer.operators.panels["neighbours"]._radius.max > 1000


def test_large_clouds_are_sampled(see, monkeypatch):
    monkeypatch.setattr("pointgrad.view.viewer.SAMPLE_POINTS", 500)
    viewer = see(torch.rand(5000, 3))
    assert len(viewer.sample.cloud) == 500
    for title in TITLES:
        assert show(viewer, title, click=0)[1]
        assert viewer.operators.basis.content == "computed on 500 points, an even sample of 5,000"


def test_overlay(panel_server):
    """Drawing again replaces, zero points are not drawn, and removing a name removes the names below it."""
    overlay = Overlay(panel_server.scene)
    stage = SimpleNamespace(point_size=0.1)
    for count in (0, 5, BEADS + 1, 1, 5):
        overlay.points("a/points", stage, np.zeros((count, 3), np.float32), np.zeros(3, np.uint8))
        overlay.lines("a/lines", np.zeros(3), np.ones((count, 3)), np.zeros(3, np.uint8))
        overlay.balls("a/balls", np.zeros((count, 3)), 1.0, (1, 2, 3))
        assert set(overlay._nodes) == ({"a/points", "a/lines", "a/balls"} if count else set())
    overlay.balls("a/balls", np.zeros((3, 3)), 0.0, (1, 2, 3))
    overlay.label("ab", "hello", np.zeros(3))
    assert set(overlay._nodes) == {"a/points", "a/lines", "ab"}
    overlay.remove("a")
    assert set(overlay._nodes) == {"ab"}
    overlay.clear()
    assert not overlay._nodes


def test_ball_is_round_and_faces_outward():
    corners, faces = _ball(32)
    assert np.allclose(np.linalg.norm(corners, axis=1), 1, atol=1e-6)
    a, b, c = (corners[faces[:, corner]].astype(float) for corner in range(3))
    volume = float((a * np.cross(b, c)).sum() / 6)  # positive if the triangles face outward
    assert volume == pytest.approx(4 / 3 * np.pi, rel=0.03)


def test_zoom_button(see):
    """The camera moves to the clicked point without turning."""
    viewer = see(torch.rand(200, 3))
    camera = SimpleNamespace(position=np.array([0.0, 0.0, 30.0]), look_at=np.zeros(3))
    client = SimpleNamespace(camera=camera, atomic=contextlib.nullcontext)
    panel = viewer.operators.panels["neighbours"]
    show(viewer, "neighbours")
    panel._zoom_in(client)
    assert camera.position.tolist() == [0.0, 0.0, 30.0]  # nothing was clicked
    show(viewer, "neighbours", kind="ball", radius=0.2, click=4)
    panel._zoom_in(client)
    place = viewer.picked.position
    assert np.allclose(camera.look_at, place, atol=1e-5)
    away = camera.position - place
    assert np.allclose(away[:2], 0, atol=1e-5)
    assert 0.2 * viewer.stage.factor < away[2] < 0.2 * viewer.stage.factor * 5


def test_slider_is_bounded_by_the_cloud(see):
    viewer = see(torch.eye(3))  # all distances are equal: the curve is flat
    assert bold(2**0.5) in show(viewer, "farthest points", count=2)[1]
    panel = viewer.operators.panels["farthest points"]
    assert panel._count.max == 3
    assert panel._count.value == 2
    low, high = panel._curve.scales["y"]["range"]
    assert low < 2**0.5 < high

"""`pointgrad render`."""

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.data import Cloud
from pointgrad.data.files import las
from tests.support.scenes import las_file, write

image = pytest.importorskip("PIL.Image")
SMALL = ("--width", "120", "--height", "90")


@pytest.fixture
def command(capsys):
    """Run `pointgrad render`, and return status and output."""
    pytest.importorskip("tyro")
    from pointgrad.cli import main

    def run(*arguments):
        status = main(["render", *map(str, arguments), *SMALL])
        return status, capsys.readouterr()

    return run


@pytest.fixture
def street(tmp_path):
    path = tmp_path / "street.npz"
    data.write(path, data.street(2000, length=12.0))
    return path


def opened(path):
    with image.open(path) as picture:
        return np.asarray(picture.convert("RGBA"))


def test_image_of_a_file(tmp_path, command, street):
    status, printed = command(street, "--out", tmp_path / "a.png")
    assert (status, printed.err) == (0, "")
    assert printed.out == f"{tmp_path / 'a.png'}: 2,000 points by label\n"
    first = opened(tmp_path / "a.png")
    assert first.shape == (90, 120, 4)
    for place, options in enumerate(
        [("--by", "height"), ("--azimuth", "40"), ("--elevation", "80"), ("--point-size", "9"), ("--no-legend",),
         ("--background", "dark"), ("--titles", "a street")]
    ):  # fmt: skip
        target = tmp_path / f"{place}.png"
        assert command(street, "--out", target, *options)[0] == 0
        assert not np.array_equal(opened(target), first), options
    assert command(street, "--out", tmp_path / "clear.png", "--background", "transparent")[0] == 0
    assert opened(tmp_path / "clear.png")[0, 0, 3] == 0
    (tmp_path / "classes.txt").write_text("\n".join(data.STREET_CLASSES))
    assert command(street, "--out", tmp_path / "named.png")[0] == 0
    assert not np.array_equal(opened(tmp_path / "named.png"), first)


def test_existing_images_are_kept_without_overwrite(tmp_path, command, street):
    target = tmp_path / "a.png"
    target.write_bytes(b"important")
    status, printed = command(street, "--out", target)
    assert (status, printed.out) == (2, "")
    assert printed.err == f"pointgrad render: {target}: already exists; set --overwrite to replace it\n"
    assert target.read_bytes() == b"important"
    assert command(street, "--out", target, "--overwrite")[0] == 0
    assert opened(target).shape == (90, 120, 4)
    before = target.read_bytes()
    assert command(tmp_path / "missing.ply", "--out", target, "--overwrite")[0] == 2
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.write_bytes(b""), "found an empty one"),
        (lambda path: path.write_bytes(b"ply\nformat ascii 1.0\nelement vertex 5\nnonsense"), "a.ply: expected"),
        (lambda path: write(path, Cloud(torch.full((4, 3), torch.nan))), "got 4 points with NaN or infinity"),
        (lambda path: path.mkdir(), "expected a folder with files"),
    ],
    ids=["missing", "empty", "damaged", "NaN", "an empty folder"],
)
def test_unusable_files(tmp_path, command, make, message):
    path = tmp_path / "a.ply"
    make(path)
    status, printed = command(path, "--out", tmp_path / "a.png")
    assert (status, printed.out) == (2, "")
    assert printed.err.startswith(f"pointgrad render: {path}: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "a.png").exists()


def test_damaged_las_file(tmp_path, command):
    las_file(tmp_path / "a.laz", count=500)
    whole = (tmp_path / "a.laz").read_bytes()
    for cut in (100, 400, len(whole) - 75_000):  # the last 70,000 bytes follow the points
        (tmp_path / "a.laz").write_bytes(whole[:cut])
        status, printed = command(tmp_path / "a.laz", "--out", tmp_path / "a.png")
        assert status == 2
        assert printed.err.startswith(f"pointgrad render: {tmp_path / 'a.laz'}: ")
        assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "a.bmp"], "a.bmp: expected a name that ends in .png, .jpg, .jpeg, .webp, .gif"),
        (["--out", "a.png", "--by", "nothing"], "street.npz: --by must be one of label, rgb, height, red"),
        (["--out", "a.jpg", "--background", "transparent"], "a.jpg: expected a name that ends in .png, .webp for"),
        (["--out", "a.png", "--frames", "4"], "a.png: expected a name that ends in .gif, .webp for several frames"),
        (["--out", "a.gif", "--frames", "1"], "--frames must be from 2 to 360, got 1"),
        (["--out", "a.gif", "--seconds", "0"], "--seconds must be above 0 and at most 600, got 0.0"),
        (["--out", "a.gif", "--seconds", "inf"], "--seconds must be above 0 and at most 600, got inf"),
        (
            ["--out", "a.webp", "--frames", "2", "--seconds", "601"],
            "--seconds must be above 0 and at most 600, got 601",
        ),
        (["--out", "a.png", "--elevation", "100"], "elevation must be in [-90, 90], got 100.0"),
        (["--out", "a.png", "--titles", "a", "b"], "--titles must have one title for each of 1 files, got 2"),
        (["--out", "street.npz/a.png"], "expected a folder that can be written to, got street.npz"),
    ],
)
def test_wrong_command_lines(tmp_path, monkeypatch, command, street, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, printed = command("street.npz", *arguments)
    assert (status, printed.out) == (2, "")
    assert printed.err.startswith("pointgrad render: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["street.npz"]


def test_no_files(tmp_path, command):
    status, printed = command("--out", tmp_path / "a.png")
    assert (status, printed.err) == (2, "pointgrad render: expected files or folders to draw, got none\n")


def test_read_only_folder(tmp_path, monkeypatch, command, street):
    monkeypatch.setattr("os.access", lambda *_: False)  # root can write to every folder
    status, printed = command(street, "--out", tmp_path / "a.png")
    assert status == 2
    assert "a.png: expected a folder that can be written to" in printed.err


def test_several_files_side_by_side(tmp_path, command, street):
    other = Cloud(torch.rand(500, 3), labels=torch.arange(500) % 2)
    data.write(tmp_path / "other.npz", other)
    (tmp_path / "broken.ply").write_text("ply\nnonsense")
    target = tmp_path / "both.png"
    status, printed = command(street, tmp_path / "broken.ply", tmp_path / "other.npz", "--out", target)
    assert status == 1
    assert printed.err.startswith(f"pointgrad render: {tmp_path / 'broken.ply'}: ")
    assert printed.err.count("\n") == 1
    assert printed.out == f"{target}: 2,500 points by label\n"
    both = opened(target)
    assert command(street, tmp_path / "other.npz", "--out", tmp_path / "two.png")[0] == 0
    assert np.array_equal(opened(tmp_path / "two.png"), both)


def test_one_image_per_file_of_a_folder(tmp_path, command, street):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("a.npz", "deep/a.npz"):
        data.write(tmp_path / "in" / name, data.street(500, length=12.0))
    (tmp_path / "in" / "broken.ply").write_text("ply\nnonsense")
    out = tmp_path / "out"
    status, printed = command(tmp_path / "in", street, "--out", out)
    assert status == 1
    assert printed.err.count("\n") == 1
    assert {str(path.relative_to(out)) for path in out.rglob("*.*")} == {"a.png", "deep/a.png", "street.png"}
    status, printed = command(street, "--out", out)
    assert status == 2
    assert "street.png: already exists" in printed.err
    data.write(tmp_path / "street.csv", data.street(500, length=12.0))
    status, printed = command(street, tmp_path / "street.csv", "--out", tmp_path / "new")
    assert status == 2
    assert "would have the same image" in printed.err


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_turntable(tmp_path, command, street, suffix):
    target = tmp_path / f"a.{suffix}"
    status, printed = command(street, "--out", target, "--frames", "4", "--seconds", "1")
    assert (status, printed.err) == (0, "")
    with image.open(target) as picture:
        assert picture.n_frames == 4
        assert picture.size == (120, 90)
    if suffix == "webp":  # a still image without --frames
        assert command(street, "--out", tmp_path / "one.webp")[0] == 0
        with image.open(tmp_path / "one.webp") as picture:
            assert picture.n_frames == 1


def test_las_in_chunks_matches_las_in_one_piece(tmp_path, monkeypatch, command):
    las_file(tmp_path / "a.laz", count=3000)
    las_file(tmp_path / "b.las", count=3000)
    pictures = []
    for chunk in (1_000_000, 700):
        monkeypatch.setattr(las, "CHUNK", chunk)
        for name in ("a.laz", "b.las"):
            for by in ("label", "intensity", "height", "rgb"):
                target = tmp_path / f"{name}.{chunk}.{by}.png"
                assert command(tmp_path / name, "--out", target, "--by", by)[0] == 0
                pictures.append(opened(target))
    half = len(pictures) // 2
    for one, two in zip(pictures[:half], pictures[half:], strict=True):
        assert np.array_equal(one, two)


def test_labels_file_next_to_a_las_file_read_in_chunks(tmp_path, monkeypatch, command):
    las_file(tmp_path / "a.laz", count=3000)
    np.save(tmp_path / "a.labels.npy", np.arange(3000) // 1500)
    monkeypatch.setattr(las, "CHUNK", 700)
    status, printed = command(tmp_path / "a.laz", "--out", tmp_path / "a.png")
    assert (status, printed.err) == (0, "")
    colors = opened(tmp_path / "a.png")[..., :3].reshape(-1, 3)
    for color in ((31, 95, 168), (224, 123, 57)):  # of classes 0 and 1, which appear at least in the legend
        assert (colors == color).all(1).sum() > 50
    np.save(tmp_path / "a.labels.npy", np.arange(7))
    status, printed = command(tmp_path / "a.laz", "--out", tmp_path / "b.png")
    assert status == 2
    assert "expected 3000 labels in a.labels.npy, one for each point, got 7" in printed.err


def test_omitted_points_are_counted(tmp_path, command):
    points = torch.rand(20, 3)
    points[3] = torch.nan
    data.write(tmp_path / "a.npz", Cloud(points))
    status, printed = command(tmp_path / "a.npz", "--out", tmp_path / "a.png")
    assert status == 0
    assert f"{tmp_path / 'a.npz'}: 1 points without finite coordinates are omitted" in printed.out


def test_interrupted(tmp_path, monkeypatch, command, street):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pointgrad.cli.render.compose", interrupt)
    status, printed = command(street, "--out", tmp_path / "a.png")
    assert status == 130
    assert printed.err == "pointgrad render: interrupted; all images written so far are complete\n"
    assert not (tmp_path / "a.png").exists()

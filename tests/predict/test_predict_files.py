"""Prediction for files of all formats: large files, atomic results, and preserved content."""

import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from pointgrad import data, predict
from pointgrad.data import Cloud, FileError
from pointgrad.data.files import workspace
from pointgrad.predict import labels
from tests.support.places import DATA, ROOT
from tests.support.scenes import PACKAGES, Failing, Height, Relative, fail, las_file, scene, trained, write

SCANS = sorted((DATA / "scans").glob("*")) if (DATA / "scans").is_dir() else []
CLOUDS = [path for path in SCANS if not path.name.endswith((".calib.txt", ".label_2.txt"))]


# LAS and LAZ


@pytest.mark.parametrize(
    ("version", "point_format", "suffix"), [("1.4", 7, ".laz"), ("1.2", 3, ".las"), ("1.4", 6, ".las")]
)
def test_las_keeps_everything(tmp_path, version, point_format, suffix):
    before = las_file(tmp_path / f"a{suffix}", version=version, point_format=point_format)
    network = trained(Height(), classes=("low", "high ground"))
    report = predict.label_file(network, tmp_path / f"a{suffix}", tmp_path / "out" / f"a{suffix}", tile=5.0)
    import laspy

    after = laspy.read(report.target)
    for name in before.points.array.dtype.names:
        assert np.array_equal(before.points.array[name], after.points.array[name]), name
    for name in before.point_format.dimension_names:
        assert np.array_equal(before[name], after[name]), name
    for name in ("scales", "offsets", "mins", "maxs"):
        assert np.array_equal(getattr(before.header, name), getattr(after.header, name)), name
    for name in ("version", "system_identifier", "generating_software", "creation_date", "are_points_compressed"):
        assert getattr(before.header, name) == getattr(after.header, name), name
    assert before.header.point_format.id == after.header.point_format.id
    theirs, names = (
        [vlr.record_data_bytes() for vlr in after.header.vlrs if vlr.user_id == user]
        for user in ("someone", "pointgrad")
    )
    assert theirs == [b"content"]
    assert names == [b"low\nhigh ground"]
    if version == "1.4":
        assert [evlr.record_data_bytes() for evlr in after.evlrs] == [b"x" * 70_000]
    assert after.label.dtype == np.uint8
    assert np.array_equal(after.label, before.z > 0)
    assert np.allclose(after.confidence, 1 / (1 + np.exp(-2 * np.abs(before.z))), atol=1e-6)
    assert report.counts.tolist() == np.bincount(after.label).tolist()
    assert (tmp_path / "out" / "classes.txt").read_text() == "low\nhigh ground\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(["classes.txt", f"a{suffix}"])


@pytest.mark.parametrize("chunk", [311, 3000, 10**6])
def test_las_labels_do_not_depend_on_chunks(tmp_path, monkeypatch, small_tiles, chunk):
    las = pytest.importorskip("pointgrad.data.files.las")
    las_file(tmp_path / "a.laz")
    network = trained(Relative(), normalize="center", points=100, voxel=0.5, features=("intensity",))
    network.model.forward = lambda points, features=None, **where: Relative.forward(network.model, points, **where)
    cloud = data.read(tmp_path / "a.laz")
    expected = predict.label(network, cloud)
    monkeypatch.setattr(las, "CHUNK", chunk)
    predict.label_file(network, tmp_path / "a.laz", tmp_path / "out" / "a.laz")
    again = data.read(tmp_path / "out" / "a.laz")
    assert torch.equal(again.labels, expected.labels)
    assert torch.equal(again.features["confidence"], expected.confidence)
    assert torch.equal(again.world(), cloud.world())


def test_las_around_zero_in_any_chunks(tmp_path, monkeypatch):
    """Whether subtracting an origin rounds depends on the points, so all chunks must use the same one."""
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(version="1.4", point_format=6)
    header.scales = [0.5, 0.001, 0.001]
    las = laspy.LasData(header)
    random = np.random.default_rng(0)
    las.X = np.sort(np.append(random.integers(-4001, -3700, 1990), random.integers(0, 4001, 10)))
    las.Y, las.Z = random.integers(-900, 900, (2, 2000))
    las.write(tmp_path / "a.las")
    results = []
    for chunk in (2000, 150):
        monkeypatch.setattr("pointgrad.data.files.las.CHUNK", chunk)
        target = tmp_path / str(chunk) / "a.las"
        predict.label_file(trained(Relative(), normalize="center", points=50, voxel=0.7), tmp_path / "a.las", target)
        results.append(data.read(target))
    assert results[0].origin[0] == -2001
    assert torch.equal(results[0].labels, results[1].labels)
    assert torch.equal(results[0].features["confidence"], results[1].features["confidence"])


def test_las_results_in_slabs(tmp_path, monkeypatch, small_tiles):
    """Results are mapped into memory in parts."""
    before = las_file(tmp_path / "a.las")
    monkeypatch.setattr("pointgrad.predict.las.SLAB", 257)
    predict.label_file(trained(), tmp_path / "a.las", tmp_path / "out" / "a.las", tile=3.0)
    assert np.array_equal(data.read(tmp_path / "out" / "a.las").labels, before.z > 0)


def test_las_classification_codes(tmp_path):
    before = las_file(tmp_path / "a.las", version="1.2", point_format=3)
    import laspy

    predict.label_file(trained(), tmp_path / "a.las", tmp_path / "out" / "a.las", classification=(2, 6))
    after = laspy.read(tmp_path / "out" / "a.las")
    assert np.array_equal(after.classification, np.where(before.z > 0, 6, 2))
    for name in ("synthetic", "key_point", "withheld", "intensity"):  # the flags share a byte with the code
        assert np.array_equal(before[name], after[name])
    with pytest.raises(
        FileError, match=r"a\.las: expected one classification code for each of 2 classes \(low, high\), got 1"
    ):
        predict.label_file(trained(), tmp_path / "a.las", tmp_path / "b" / "a.las", classification=(2,))
    with pytest.raises(
        FileError, match=r"a\.las: expected classification codes from 0 to 31 for this point format, got 64"
    ):
        predict.label_file(trained(), tmp_path / "a.las", tmp_path / "b" / "a.las", classification=(2, 64))


def test_labels_of_a_las_file_are_preserved(tmp_path):
    own = np.arange(3000, dtype=np.int32)
    before = las_file(tmp_path / "a.laz", label=own)
    import laspy

    first = predict.label_file(trained(), tmp_path / "a.laz", tmp_path / "out" / "a.laz")
    after = laspy.read(first.target)
    assert np.array_equal(after.label, own)
    assert np.array_equal(after.predicted_label, before.z > 0)
    second = predict.label_file(trained(Height(0.5)), first.target, tmp_path / "again" / "a.laz")
    again = laspy.read(second.target)
    assert np.array_equal(again.predicted_label, before.z > 0.5)
    assert list(again.point_format.dimension_names) == list(after.point_format.dimension_names)
    las_file(tmp_path / "b.laz", label=own, predicted_label=own)
    with pytest.raises(FileError, match="expected no dimension predicted_label, or one of type uint8, found int32"):
        predict.label_file(trained(), tmp_path / "b.laz", tmp_path / "out" / "b.laz")


def test_cloud_optimized_file_becomes_a_plain_one(tmp_path):
    """Points keep their order but chunks change, so the index in its records would be wrong."""
    before = las_file(tmp_path / "plain.laz")
    import laspy

    before.header.vlrs.insert(0, laspy.VLR("copc", 1, "", bytes(160)))
    before.write(tmp_path / "a.copc.laz")
    assert [vlr.user_id for vlr in laspy.read(tmp_path / "a.copc.laz").header.vlrs].count("copc") == 1
    target = predict.output(tmp_path / "a.copc.laz", tmp_path / "out")
    assert target.name == "a.laz"
    predict.label_file(trained(), tmp_path / "a.copc.laz", target)
    after = laspy.read(target)
    assert np.array_equal(after.label, before.z > 0)
    assert "copc" not in [vlr.user_id for vlr in after.header.vlrs]
    assert "someone" in [vlr.user_id for vlr in after.header.vlrs]
    for name in ("b.copc.laz", "b.COPC.LAZ"):
        with pytest.raises(FileError, match="expected another name: cloud-optimized files cannot be written"):
            predict.label_file(trained(), tmp_path / "a.copc.laz", tmp_path / "out" / name)


def test_many_classes_need_more_bits(tmp_path):
    las_file(tmp_path / "a.las")

    class Many(Height):
        def forward(self, points, features=None, **where):
            return torch.nn.functional.one_hot((points[..., 2] > 0).long() * 299, 300).float()

    classes = tuple(f"class {number}" for number in range(300))
    predict.label_file(trained(Many(), classes=classes), tmp_path / "a.las", tmp_path / "out" / "a.las")
    import laspy

    after = laspy.read(tmp_path / "out" / "a.las")
    assert after.label.dtype == np.uint16
    assert np.array_equal(after.label, np.where(after.z > 0, 299, 0))


# Atomic results


@pytest.mark.parametrize("name", ["a.laz", "a.ply"])
def test_failed_prediction_leaves_no_files(tmp_path, name):
    las_file(tmp_path / "a.laz")
    write(tmp_path / "a.ply", Cloud(scene(3000)))
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match="the network fails"):
        predict.label_file(trained(Failing(fail)), tmp_path / name, out / name, tile=3.0, max_points=1000)
    assert [path.name for path in out.iterdir()] == ["classes.txt"]


KILLED = """
import os, signal
from tests.support import scenes
from pointgrad import predict
network = scenes.trained(scenes.Failing(lambda: os.kill(os.getpid(), signal.SIGKILL)))
predict.label_file(network, {source!r}, {target!r}, tile=3.0, max_points=1000)
"""


def test_killed_process_leaves_no_result_and_the_next_call_cleans_up(tmp_path):
    before = las_file(tmp_path / "a.laz")
    source, target = tmp_path / "a.laz", tmp_path / "out" / "a.laz"
    code = KILLED.format(source=str(source), target=str(target))
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    left = {path.name for path in target.parent.iterdir()}
    assert target.name not in left
    assert any(name.startswith(".a.laz.pointgrad-") for name in left)
    with workspace.workspace(target, target.parent) as running:  # a folder in use by a living process
        (running / "points").write_bytes(b"in use")
        predict.label_file(trained(), source, target)
        assert (running / "points").read_bytes() == b"in use"
    assert {path.name for path in target.parent.iterdir()} == {"classes.txt", "a.laz"}
    assert np.array_equal(data.read(target).labels, before.z > 0)


def test_two_predictions_for_one_target(tmp_path):
    """The second one starts and ends while the first one runs; the result of one of them is left, complete."""
    before = las_file(tmp_path / "a.laz")
    source, target = tmp_path / "a.laz", tmp_path / "out" / "a.laz"

    def other():
        slow.calls = 10**9
        predict.label_file(trained(Height(0.5)), source, target)

    slow = Failing(other)
    with pytest.raises(FileError, match=f"^{target}: already exists; set overwrite"):
        predict.label_file(trained(slow), source, target, tile=3.0, max_points=1000)
    assert np.array_equal(data.read(target).labels, before.z > 0.5)
    target.unlink()
    slow = Failing(other)
    predict.label_file(trained(slow), source, target, overwrite=True, tile=3.0, max_points=1000)
    assert np.array_equal(data.read(target).labels, before.z > 0)
    assert {path.name for path in target.parent.iterdir()} == {"classes.txt", "a.laz"}


@pytest.mark.parametrize("name", ["a.laz", "a.ply"])
def test_existing_target_is_kept_without_overwrite(tmp_path, name):
    before = las_file(tmp_path / "a.laz")
    write(tmp_path / "a.ply", data.read(tmp_path / "a.laz"))
    target = tmp_path / "out" / name
    target.parent.mkdir()
    target.write_text("precious")
    with pytest.raises(FileError, match="already exists"):
        predict.label_file(trained(), tmp_path / name, target)
    assert target.read_text() == "precious"
    predict.label_file(trained(), tmp_path / name, target, overwrite=True)
    cloud = data.read(target, labels="predicted_label" if name == "a.ply" else None)
    assert np.array_equal(cloud.labels, before.z > 0)
    with pytest.raises(FileError, match="got the source itself"):
        predict.label_file(trained(), tmp_path / name, tmp_path / name, overwrite=True)


FULL = """
import resource, signal
from tests.support import scenes
from pointgrad import data, predict
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in {limits}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        predict.label_file(scenes.trained(), {source!r}, {target!r})
    except data.FileError as error:
        print(error)
"""


def test_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    """A limit on the file size makes writing fail as a full disk does."""
    las_file(tmp_path / "a.las", count=20_000)
    target = tmp_path / "out" / "a.las"
    code = FULL.format(
        source=str(tmp_path / "a.las"),
        target=str(target),
        limits=(
            100_000,
            700_000,
        ),  # less than the points (32 bytes each); less than the result (more than 60 bytes each)
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=120, capture_output=True, text=True, check=True
    )
    spilled, written = run.stdout.splitlines()
    assert "/points: expected a file that can be written, got: File too large" in spilled
    assert f"{target}: expected a LAS file that can be written, got: File too large" in written
    assert [path.name for path in target.parent.iterdir()] == ["classes.txt"]


# Other formats


def columns_of(path):
    """Read the columns of a file with the reader of its format."""
    from pointgrad.data.files.formats import choose
    from pointgrad.data.files.read_write import read_table

    return read_table(path, choose(path, None), None)


@pytest.mark.skipif(
    not CLOUDS, reason=f"no real scans at {DATA}; set POINTGRAD_TEST_DATA to the folder that holds them"
)
@pytest.mark.parametrize("path", CLOUDS, ids=lambda path: path.name)
def test_real_scans(tmp_path, path):
    """The content of a scan is preserved in its format, and every point has the label of its height."""
    for suffix in path.suffixes:
        if suffix[1:] in PACKAGES and not path.name.endswith(".bin"):
            pytest.importorskip(PACKAGES[suffix[1:]])
    cloud = data.read(path)
    height = cloud.points[:, 2].float()
    threshold = float(height.median())
    network = trained(Height(threshold))
    size = (cloud.points.amax(0) - cloud.points.amin(0))[:2].max()
    report = predict.label_file(network, path, predict.output(path, tmp_path), tile=float(size) / 3, votes=1)
    expected = (height - threshold > 0).long()
    if path.name.endswith(".bin"):
        found = np.fromfile(report.target, np.uint32).astype(np.int64)
        confidence = np.load(report.target.with_suffix(".confidence.npy"))
    else:
        before, after = columns_of(path), columns_of(report.target)
        assert np.array_equal(before.xyz, after.xyz)
        assert before.xyz.dtype == after.xyz.dtype
        for name, column in before.columns.items():
            assert np.array_equal(after.columns[name], column), name
            assert after.columns[name].dtype == column.dtype
        new = [name for name in after.columns if name not in before.columns]
        assert [name.removeprefix("predicted_") for name in new] == ["label", "confidence"]
        found, confidence = (after.columns[name] for name in new)
        if path.suffix != ".off":
            assert after.kind == before.kind or path.suffix in (".laz", ".las")
    assert np.array_equal(found, expected)
    assert confidence.min() >= 0.5
    assert report.counts.tolist() == expected.bincount().tolist()


def test_label_files_of_sweeps_are_read_by_the_dataset(tmp_path):
    points = scene(500).float()
    write(tmp_path / "a.bin", Cloud(points))
    report = predict.label_file(trained(), tmp_path / "a.bin", predict.output(tmp_path / "a.bin", tmp_path))
    assert report.target == tmp_path / "a.label"
    assert torch.equal(data.Folder(tmp_path, task="segmentation")[0].labels, (points[:, 2] > 0).long())
    assert data.Folder(tmp_path, task="segmentation").classes == ("low", "high")


@pytest.mark.parametrize("name", ["a.ply", "a.pcd", "a.txt", "a.npy", "a.npz", "a.bin"])
def test_non_finite_points_are_kept_without_a_label(tmp_path, name):
    points = scene(60).float()
    points[7, 1] = torch.nan
    points[30, 2] = torch.inf
    write(tmp_path / name, Cloud(points))
    target = predict.output(tmp_path / name, tmp_path / "out")
    report = predict.label_file(trained(), tmp_path / name, target)
    assert report.unlabelled == 2
    expected = np.where(points[:, 2] > 0, 1, 0)
    expected[[7, 30]] = -1
    if name == "a.bin":
        found = np.fromfile(target, np.uint32)
        assert np.array_equal(np.where(found == 65535, -1, found.astype(int)), expected)
        return
    again = data.read(target)
    assert np.array_equal(again.labels, expected)
    assert np.array_equal(again.points.float(), points, equal_nan=True)
    assert np.array_equal(again.features["confidence"][[7, 30]], [0, 0])


def test_features_come_from_the_file(tmp_path):
    points = scene(800)
    cloud = Cloud(points, {"glow": torch.rand(800), "other": torch.rand(800)})
    write(tmp_path / "a.ply", cloud)
    network = trained(Height(0.5), features=("glow",), normalize="center", points=50)
    predict.label_file(network, tmp_path / "a.ply", tmp_path / "out" / "a.ply")
    again = data.read(tmp_path / "out" / "a.ply")
    assert torch.equal(again.labels, (cloud.features["glow"] > 0.5).long())
    write(tmp_path / "b.ply", Cloud(points, {"other": torch.rand(800)}))
    with pytest.raises(ValueError, match=r"b\.ply: features must contain glow, got other"):
        predict.label_file(network, tmp_path / "b.ply", tmp_path / "out" / "b.ply")


def test_features_with_internal_names(tmp_path):
    """Features may have names that are used internally."""
    cloud = Cloud(scene(300), {name: torch.rand(300) for name in ("number", "points", "labels_", "feature number")})
    result = predict.label(trained(Height(0.5), features=("number", "points", "feature number")), cloud, tile=2.0)
    assert torch.equal(result.labels, (cloud.features["number"] > 0.5).long())


# Comparison with existing labels


def test_evaluate(tmp_path):
    points = scene(1000)
    truth = (points[:, 2] > 0.3).long()
    truth[:100] = -1
    write(tmp_path / "a.ply", Cloud(points, labels=truth))
    report = predict.label_file(trained(), tmp_path / "a.ply", tmp_path / "out" / "a.ply", evaluate=True)
    predicted = (points[:, 2] > 0).long()[100:]
    metrics = pytest.importorskip("sklearn.metrics")
    values = report.metrics.compute()
    assert values["accuracy"] == pytest.approx(metrics.accuracy_score(truth[100:], predicted))
    assert values["miou"] == pytest.approx(metrics.jaccard_score(truth[100:], predicted, average="macro"))


def test_evaluate_las_by_codes(tmp_path, small_tiles):
    before = las_file(tmp_path / "a.laz")
    import laspy

    codes = np.where(before.z > 0.4, 6, 2)
    before.classification = codes
    before.write(tmp_path / "b.laz")
    report = predict.label_file(
        trained(), tmp_path / "b.laz", tmp_path / "out" / "b.laz", evaluate=True, classification=(2, 6), tile=4.0
    )
    expected = [[np.sum((codes == code) & ((before.z > 0) == label)) for label in (0, 1)] for code in (2, 6)]
    assert report.metrics.confusion.tolist() == expected
    assert np.array_equal(laspy.read(report.target).classification, np.where(before.z > 0, 6, 2))
    numbers = trained(classes=("2", "6"))  # classes without a name are named by their number
    again = predict.label_file(numbers, tmp_path / "b.laz", tmp_path / "numbers" / "b.laz", evaluate=True)
    assert again.metrics.confusion.tolist() == expected
    ignored = predict.label_file(trained(), tmp_path / "b.laz", tmp_path / "c" / "b.laz", evaluate=True)
    assert ignored.ignored == {2: np.sum(codes == 2), 6: np.sum(codes == 6)}
    assert not ignored.metrics.confusion.any()


def test_class_names_of_a_different_network(tmp_path):
    write(tmp_path / "a.ply", Cloud(scene(10), labels=torch.zeros(10).long()))
    predict.label_file(trained(), tmp_path / "a.ply", tmp_path / "out" / "a.ply")
    other = trained(classes=("road", "tree"))
    with pytest.raises(
        FileError, match=r"classes\.txt: expected the classes of the network, road, tree, found low, high"
    ):
        predict.label_file(other, tmp_path / "a.ply", tmp_path / "out" / "b.ply")
    (tmp_path / "classes.txt").write_text("low\nhigh\n")
    with pytest.raises(
        FileError, match=r"classes\.txt: expected the classes of the network, road, tree, found low, high"
    ):
        predict.label_file(other, tmp_path / "a.ply", tmp_path / "b" / "a.ply", evaluate=True)


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "classification"}, "task of the network must be segmentation, got classification"),
        ({"tile": 0.0}, "tile must be a positive edge length, got 0.0"),
        ({"tile": float("nan")}, "tile must be a positive edge length, got nan"),
        ({"votes": 0}, "votes must be at least 1, got 0"),
        ({"max_points": 0}, "max_points must be at least 1, got 0"),
        ({"features": ("intensity",)}, "a.ply: features must contain intensity, got height"),
        ({"count": 0}, "a.ply: expected at least one point with finite coordinates, got none"),
        ({"nan": True}, "a.ply: expected at least one point with finite coordinates, got 5 with NaN or infinity"),
        ({"model": Height(float("nan"))}, "a.ply: expected finite network outputs, got NaN or infinity"),
    ],
)
def test_bad_input_gives_a_one_line_error(change, message):
    prepare = {"features": change.pop("features")} if "features" in change else {}
    network = trained(change.pop("model", None), change.pop("task", "segmentation"), **prepare)
    points = scene(100)[: change.pop("count", 5)]
    if change.pop("nan", False):
        points[:, 1] = torch.nan
    cloud = Cloud(points, {"height": points[:, 2]}, source="a.ply")
    with pytest.raises(ValueError, match=f"^{message}$"):
        predict.label(network, cloud, **change)


def test_categories():
    class Parts(Height):
        config = {"categories": 4}  # noqa: RUF012

        def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
            assert category.tolist() == [2] * len(category)
            return super().forward(points, features)

    network = trained(Parts(), normalize="sphere", points=50)
    predict.label(network, Cloud(scene(120), category=2))
    for category in (None, 4):
        with pytest.raises(ValueError, match=rf"category must be in \[0, 4\) for this network, got {category}"):
            predict.label(network, Cloud(scene(120), category=category))
    plain = predict.label(trained(), Cloud(scene(120), category=2))  # not passed to a network without categories
    assert len(plain.labels) == 120


def test_large_scene_needs_a_tile_for_a_network_trained_on_objects(monkeypatch):
    monkeypatch.setattr(labels, "WHOLE_POINTS", 100)
    cloud, network = Cloud(scene(200), source="a.laz"), trained(normalize="sphere")
    with pytest.raises(ValueError, match=r"^a\.laz: tile must be given for more than 100 points if .*, got 200"):
        predict.label(network, cloud)
    predict.label(network, cloud, tile=5.0)


@pytest.mark.parametrize("normalize", ["sphere", "center", "none"])
def test_one_point(normalize):
    result = predict.label(trained(normalize=normalize, points=16, voxel=0.1), Cloud(torch.tensor([[1.0, 2.0, 3.0]])))
    assert result.labels.shape == (1,)


def test_bad_files(tmp_path):
    (tmp_path / "empty.las").write_bytes(b"")
    (tmp_path / "cut.laz").write_bytes(b"")
    las_file(tmp_path / "whole.laz")
    whole = (tmp_path / "whole.laz").read_bytes()
    (tmp_path / "cut.laz").write_bytes(whole[: len(whole) // 2])
    las_file(tmp_path / "whole.las", version="1.2", point_format=3)
    plain = (tmp_path / "whole.las").read_bytes()
    (tmp_path / "cut.las").write_bytes(plain[: len(plain) // 2])
    (tmp_path / "a.xxx").write_text("")
    (tmp_path / "a.ply").write_text("ply\n")
    for name in ("empty.las", "cut.laz", "cut.las", "missing.laz", "missing.ply", "a.ply"):
        with pytest.raises(FileError, match=f"{name}: ") as caught:
            predict.label_file(trained(), tmp_path / name, tmp_path / "out" / name)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out" / name).exists()
    with pytest.raises(FileError, match=r"a\.xxx: "):
        predict.output(tmp_path / "a.xxx", tmp_path)
    with pytest.raises(FileError, match=r"b\.las: expected a name that ends in \.laz"):
        predict.label_file(trained(), tmp_path / "whole.laz", tmp_path / "out" / "b.las")
    las_file(tmp_path / "none.las", count=0)
    with pytest.raises(ValueError, match=r"none\.las: expected at least one point"):
        predict.label_file(trained(), tmp_path / "none.las", tmp_path / "out" / "none.las")

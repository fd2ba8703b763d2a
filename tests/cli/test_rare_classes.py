"""Networks learn classes with few points."""

import json

import pytest

from pointgrad import data
from pointgrad.cli import main

RARE = ("pole", "fence")
FLAGS = (
    "--epochs 8 --samples-per-cloud 16 --crop-points 1024 --batch-size 4 --lr 0.01 --smoothing 0 --options width=0.25"
)


def street_iou(folder, *flags):
    """Train on streets, and return the IoU of the rare classes on whole streets."""
    for part, seeds in (("scans/train", (0, 1, 2)), ("scans/val", (3,))):
        (folder / part).mkdir(parents=True)
        for seed in seeds:
            data.write(folder / part / f"{seed}.ply", data.street(30_000, length=30, seed=seed))
    (folder / "scans/classes.txt").write_text("\n".join(data.STREET_CLASSES))
    scans, run, metrics = (str(folder / name) for name in ("scans", "run", "metrics.json"))
    assert main(["train", "--data", scans, "--out", run, "--accelerator", "cpu", *FLAGS.split(), *flags]) == 0
    assert main(["evaluate", run, "--data", scans, "--split", "val", "--votes", "1", "--json", metrics]) == 0
    with open(metrics) as file:
        found = {each["class"]: each["iou"] for each in json.load(file)["classes"]}
    return {name: found[name] for name in RARE}


@pytest.mark.long
def test_poles_and_fences_are_learned_by_default(tmp_path):
    """Poles and fences have 1.3 % of the points. With equal weights and random crops both have an IoU of 0."""
    found = street_iou(tmp_path)
    assert all(iou > 0.2 for iou in found.values()), found

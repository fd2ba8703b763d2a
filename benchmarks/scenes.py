"""Networks for scenes compared: mIoU on held-out parts and time of training.

    python -m benchmarks.scenes --device cuda --scans folder/with/scans

Data: synthetic streets (`pointgrad.data.street`: eight for training, two to test on) and aerial scans with labels
(`house.laz`, `MixedConifer.laz` and `dallas1.xyzcirn.txt.gz`: the western 70 % of the points of each for training). The
input is coordinates only. All networks are trained on the same crops with the same schedule. Training ends after
--steps or --seconds, whichever is first, when the learning rate is zero.

    python -m benchmarks.scenes --rare --out benchmarks/results/rare_classes_cpu.json

trains on streets with `pointgrad train` instead, with and without its defaults for rare classes.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

import pointgrad
from benchmarks import rare_classes
from pointgrad import data, models
from pointgrad.bench.machine import machine
from pointgrad.cli.learning import scale_options, spacing

CROP, BATCH, CROPS = 8192, 8, 160
SCANS = ("house.laz", "MixedConifer.laz", "dallas1.xyzcirn.txt.gz")
NETWORKS: dict[str, dict[str, Any]] = {
    "pointnet2": {"name": "pointnet2"},
    "pointnext": {"name": "pointnext"},
    "minkunet": {"name": "minkunet"},
    "minkunet, width 0.25": {"name": "minkunet", "width": 0.25},
}
Labeled = tuple[Tensor, Tensor]  # points (N, 3) and labels (N,)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scenes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to train on")
    parser.add_argument("--scans", type=Path, help="folder of the aerial scans; without it only streets are used")
    parser.add_argument("--steps", type=int, default=300, help="largest number of training steps")
    parser.add_argument("--seconds", type=float, default=22.0, help="longest time of training of one network")
    parser.add_argument("--points", type=int, default=100_000, help="points of a street")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), help="networks to train")
    parser.add_argument("--rare", action="store_true", help="study rare classes of streets instead; uses only --out")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    given = parser.parse_args()
    if given.rare:
        rare_classes.study(given.out)
        return
    sets = {"streets": streets(given.points)}
    if given.scans is not None:
        sets["aerial scans"] = aerial(given.scans)
    results: dict[str, Any] = {}
    for title, (training, held_out, classes) in sets.items():
        voxel = float(f"{numpy.median([2 * spacing(points) for points, _ in training]):.1g}")
        training, held_out = ([thinned(cloud, voxel) for cloud in part] for part in (training, held_out))
        crops = random_crops(training, CROPS)
        rows = {}
        for name in given.networks:
            torch.manual_seed(0)
            config = {**NETWORKS[name], "task": "segmentation", "classes": classes}
            scale = {key: float(value) for key, value in scale_options(config["name"], voxel).items()}
            network = models.build(**config, **scale).to(given.device)
            rows[name] = train(network, crops, given)
            rows[name]["mIoU"] = evaluate(network, held_out, classes, given.device)
            rows[name]["parameters"] = sum(parameter.numel() for parameter in network.parameters())
        count = sum(len(labels) for _, labels in held_out)
        results[title] = {"voxel": voxel, "classes": classes, "held_out_points": count, "networks": rows}
        Console(width=110).print(table(f"{title}: voxel {voxel} m, {classes} classes, {count:,} held-out points", rows))
    if given.out is not None:
        record = {"machine": machine(given.device), "steps": given.steps, "seconds": given.seconds, "sets": results}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n")


def streets(points: int) -> tuple[list[Labeled], list[Labeled], int]:
    """Streets for training, streets to test on, and the number of classes."""
    clouds = [data.street(points, seed=seed) for seed in range(10)]
    pairs = [(cloud.points.float(), cloud.labels.long()) for cloud in clouds if cloud.labels is not None]
    return pairs[:8], pairs[8:], len(data.STREET_CLASSES)


def aerial(folder: Path) -> tuple[list[Labeled], list[Labeled], int]:
    """The western parts of the scans, the eastern parts, and the number of classes."""
    clouds = [read(folder / name) for name in SCANS]
    codes = torch.cat([labels for _, labels in clouds]).unique()
    training, held_out = [], []
    for points, labels in clouds:
        west = points[:, 0] < points[:, 0].quantile(0.7)
        local, number = (points - points.mean(0)).float(), torch.searchsorted(codes, labels)
        for part, chosen in ((training, west), (held_out, ~west)):
            part.append((local[chosen], number[chosen]))
    return training, held_out, len(codes)


def read(path: Path) -> Labeled:
    """Points and class codes of a scan."""
    if ".txt" in path.name:
        rows = torch.from_numpy(numpy.loadtxt(path))
        return rows[:, :3].contiguous(), rows[:, 3].long()
    cloud = data.read(path)
    labels = cloud.labels if cloud.labels is not None else cloud.features["classification"]
    return cloud.points.double(), labels.long()


def thinned(cloud: Labeled, voxel: float) -> Labeled:
    """One point per voxel."""
    index = pointgrad.voxel_sampling(cloud[0], voxel).index
    return cloud[0][index], cloud[1][index]


def nearest(points: Tensor, center: Tensor) -> Tensor:
    """The rows of the nearest CROP points to a center."""
    distance2 = (points - center).square().sum(1)
    return distance2.topk(min(CROP, len(points)), largest=False).indices


def random_crops(clouds: list[Labeled], count: int) -> list[Labeled]:
    """Crops around random points, which are equally likely in all clouds together."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([float(len(points)) for points, _ in clouds])
    crops = []
    for cloud in torch.multinomial(sizes, count, True, generator=generator).tolist():
        points, labels = clouds[cloud]
        row = nearest(points, points[int(torch.randint(len(points), (), generator=generator))])
        crops.append((points[row] - points[row].mean(0), labels[row]))
    return crops


def batch_of(crops: list[Labeled], device: str) -> dict[str, Tensor]:
    """Packed crops with offsets and labels."""
    sizes = torch.tensor([0, *(len(labels) for _, labels in crops)])
    rows = {"points": torch.cat([points for points, _ in crops]), "labels": torch.cat([labels for _, labels in crops])}
    return {name: value.to(device) for name, value in {**rows, "offsets": sizes.cumsum(0)}.items()}


def augmented(points: Tensor, offsets: Tensor, generator: torch.Generator) -> Tensor:
    """Each cloud rotated around z, mirrored and scaled at random."""
    batch = len(offsets) - 1
    angle = torch.rand(batch, generator=generator) * 2 * math.pi
    mirror = torch.randint(2, (batch,), generator=generator) * 2.0 - 1
    scale = 0.9 + 0.2 * torch.rand(batch, generator=generator)
    turn = torch.zeros(batch, 3, 3)
    turn[:, 0, 0], turn[:, 0, 1] = angle.cos() * mirror, -angle.sin()
    turn[:, 1, 0], turn[:, 1, 1], turn[:, 2, 2] = angle.sin() * mirror, angle.cos(), 1.0
    turn = (turn * scale[:, None, None]).to(points.device)
    cloud = torch.repeat_interleave(torch.arange(batch, device=points.device), offsets.diff())
    return (points.unsqueeze(1) @ turn[cloud]).squeeze(1)


def train(network: models.Network, crops: list[Labeled], given: Any) -> dict[str, float]:
    """Train with AdamW and a cosine schedule; return the number of steps and times."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.0, weight_decay=0.01)
    batches = [batch_of(crops[start : start + BATCH], given.device) for start in range(0, len(crops), BATCH)]

    def step(batch: dict[str, Tensor], rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        points = augmented(batch["points"], batch["offsets"], generator)
        loss = functional.cross_entropy(network(points, offsets=batch["offsets"]), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if given.device == "cuda":
            torch.cuda.synchronize()

    network.train()
    step(batches[0], 0.0)  # compiles kernels
    begin, times, done = time.perf_counter(), [], 0.0
    while done < 1:
        start = time.perf_counter()
        rate = 2e-3 * min(1.0, done / 0.1) * 0.5 * (1 + math.cos(math.pi * done))
        step(batches[int(torch.randint(len(batches), (), generator=generator))], rate)
        times.append(time.perf_counter() - start)
        done = max(len(times) / given.steps, (time.perf_counter() - begin) / given.seconds)
    return {"steps": len(times), "ms": 1e3 * float(numpy.median(times)), "s": time.perf_counter() - begin}


@torch.no_grad()
def evaluate(network: models.Network, clouds: list[Labeled], classes: int, device: str) -> float:
    """The mean IoU over classes that occur; logits of overlapping crops are added until every point is covered."""
    network.eval()
    confusion = torch.zeros(classes * classes, dtype=torch.int64)
    for points, labels in clouds:
        points = points.to(device)
        votes = torch.zeros(len(points), classes, device=device)
        covered = torch.zeros(len(points), dtype=torch.bool, device=device)
        while not bool(covered.all()):
            row = nearest(points, points[int((~covered).nonzero()[0])])
            votes[row] += network(points[row] - points[row].mean(0)).softmax(-1)
            covered[row] = True
        found = votes.argmax(1).cpu()
        confusion += torch.bincount(labels * classes + found, minlength=classes * classes)
    matrix = confusion.reshape(classes, classes).double()
    union = matrix.sum(0) + matrix.sum(1) - matrix.diagonal()
    return float((matrix.diagonal() / union)[matrix.sum(1) > 0].mean())


def table(title: str, rows: dict[str, dict[str, float]]) -> Table:
    """Results of the networks on one data set."""
    shown = Table(title=title, title_justify="left")
    for column in ("network", "parameters", "mIoU", "steps", "ms per step", "s"):
        shown.add_column(column, justify="left" if column == "network" else "right")
    for name, row in rows.items():
        values = (
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['mIoU']:.3f}",
            f"{row['steps']}",
            f"{row['ms']:.1f}",
            f"{row['s']:.1f}",
        )
        shown.add_row(name, *values)
    return shown


if __name__ == "__main__":
    main()

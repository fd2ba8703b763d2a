"""Point Transformer V3 and LitePT against the published structure in plain PyTorch operators (`plain_ptv3.py`).

    python -m benchmarks.serialized --device cuda --out benchmarks/results/serialized_gpu.json

The scene is a simulated LiDAR sweep in voxels of 5 cm. Both forms have the same weights, and their logits are compared
in float32 first. Times are wall-clock, so that the time of the host counts: inference and training step (forward,
cross-entropy, backward, AdamW) from coordinates to logits, including curves, coarse grids and kernel maps. On a GPU,
under autocast to bfloat16, inference and step on prepared grids are also captured as CUDA graphs; a replay is compared
with the sum of the times of its kernels.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.plain_ptv3 import PlainSerialized
from pointgrad import models
from pointgrad.bench import clocks, write
from pointgrad.bench.families.sparse import sweep
from pointgrad.bench.machine import machine
from pointgrad.models.serialized import Serialized

CLASSES, CHANNELS, VOXEL = 20, 4, 0.05
NETWORKS = {
    "cuda": {
        "PTv3 base": {"name": "ptv3", "voxel": VOXEL},
        "LitePT-S": {"name": "litept", "voxel": VOXEL},
    },
    "cpu": {
        "PTv3 base": {"name": "ptv3", "voxel": VOXEL},
        "PTv3, width 0.5": {"name": "ptv3", "voxel": VOXEL, "width": 0.5},
        "LitePT-S": {"name": "litept", "voxel": VOXEL},
    },
}
VOXELS = {"cuda": 100_000, "cpu": 20_000}
TOLERANCE = 1e-4  # relative to the largest logit, in float32
Call = Callable[[], Any]


def scene(voxels: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """The voxels of a sweep that are nearest to the sensor, as coordinates (N, 3) from 0; features and labels."""
    coordinates = sweep(max(voxels // 30, 8), "cpu")
    if len(coordinates) < voxels:
        raise SystemExit(f"a sweep has at most {len(coordinates):,} voxels, fewer than {voxels:,}")
    near = coordinates[:, :2].square().sum(1).argsort(stable=True)[:voxels].sort().values
    coordinates = coordinates[near] - coordinates[near].min(0).values
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(voxels, CHANNELS, generator=generator)
    labels = torch.randint(CLASSES, (voxels,), generator=generator)
    return coordinates.to(device), features.to(device), labels.to(device)


def build(options: dict[str, Any], device: str) -> tuple[Serialized, PlainSerialized]:
    """The network and its plain form with the same weights."""
    torch.manual_seed(0)
    network = models.build(**options, task="segmentation", classes=CLASSES, channels=CHANNELS, coordinates=False)
    ours = cast("Serialized", network)
    return ours.to(device), PlainSerialized(ours).to(device)


class Forms:
    """The two forms of a network on one scene.

    Args:
        options: Name and options of the network.
        voxels: Number of voxels of the scene.
        device: "cpu" or "cuda".
    """

    def __init__(self, options: dict[str, Any], voxels: int, device: str) -> None:
        self.device = device
        self.ours, self.plain = build(options, device)
        self.coordinates, self.features, self.labels = scene(voxels, device)
        self.cloud = torch.zeros_like(self.labels)
        self.points = (self.coordinates + 0.5) * VOXEL

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda")

    def logits(self) -> Tensor:
        grids = self.ours.grids(self.coordinates)
        out: Tensor = self.ours.head(self.ours.voxel_features(self.features, grids))
        return out

    def plain_logits(self) -> Tensor:
        out: Tensor = self.plain(self.coordinates, self.features, self.cloud)
        return out

    def check(self) -> float:
        """The largest difference of logits in evaluation, relative to the largest logit, which must be small."""
        self.ours.eval()
        self.plain.eval()
        with torch.inference_mode():
            received, expected = self.logits(), self.plain_logits()
        error = float((received - expected).abs().max() / expected.abs().max())
        if not error <= TOLERANCE:
            raise SystemExit(f"logits differ by {error:.1e} of the largest one, more than {TOLERANCE:.0e}")
        return error

    def inference(self, network: nn.Module, logits: Callable[[], Tensor]) -> Call:
        def call() -> Tensor:
            network.eval()
            with torch.inference_mode(), self.autocast():
                return logits()

        return call

    def step(self, network: nn.Module, logits: Callable[[], Tensor]) -> Call:
        """A call that runs one training step and frees the gradients."""
        on_gpu = self.device == "cuda"
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=on_gpu, capturable=on_gpu)

        def call() -> None:
            network.train()
            with self.autocast():
                out = logits()
            nn.functional.cross_entropy(out.float(), self.labels).backward()
            optimizer.step()
            optimizer.zero_grad()

        return call

    def from_points(self) -> Tensor:
        """The logits of the voxels from their centers, as users call the network."""
        return cast("Tensor", self.ours(self.points, self.features))


def compare(forms: Forms, rounds: int) -> dict[str, Any]:
    """Times and peak memory of both forms."""
    device = forms.device
    calls: dict[str, Call] = {}
    for name, network, logits in (("ours", forms.ours, forms.logits), ("plain", forms.plain, forms.plain_logits)):
        calls[f"{name} inference"] = forms.inference(network, logits)
        calls[f"{name} training step"] = forms.step(network, logits)
    calls["ours grids"] = lambda: forms.ours.grids(forms.coordinates)
    calls["ours inference from points"] = forms.inference(forms.ours, forms.from_points)
    return {
        name: {"ms": measured(call, device, rounds), "peak_MiB": clocks.peak_mib(call, device)}
        for name, call in calls.items()
    }


def measured(call: Call, device: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a call until its result exists."""
    times = []
    for number in range(rounds + 2):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= 2:  # the first calls compile kernels and allocate memory
            times.append((time.perf_counter() - begin) * 1e3)
    return clocks.summary(times)


def graphs(forms: Forms, rounds: int) -> dict[str, Any]:
    """Inference and training step on prepared grids: from Python, and as CUDA graphs; and the time of their kernels."""
    found: dict[str, Any] = {}
    for name, make in (("inference", forms.inference), ("training step", forms.step)):
        forms.ours.train(name == "training step")
        grids = forms.ours.grids(forms.coordinates)

        def logits(grids: Any = grids) -> Tensor:
            return cast("Tensor", forms.ours.head(forms.ours.voxel_features(forms.features, grids)))

        call = make(forms.ours, logits)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        row: dict[str, Any] = {"ms_from_python": measured(call, "cuda", rounds), "busy_ms_from_python": busy(call)}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        row |= {"ms": measured(graph.replay, "cuda", rounds), "busy_ms": busy(graph.replay)}
        row["over_busy"] = row["ms"]["median"] / row["busy_ms"] - 1
        found[name] = row
        del graph, call
    return found


def busy(call: Call, count: int = 3) -> float:
    """Milliseconds of GPU work of a call: the sum of the times of kernels, copies and fills."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    rows = [
        row
        for row in record.key_averages()
        if row.device_type.name == "CUDA" and not getattr(row, "is_user_annotation", False)
    ]
    return sum(row.self_device_time_total for row in rows) / 1e3 / count


def table(name: str, found: dict[str, Any]) -> Table:
    shown = Table(title=f"{name}, {found['voxels']:,} voxels, {found['parameters'] / 1e6:.1f} M", title_justify="left")
    for column in ("", "ms", "10 %", "90 %", "peak MiB", "GPU busy ms"):
        shown.add_column(column, justify="right" if column else "left")
    for label, row in found["rows"].items():
        ms, peak = row["ms"], row["peak_MiB"]
        cells = [f"{ms[key]:.4g}" for key in ("median", "p10", "p90")]
        shown.add_row(label, *cells, "" if peak is None else f"{peak:.0f}", "")
    for label, row in found.get("graphs", {}).items():
        for title, ms, work in (
            (f"{label} on grids", row["ms_from_python"], row["busy_ms_from_python"]),
            (f"{label} on grids, CUDA graph", row["ms"], row["busy_ms"]),
        ):
            shown.add_row(title, *(f"{ms[key]:.4g}" for key in ("median", "p10", "p90")), "", f"{work:.4g}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serialized",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to measure on")
    parser.add_argument("--voxels", type=int, help="voxels of the scene, by default 100,000 on a GPU, 20,000 on a CPU")
    parser.add_argument("--rounds", type=int, default=7, help="timed calls of each measurement")
    parser.add_argument("--networks", nargs="*", help="networks to measure, by default all")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    given = parser.parse_args()
    device, console = given.device, Console(width=120)
    voxels = given.voxels or VOXELS[device]
    dtype = "bfloat16 (autocast)" if device == "cuda" else "float32"
    record: dict[str, Any] = {"machine": machine(device), "voxels": voxels, "dtype": dtype, "networks": {}}
    for name, options in NETWORKS[device].items():
        if given.networks is not None and name not in given.networks:
            continue
        forms = Forms(options, voxels, device)
        found: dict[str, Any] = {"error": forms.check(), "voxels": voxels}
        found["parameters"] = sum(parameter.numel() for parameter in forms.ours.parameters())
        found["rows"] = compare(forms, given.rounds)
        if device == "cuda":
            found["graphs"] = graphs(forms, given.rounds)
        medians = {label: row["ms"]["median"] for label, row in found["rows"].items()}
        for work in ("inference", "training step"):
            found[f"{work}, times faster"] = medians[f"plain {work}"] / medians[f"ours {work}"]
        record["networks"][name] = found
        console.print(table(name, found))
        console.print(f"difference of logits: {found['error']:.1e}")
        if given.out is not None:
            write(record, given.out)  # so that an interrupted run has results
        del forms
        if device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

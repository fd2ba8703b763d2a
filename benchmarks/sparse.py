"""Sparse convolution against the number of voxels and channels, and MinkUNet against its plain form.

    python -m benchmarks.sparse --device cuda --out benchmarks/results/sparse_gpu.json

The voxels are shells of spheres. The plain form gathers, for each kernel position, the rows that exist, multiplies them
and adds them with `index_add`; its pairs of rows are searched once, as is our map. Every result of ours is checked
against it first. The times of networks include building all their maps.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from pointgrad import models, sparse_conv, submanifold_map
from pointgrad.bench import clocks, forms, write
from pointgrad.bench.families import sparse
from pointgrad.bench.machine import machine
from pointgrad.ops.sparse import register

VOXELS = (1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000, 4_000_000)
CHANNELS = (1, 4, 16, 32, 64, 128, 256, 512, 1024)
LIMITS = {"cpu": (1_000_000, 256), "cuda": (4_000_000, 1024)}  # largest sizes
SLOW = {"cpu": 3000.0, "cuda": 200.0}  # milliseconds after which the plain form is not run for the next size
SECONDS = 3.0  # time limit of one measurement
Call = Callable[[], Any]


def side_of(voxels: int) -> int:
    """The side of a shell with about this many voxels."""
    return max(round((voxels / 3.86) ** 0.5), 4)


def timed(call: Call, device: str, rounds: int) -> dict[str, float]:
    first = clocks.milliseconds(call, device)
    second = clocks.milliseconds(call, device)
    rounds = max(3, min(rounds, int(SECONDS * 1e3 / max(second, 1e-3))))
    if min(first, second) > SECONDS * 1e3:
        return clocks.summary([first, second])
    return clocks.summary([clocks.milliseconds(call, device) for _ in range(rounds)])


def convolution(voxels: int, channels: int, device: str, rounds: int, with_plain: bool) -> dict[str, Any]:
    """Times of the map, forward, and forward + backward, of ours and of the plain form."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    scene = sparse.Scene("shell", side_of(voxels), channels)
    coordinates, given = sparse.inputs(scene, dtype, device)
    found = submanifold_map(coordinates, 3)
    calls: dict[str, Callable[..., Tensor]] = {"ours": lambda features, weight: sparse_conv(features, weight, found)}
    if with_plain:
        pairs = sparse.pairs_of(found)
        calls["plain"] = partial(sparse.by_position, pairs=pairs, rows=len(coordinates))
        forms.close(lambda: calls["plain"](**given).float(), 2 * sparse.TOLERANCE[dtype])(
            calls["ours"](**given).float()
        )
    upstream = torch.randn_like(given["features"])
    row: dict[str, Any] = {"voxels": len(coordinates), "channels": channels}
    row["dtype"] = str(dtype).removeprefix("torch.")
    row["map"] = timed(lambda: submanifold_map(coordinates, 3), device, rounds)
    for name, call in calls.items():
        for passes in sparse.PASSES:
            work = forms.timed_call(passes, call, given, ("features", "weight"), upstream)
            row[f"{name} {passes}"] = timed(work, device, rounds)
    row["peak_MiB"] = clocks.peak_mib(lambda: calls["ours"](**given), device)
    return row


def series(sizes: list[tuple[int, int]], device: str, rounds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for voxels, channels in sizes:
        torch.manual_seed(0)
        last = rows[-1].get("plain forward + backward") if rows else {"median": 0.0}
        fast = last is not None and last["median"] < SLOW[device]
        rows.append(convolution(voxels, channels, device, rounds, fast))
        shown = {name: value["median"] for name, value in rows[-1].items() if isinstance(value, dict)}
        print(rows[-1]["voxels"], channels, shown, flush=True)
    return rows


@contextmanager
def plain_convolutions() -> Iterator[None]:
    """Replace the kernels of all sparse convolutions by the plain form. The pairs of a map are searched once."""
    ours = register.sparse_conv
    pairs: dict[int, tuple[Tensor, sparse.Pairs]] = {}

    def plain(
        features: Tensor, weight: Tensor, sources: Tensor, source_schedule: Tensor, targets: Tensor | None,
        target_schedule: Tensor | None, flip: bool, groups: int,
    ) -> Tensor:  # fmt: skip
        if groups != 1:
            return ours(features, weight, sources, source_schedule, targets, target_schedule, flip, groups)
        if id(sources) not in pairs:
            rows = [column.nonzero()[:, 0] for column in (sources >= 0).unbind(1)]
            found = [(into, sources[into, position].long()) for position, into in enumerate(rows)]
            pairs[id(sources)] = sources, found  # keeps the tensor, so that its id is not used again
        if torch.is_autocast_enabled(features.device.type):
            lower = torch.get_autocast_dtype(features.device.type)
            features, weight = features.to(lower), weight.to(lower)
        matrices = weight.flip(0) if flip else weight
        return sparse.by_position(features, matrices, pairs[id(sources)][1], len(sources))

    register.sparse_conv = plain
    try:
        yield
    finally:
        register.sparse_conv = ours


def network(variant: str, points: int, device: str, rounds: int, train: bool) -> dict[str, Any]:
    """A scene of about this many voxels: inference, and, if `train` is set, a training step."""
    torch.manual_seed(0)
    model = models.build(**NETWORKS[variant], classes=20).to(device)
    scene = (sparse.shell(side_of(points), device)[None] + 0.5) * 0.05  # centers of voxels of 5 cm
    labels = torch.randint(20, scene.shape[:2], device=device)
    optimizer = torch.optim.Adam(model.parameters(), fused=device == "cuda")

    def infer() -> Tensor:
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return model(scene)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(scene)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    row: dict[str, Any] = {"network": variant, "voxels": scene.shape[1]}
    for name in ("ours", "plain"):
        for work, call in (("inference", infer), *((("training step", step),) if train else ())):
            model.train(call is step)

            def once(call: Call = call, name: str = name) -> None:
                if name == "ours":
                    call()
                else:
                    with plain_convolutions():
                        call()

            row[f"{name} {work}"] = timed(once, device, rounds)
    print({name: value["median"] if isinstance(value, dict) else value for name, value in row.items()}, flush=True)
    return row


NETWORKS = {
    "MinkUNet-18": {"name": "minkunet", "task": "segmentation", "variant": "18"},
    "MinkUNet-34C": {"name": "minkunet", "task": "segmentation", "variant": "34c"},
}


def networks(device: str, rounds: int) -> list[dict[str, Any]]:
    if not hasattr(models, "minkunet"):
        print("pointgrad.models has no minkunet: the networks are not measured")
        return []
    if device == "cpu":
        return [network("MinkUNet-18", 20_000, device, rounds, train=False)]
    return [network("MinkUNet-34C", 100_000, device, rounds, train=True)]


def table(rows: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, dict)))
    made = Table("voxels", "channels", *(f"{name}, ms" for name in names), "peak MiB")
    for row in rows:
        cells = [f"{row[name]['median']:.3f}" if name in row else "" for name in names]
        peak = row.get("peak_MiB")
        made.add_row(str(row["voxels"]), str(row["channels"]), *cells, "" if peak is None else f"{peak:.0f}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sparse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to measure on")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    parser.add_argument("--rounds", type=int, default=11, help="timed calls of each measurement")
    parser.add_argument("--most", type=int, help="largest number of voxels")
    options = parser.parse_args()
    device, (most, widest) = options.device, LIMITS[options.device]
    most = options.most or most
    by_voxels = [(voxels, 64) for voxels in VOXELS if voxels <= most]
    at = min(most, 250_000 if device == "cuda" else 16_000)
    by_channels = [(at, channels) for channels in CHANNELS if channels <= widest]
    record: dict[str, Any] = {"machine": machine(device)}
    for name, sizes in (("by_voxels", by_voxels), ("by_channels", by_channels)):
        record[name] = series(sizes, device, options.rounds)
        Console(width=150).print(table(record[name]))
        write(record, options.out)  # so that an interrupted run has results
    record["networks"] = networks(device, options.rounds)
    write(record, options.out)


if __name__ == "__main__":
    main()

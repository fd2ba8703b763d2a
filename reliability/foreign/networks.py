"""`python -m reliability.foreign.networks --out FILE.json`: run the networks of torch-pointcloud on `pointgrad.compat`.

Each registered architecture is built once per task, with its registered sizes and random weights, and runs forward and
backward in training mode on two small random clouds. Only torch, PyTorch Geometric and pointgrad need to be installed
beside torch-pointcloud. The exit status is 1 if a network fails that needs none of `NOT_REPLACED`.
"""

import argparse
import fnmatch
import gc
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import pointgrad.compat
from pointgrad.bench import write
from pointgrad.bench.machine import machine
from pointgrad.errors import one_line

from ..arguments import out_file
from ..checkout import commit

LIBRARY = "torch-pointcloud"
NOT_REPLACED = ("mamba_ssm", "ocnn", "sptr")  # other libraries of which networks need more than compat has
VOXEL = 0.05  # edge length of the voxels on a sphere of radius 1
WITH_POSITION = ("pointrcnn",)  # `in_channels` includes the coordinates, as in all networks with `point_cloud_range`


def networks() -> Iterator[tuple[str, str, str]]:
    """Architecture, task and first registered name of each network."""
    from torch_pointcloud.models._registry import _REGISTERED_MODELS

    seen = set()
    for task, entries in _REGISTERED_MODELS.items():
        for name in entries:
            architecture = name.partition(".")[0]
            if (architecture, task) not in seen:
                seen.add((architecture, task))
                yield architecture, task, name


def run(name: str, task: str) -> dict[str, Any]:
    """Build a network and run it. Returns the steps that succeeded, and the error of the first that failed."""
    torch.manual_seed(0)
    steps: dict[str, Any] = {"parameters": None, "built": False, "forward": False, "backward": False, "reason": ""}
    try:
        model, info = build(name, task)
        steps |= {"parameters": sum(parameter.numel() for parameter in model.parameters()), "built": True}
        out = list(differentiable(model.train()(*inputs(name, task, info["input_keys"], info["hparams"]))))
        check_numbers("output", out)
        steps["forward"] = True
        torch.autograd.backward(out, [torch.randn_like(value) for value in out])
        check_numbers("gradient", [parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        steps["backward"] = True
    except Exception as error:
        missing = [library for library in NOT_REPLACED if re.search(rf"\b{library}\b", str(error))]
        steps["reason"] = f"needs {missing[0]}" if missing else one_line(error, with_type=True, limit=200)
    return steps


def build(name: str, task: str) -> tuple[nn.Module, dict[str, Any]]:
    """The network, with the names of its inputs and its sizes. Some are registered without numbers of channels."""
    from torch_pointcloud import create_model

    try:
        return create_model(name, task, return_info=True)
    except TypeError as error:
        if "data-dependent arguments" not in str(error):
            raise
        return create_model(name, task, return_info=True, in_channels=6, num_classes=5)


def inputs(name: str, task: str, keys: Sequence[str], sizes: Mapping[str, Any]) -> list[Any]:
    """Two clouds on spheres: points, or their voxels, with random features."""
    count = 4096 if task == "detection" else 1024  # detectors sample up to 4096 points
    pos = nn.functional.normalize(torch.randn(2 * count, 3), dim=1)
    batch = torch.arange(2).repeat_interleave(count)
    channels = sizes["in_channels"]
    if "point_cloud_range" in sizes or name.partition(".")[0] in WITH_POSITION:
        channels -= 3
    if "point_cloud_range" in sizes:
        low, high = torch.tensor(sizes["point_cloud_range"]).view(2, 3)
        pos = (low + high) / 2 + 0.3 * (high - low) * pos
    found: dict[str, Any] = {}
    if "voxel" in keys:
        from torch_pointcloud.ops.voxelization import hard_voxelize

        points = torch.cat([pos, torch.rand(len(pos), channels)], 1)
        voxels = hard_voxelize(points, batch, sizes["voxel_size"], sizes["point_cloud_range"], 10, 10000)
        found |= {"voxel": voxels[0], "batch_pos_voxel": voxels[1][:, 0], "pos_voxel": voxels[1][:, 1:]}
        found["voxel_num_points"] = voxels[2]
    if "pos_grid" in keys:
        grid = torch.unique(torch.cat([batch[:, None], ((pos + 1) / VOXEL).long()], 1), dim=0)
        batch, found["pos_grid"] = grid[:, 0], grid[:, 1:]
        pos = found["pos_grid"] * VOXEL
    found |= {"pos": pos, "batch": batch, "x": torch.randn(len(pos), channels) if channels else None}
    found["category"] = torch.eye(sizes.get("num_categories", 2))[:2]
    given = [found[key] for key in keys]
    if name.startswith("pointrcnn"):  # samples its proposals around the true boxes, one around each sphere
        given += [torch.tensor([[0.0, 0, 0, 2, 2, 2, 0]]).repeat(2, 1), torch.tensor([0, 1]), torch.tensor([0, 1])]
    return given


def differentiable(value: Any) -> Iterator[Tensor]:
    """All tensors with a gradient in a nested result."""
    if isinstance(value, Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, Mapping):
        yield from differentiable(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from differentiable(part)


def check_numbers(name: str, tensors: Iterable[Tensor]) -> None:
    """Raise an error unless all numbers are finite and some are not 0."""
    any_number = False
    for value in tensors:
        if not value.isfinite().all():
            raise ArithmeticError(f"{name} of shape {tuple(value.shape)} is not finite")
        any_number = any_number or bool(value.any())
    if not any_number:
        raise ArithmeticError(f"every {name} is 0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="architectures to run, such as 'sonata*'")
    parser.add_argument("--out", type=out_file, required=True, help="results; others of the same versions are kept")
    arguments = parser.parse_args()
    pointgrad.compat.install()
    versions = {library: importlib.metadata.version(library) for library in (LIBRARY, "torch-geometric")}
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    kept = record["rows"] if record.get("versions") == versions else {}
    record = {"versions": versions, "machine": machine("cpu"), "rows": kept}
    rows = []
    for architecture, task, name in networks():
        if fnmatch.fnmatch(architecture, arguments.only):
            outcome = {"network": name, **run(name, task), "commit": commit()}
            rows.append({"architecture": architecture, "task": task, **outcome})
            record["rows"][f"{architecture}, {task}"] = rows[-1]
            write(record, arguments.out)
            gc.collect()  # the next network may need the memory
            steps = [step for step in ("built", "forward", "backward") if rows[-1][step]]
            print(f"{architecture}, {task}: {', '.join(steps) or 'not built'}; {rows[-1]['reason']}", flush=True)
    if not rows:
        parser.error(f"--only must match an architecture, got {arguments.only!r}")
    failed = [row for row in rows if not row["backward"] and not row["reason"].startswith("needs ")]
    sys.exit(int(bool(failed)))


if __name__ == "__main__":
    main()

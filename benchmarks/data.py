"""Real clouds for benchmarks, where they are present; see tests/conftest.py."""

import os
from pathlib import Path

import torch
from torch import Tensor

DATA = Path(os.environ.get("POINTGRAD_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def lidar_scan() -> Tensor | None:
    """(N, 3), one sweep."""
    path = DATA / "scans" / "kitti_training_000000.bin"
    if not path.exists():
        return None
    return torch.from_file(str(path), size=path.stat().st_size // 4).reshape(-1, 4)[:, :3].contiguous()

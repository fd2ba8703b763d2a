"""Description of the machine on which something was measured."""

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

import pointgrad


def machine(device: str) -> dict[str, Any]:
    """Describe the machine for a result file.

    Args:
        device: "cpu" or "cuda".

    Returns:
        Versions of pointgrad, torch and Python, the date, and the processor of that device.
    """
    facts: dict[str, Any] = {
        "pointgrad": pointgrad.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": time.strftime("%Y-%m-%d"),
    }
    if device == "cuda":
        import triton

        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "triton": triton.__version__,
        }
    else:
        facts |= {"cpu": _cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return facts


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()

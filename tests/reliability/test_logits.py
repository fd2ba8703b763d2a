"""Networks of torch-pointcloud, an independent implementation, have our logits."""

import importlib.util
import re
import subprocess
import sys

import pytest

from reliability.foreign.logits import CASES


@pytest.mark.skipif(importlib.util.find_spec("torch_pointcloud") is None, reason="needs torch-pointcloud")
def test_logits_equal_those_of_torch_pointcloud():
    """In a process of its own: the compat modules must be installed before the first import of torch-pointcloud."""
    command = [sys.executable, "-m", "reliability.foreign.logits", *(case for case in CASES if "full" not in case)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(re.findall(r"logits differ by \d\.\de-\d\d of the largest", ended.stdout)) == len(CASES) - 1

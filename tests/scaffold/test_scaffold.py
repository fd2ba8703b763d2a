"""`pointgrad new-operator`: the files for each choice of kernels, invalid names and folders, and the generated tests."""

import ast
import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro, which is not installed")

from pointgrad import scaffold
from pointgrad.cli import main
from tests.support.places import PLACES, ROOT

COMPILED = ("cpp", "cuda", "triton")
CHOICES = [("python", *kernels) for count in range(4) for kernels in itertools.combinations(COMPILED, count)]
# Words that only a package with this kernel contains.
WORDS = {
    "cpp": ["c++ kernel", "cpu.cpp", "forward_cpu", "tensorsimpl"],
    "cuda": ["cuda.cu", "nvcc", "cuda kernel", "forward_cuda", "with_cuda"],
    "triton": ["triton"],
    "compiled": ["setup.py", "csrc", "bindings", "c++", "_c"],
}

"""Benchmarks: suites of work, each result checked, then ours, plain and compiled PyTorch and peers timed in one run.

>>> from pointgrad import bench
>>> record = bench.run(["gather"], device="cpu", quick=True)  # doctest: +SKIP
"""

from .run import WrongRequest as WrongRequest
from .run import run as run
from .run import write as write
from .suites import NAMES as NAMES
from .suites import describe as describe

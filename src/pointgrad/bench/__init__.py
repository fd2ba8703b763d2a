"""Benchmarks of the operators: every result is checked, then ours, plain and compiled PyTorch and peers are timed.

>>> from pointgrad import bench
>>> record = bench.run(["gather"], device="cpu", quick=True)  # doctest: +SKIP
"""

from .families import NAMES as NAMES
from .families import describe as describe
from .functions import FunctionError as FunctionError
from .run import RequestError as RequestError
from .run import run as run
from .run import run_function as run_function
from .run import write as write

"""Folder of the real point clouds, see tests/conftest.py."""

import os
from pathlib import Path

DATA = Path(os.environ.get("POINTGRAD_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))

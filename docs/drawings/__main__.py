"""Draws every picture of the documentation: `make figures`. With names, only those: `make figures ONLY=conv`."""

import importlib
import sys
from pathlib import Path

for name in sys.argv[1:] or sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")):
    module = importlib.import_module(f"{__package__}.{name}")
    if hasattr(module, "draw"):
        print(name)
        module.draw()

"""Draw the figures of the documentation: all (`make figures`), or those of one module (`make figures ONLY=conv`)."""

import importlib
import sys
from pathlib import Path

for name in sys.argv[1:] or sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")):
    module = importlib.import_module(f"{__package__}.{name}")
    if hasattr(module, "draw"):
        print(name)
        module.draw()

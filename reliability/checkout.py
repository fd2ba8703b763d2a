"""What was tried: the commit of this checkout."""

import subprocess
from pathlib import Path


def commit() -> str | None:
    """None outside of a checkout. A + means that files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    said = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return said.stdout.strip() or None

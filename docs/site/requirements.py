"""Print the packages that the site needs, the extra `docs` of pyproject.toml, one per line."""

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"

if __name__ == "__main__":
    # By a pattern, because Python 3.10 has no tomllib.
    listed = re.search(r"^docs = \[(.*)\]$", PROJECT.read_text(), re.MULTILINE)
    assert listed, "pyproject.toml has no extra named docs"
    print("\n".join(re.findall(r'"([^"]+)"', listed[1])))

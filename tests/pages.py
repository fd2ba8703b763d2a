"""What holds for every page of the documentation."""

import contextlib
import io
import re
from pathlib import Path

# A Python block, and the text block right behind it, which shows what it prints.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def run(blocks: list[tuple[str, str]]) -> None:
    """In order, sharing their names; each prints what is shown behind it."""
    names: dict[str, object] = {}
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if shown:
            assert printed.getvalue() == shown


def check_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target

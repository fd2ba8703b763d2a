"""What holds for every page of the documentation."""

import contextlib
import io
import linecache
import re
from pathlib import Path

# A Python block, and the text block right behind it, which shows what it prints.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def run(blocks: list[tuple[str, str]]) -> None:
    """In order, sharing their names; each prints what is shown behind it."""
    names: dict[str, object] = {}
    for number, (code, shown) in enumerate(blocks):
        printed = io.StringIO()
        file = f"<block {number} of page {id(names)}>"
        # As notebooks do: Triton reads the source of its kernels.
        linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file
        with contextlib.redirect_stdout(printed):
            exec(compile(code, file, "exec"), names)
        if shown:
            assert printed.getvalue() == shown


def check_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target

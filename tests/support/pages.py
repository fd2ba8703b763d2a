"""The pages of the documentation: their blocks, headings and links."""

import contextlib
import io
import linecache
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import pointgrad
from docs.site.notebooks import BLOCK
from pointgrad import cli

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT), *sys.path])  # for `python -m tests.support.pages` in any working directory
DOCS = ROOT / "docs"
SOURCE = Path(pointgrad.__file__).parent
TEMPLATE = SOURCE / "scaffold" / "template"  # its README belongs to the packages made from it
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *(page for page in sorted(SOURCE.rglob("README.md")) if page.parent != TEMPLATE),
    *(page for folder in ("benchmarks", "reliability") for page in sorted((ROOT / folder).rglob("*.md"))),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]
IN_DOCS = [path for path in PAGES if DOCS in path.parents and path.parent.name != "site"]

QUOTE = re.compile(r"(?:#|//) (pointgrad|examples|benchmarks)/(\S+\.(?:py|cpp|cu))\n")
QUOTED = {"pointgrad": SOURCE, "examples": ROOT / "examples", "benchmarks": ROOT / "benchmarks"}
RUNS = ("pointgrad ", "python ")


@dataclass
class Block:
    """A fenced block; `note` is a comment before it: why it is not run, or flags that the tests add."""

    language: str
    code: str
    shown: str
    note: str

    @property
    def reason(self) -> str:
        """The reason why the block is not run; empty if it is."""
        return self.note.removeprefix("not run: ") if self.note.startswith("not run: ") else ""

    @property
    def commands(self) -> list[str]:
        """Lines of a shell block that can be run."""
        if self.language not in ("", "bash", "sh"):
            return []
        return [line for line in self.code.splitlines() if line.startswith(RUNS)]


def blocks(path: Path) -> list[Block]:
    found = []
    for match in BLOCK.finditer(path.read_text()):
        code, shown = (_dedent(match[name] or "", len(match[1])) for name in ("code", "shown"))
        found.append(Block(match["language"], code, shown, match["note"] or ""))
    return found


def run(path: Path) -> None:
    """Run all blocks in order, in the working directory.

    Python blocks share one namespace and must print the output shown after them. A block in Python or C++ that starts
    with a comment `pointgrad/<file>`, `examples/<file>` or `benchmarks/<file>` is a quotation, which must be in that
    file.
    """
    names: dict[str, object] = {}
    for number, block in enumerate(blocks(path)):
        if block.reason:
            continue
        printed = io.StringIO()
        quoted = QUOTE.match(block.code) if block.language in ("python", "cpp") else None
        if quoted:
            assert block.code[quoted.end() :].strip("\n") in (QUOTED[quoted[1]] / quoted[2]).read_text()
            continue
        if block.language == "python":
            with contextlib.redirect_stdout(printed):
                exec(_compiled(block.code, f"<block {number} of {path}>"), names)
        for command in block.commands:
            added = block.note.removeprefix("tests add: ") if block.note.startswith("tests add: ") else ""
            printed.write(_shell(f"{command} {added}"))
        if block.shown:
            assert printed.getvalue() == block.shown, printed.getvalue()


def _compiled(code: str, file: str) -> CodeType:
    """Register the source like a notebook does, because Triton reads the source of its kernels."""
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file
    return compile(code, file, "exec")


def _shell(command: str) -> str:
    """The output of a command. `pointgrad` runs in this process, which saves the import of torch."""
    program, *arguments = shlex.split(command, comments=True)
    if program == "pointgrad":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert cli.main(arguments) == 0, command
        return printed.getvalue()
    python_path = os.pathsep.join([str(SOURCE.parent), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": python_path},
        timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, f"{command}: {result.stderr}"
    return result.stdout


def headings(path: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", without_code(path.read_text()), re.MULTILINE)


def without_code(page: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page, flags=re.DOTALL | re.MULTILINE)


def check_links(path: Path) -> None:
    """Check that every linked file and heading exists."""
    text = re.sub(r"`[^`\n]+`", "", without_code(path.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        if anchor:
            assert anchor in {_slug(heading) for heading in headings(file)}, target


def _slug(heading: str) -> str:
    """The anchor that code hosts and the site give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _dedent(text: str, spaces: int) -> str:
    return re.sub(rf"^ {{{spaces}}}", "", text, flags=re.MULTILINE) if spaces else text


if __name__ == "__main__":
    run(Path(sys.argv[1]))

"""The pages of docs/book: their code runs, prints what they show, and quotes the package as it is."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import pointgrad

BOOK = Path(__file__).parents[1] / "docs" / "book"
PAGES = sorted(BOOK.glob("*.md"))
OPERATOR_PAGES = [path for path in PAGES if "## Formula" in path.read_text()]
SOURCE = Path(pointgrad.__file__).parent
# A Python block, and the text block right behind it, which shows what it prints.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
QUOTE = re.compile(r"# (pointgrad|examples)/(\S+\.py)\n")
QUOTED = {"pointgrad": SOURCE, "examples": BOOK.parents[1] / "examples"}
OPERATOR_SECTIONS = ["Formula", "Derivation", "Code", "Saved for backward", "Check"]


def sections(page: str) -> list[str]:
    outside_code = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^## (.*)$", outside_code, re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page_runs(path):
    """Blocks run in order and share their names. One that begins with `# pointgrad/<file>`, or `# examples/<file>`,
    is a quotation."""
    names: dict[str, object] = {}
    for code, shown in BLOCK.findall(path.read_text()):
        quoted = QUOTE.match(code)
        if quoted:
            assert code[quoted.end() :].strip("\n") in (QUOTED[quoted[1]] / quoted[2]).read_text()
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if shown:
            assert printed.getvalue() == shown


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", OPERATOR_PAGES, ids=lambda path: path.stem)
def test_operator_pages_are_complete(path):
    page = path.read_text()
    assert [name for name in sections(page) if name in OPERATOR_SECTIONS] == OPERATOR_SECTIONS
    assert re.search(r"!\[.+\]\(images/.+\)", page), "a page has a picture"
    assert QUOTE.search(page), "a page quotes the code that runs"
    assert "assert" in page.split("## Check")[1], "a check can fail"

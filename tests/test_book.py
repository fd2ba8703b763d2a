"""The pages of docs/book: their code runs, prints what they show, and quotes the package as it is."""

import re
from pathlib import Path

import pages
import pytest

import pointgrad

BOOK = Path(__file__).parents[1] / "docs" / "book"
PAGES = sorted(BOOK.glob("*.md"))
OPERATOR_PAGES = [path for path in PAGES if "## Formula" in path.read_text()]
SOURCE = Path(pointgrad.__file__).parent
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
    own = []
    for code, shown in pages.BLOCK.findall(path.read_text()):
        quoted = QUOTE.match(code)
        if quoted:
            assert code[quoted.end() :].strip("\n") in (QUOTED[quoted[1]] / quoted[2]).read_text()
        else:
            own.append((code, shown))
    pages.run(own)


DOCUMENTS = [
    *PAGES,
    BOOK.parent / "benchmarks.md",
    *(BOOK.parents[1] / name for name in ("README.md", "CONTRIBUTING.md")),
]
DOCUMENTS += sorted(SOURCE.rglob("README.md"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_links_lead_somewhere(path):
    pages.check_links(path)


@pytest.mark.parametrize("path", OPERATOR_PAGES, ids=lambda path: path.stem)
def test_operator_pages_are_complete(path):
    page = path.read_text()
    assert [name for name in sections(page) if name in OPERATOR_SECTIONS] == OPERATOR_SECTIONS
    assert re.search(r"!\[.+\]\(images/.+\)", page), "a page has a picture"
    assert QUOTE.search(page), "a page quotes the code that runs"
    assert "assert" in page.split("## Check")[1], "a check can fail"

"""Pages of docs/book that derive an operator have all required sections."""

import re

import pytest

from tests.support import pages

BOOK = pages.DOCS / "book"
OPERATOR_PAGES = [path for path in sorted(BOOK.glob("*.md")) if "## Formula" in path.read_text()]
OPERATOR_SECTIONS = ["Formula", "Derivation", "Code", "Saved for backward", "Check"]


@pytest.mark.parametrize("path", OPERATOR_PAGES, ids=lambda path: path.stem)
def test_operator_pages_are_complete(path):
    page = path.read_text()
    assert [name for name in pages.headings(path) if name in OPERATOR_SECTIONS] == OPERATOR_SECTIONS
    assert re.search(r"!\[.+\]\(images/.+\)", page), "a page has a picture"
    assert pages.QUOTE.search(page), "a page quotes the code that runs"
    assert "assert" in page.split("## Check")[1], "a check can fail"

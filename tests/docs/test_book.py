"""The book: its order, its exercises, and the sections of pages that derive an operator."""

import re

import pytest

from tests.support import pages

BOOK = pages.DOCS / "book"
CHAPTERS = [path for path in sorted(BOOK.glob("*.md")) if path.name != "README.md"]
OPERATOR_PAGES = [path for path in sorted(BOOK.glob("*.md")) if "## Formula" in path.read_text()]
OPERATOR_SECTIONS = ["Formula", "Derivation", "Code", "Saved for backward", "Check"]


@pytest.mark.parametrize("path", OPERATOR_PAGES, ids=lambda path: path.stem)
def test_operator_pages_are_complete(path):
    page = path.read_text()
    assert [name for name in pages.headings(path) if name in OPERATOR_SECTIONS] == OPERATOR_SECTIONS
    assert re.search(r"!\[.+\]\(images/.+\)", page), "a page has a picture"
    assert pages.QUOTE.search(page), "a page quotes the code that runs"
    assert "assert" in page.split("## Check")[1], "a check can fail"


def test_order_is_the_same_on_the_site():
    listed = re.findall(r"^\| (\d+) \| \[[^]]+\]\((\w+)\.md\)", (BOOK / "README.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in listed] == list(range(1, len(CHAPTERS) + 1))
    assert sorted(name for _, name in listed) == [path.stem for path in CHAPTERS]
    navigation = (pages.ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert re.findall(r"\bbook/(\w+)\.md$", navigation.replace("book/README.md", ""), re.MULTILINE) == [
        name for _, name in listed
    ]


# Answers run in test_pages.py. Code hosts and the site fold them.
ANSWER = re.compile(
    r'^\*\*(\d)\.\*\* .*?\n\n<details markdown="1"><summary>Answer</summary>\n\n.*?\n\n</details>$', re.S | re.M
)


@pytest.mark.parametrize("path", [*CHAPTERS, pages.DOCS / "autograd_function.md"], ids=lambda path: path.stem)
def test_exercises_have_answers_that_run(path):
    exercises = path.read_text().partition("\n## Exercises\n")[2]
    assert "\n## " not in exercises, "exercises end the page"
    answers = list(ANSWER.finditer(exercises))
    assert [int(found[1]) for found in answers] in ([1, 2], [1, 2, 3])
    for found in answers:
        assert re.search(r"\n```python\n.*(assert|print).*\n```", found[0], re.S), (
            "the answer checks or prints something"
        )

"""Write the table of operators in docs/operators/README.md from the pages of the operator families."""

import re
from pathlib import Path

FAMILIES = Path(__file__).parents[1] / "operators"
PAGE = FAMILIES / "README.md"
TABLE = re.compile(r"(<!-- operators -->\n).*?(<!-- end -->)", re.DOTALL)


def rewrite() -> str:
    """The text of the page, with its table of operators generated again."""
    lines = ["| family | purpose | operators |", "|---|---|---|"]
    pages = {page: page.read_text() for page in FAMILIES.glob("*.md") if page.name != "README.md"}
    for page, text in sorted(pages.items(), key=lambda item: (int(_field(item[1], "order")), item[0])):
        title = re.findall(r"^# (.*)$", text, re.MULTILINE)[0]
        names = re.findall(r"^## `([\w.]+)`$", text, re.MULTILINE)
        names += re.findall(r"^\| \[`(functional\.\w+)`\]\(\.\./book/", text, re.MULTILINE)
        lines.append(
            f"| [{title}]({page.name}) | {_field(text, 'summary')} | {', '.join(f'`{name}`' for name in names)} |"
        )
    table = "\n".join(lines)
    return TABLE.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", PAGE.read_text())


def _field(text: str, name: str) -> str:
    """A value of the front matter."""
    found = re.search(rf"\A---\n(?:.*\n)*?{name}: (.*)\n", text)
    if found is None:
        raise ValueError(f"front matter must have `{name}: ...`, got {text[:80]!r}")
    return found[1]


def draw() -> None:
    PAGE.write_text(rewrite())

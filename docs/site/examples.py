"""Writes the list of docs/examples.md: each numbered program, and the first paragraph of its docstring."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "examples.md"
BEGIN, END = "<!-- written by docs/site/examples.py -->\n", "<!-- end -->\n"


def entries() -> str:
    lines = ["| program | what |", "|---|---|"]
    for path in sorted((ROOT / "examples").rglob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        first = " ".join(text.partition("\n\n")[0].split())
        name = path.relative_to(ROOT / "examples").as_posix()
        lines.append(f"| [`{name}`](../examples/{name}) | {first} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The page as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{entries()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written())

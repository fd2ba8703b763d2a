"""Convert pages to notebooks, which the site offers for download.

    python docs/site/notebooks.py [FOLDER]    # writes them to FOLDER, by default out/notebooks

A block that the tests run becomes a code cell with the output that the page shows; all else becomes Markdown. Images
are embedded, and links to other pages become plain text, because a notebook can be opened in any folder.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parents[1]
PAGES = ("start.md", "own_network.md", "own_operator.md")
# A comment, a block, and the text block after it, which shows the expected output.
BLOCK = re.compile(
    r"^( *)(?:<!-- (?P<note>[^\n]*) -->\n\1)?```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^\1```$"
    r"(?:\n\n?\1```text\n(?P<shown>.*?)^\1```$)?",
    re.DOTALL | re.MULTILINE,
)
# Code is matched first, so that its brackets are not taken for links.
LINK = re.compile(r"^```.*?^```|`[^`\n]+`|(!?)\[([^\]]*)\]\((?!https?:)([^)\s]+)\)", re.DOTALL | re.MULTILINE)


def notebook(page: Path) -> dict[str, Any]:
    """The notebook of a page, in version 4.5 of the format."""
    text, cells, end = page.read_text(), [], 0
    for found in BLOCK.finditer(text):
        source = _source(found)
        if source:
            cells += [*_prose(text[end : found.start()], page), _code(source, found)]
            end = found.end()
    cells += _prose(text[end:], page)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {
        "cells": [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells)],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _source(found: re.Match[str]) -> str:
    """The source of a block's cell, or "" for a block that is only shown."""
    if (found["note"] or "").startswith("not run"):
        return ""
    code = found["code"].rstrip("\n")
    if found["language"] == "python":
        return code
    commands = not found["language"] and all(line.startswith("pointgrad ") for line in code.splitlines())
    return re.sub(r"^", "!", code, flags=re.MULTILINE) if commands else ""


def _code(source: str, found: re.Match[str]) -> dict[str, Any]:
    shown = [{"output_type": "stream", "name": "stdout", "text": found["shown"]}] if found["shown"] else []
    metadata = {"note": found["note"]} if found["note"] else {}
    return {"cell_type": "code", "execution_count": None, "metadata": metadata, "outputs": shown, "source": source}


def _prose(text: str, page: Path) -> list[dict[str, Any]]:
    """A Markdown cell, or none for an empty text."""
    images = {}

    def moved(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        if target is None:
            return found[0]
        if not image:
            return label
        file = page.parent / target
        images[file.name] = {mimetypes.guess_type(file)[0]: base64.b64encode(file.read_bytes()).decode()}
        return f"![{label}](attachment:{file.name})"

    source = LINK.sub(moved, text).strip()
    attachments = {"attachments": images} if images else {}
    return [{"cell_type": "markdown", "metadata": {}, **attachments, "source": source}] if source else []


def _json(page: Path) -> str:
    return json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks to the site."""
    from mkdocs.structure.files import File

    for name in PAGES:
        content = _json(DOCS / name)
        files.append(File.generated(config, Path(name).with_suffix(".ipynb").as_posix(), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Link the notebook below the heading of its page."""
    if page.file.src_uri not in PAGES:
        return markdown
    heading, _, rest = markdown.lstrip().partition("\n")
    return f"{heading}\n\n[Download as a notebook]({Path(page.file.src_uri).stem}.ipynb){{ download }}\n{rest}"


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/notebooks")
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        path = folder / Path(name).with_suffix(".ipynb")
        path.write_text(_json(DOCS / name))
        print(path)

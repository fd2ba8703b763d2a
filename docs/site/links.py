"""Turn links out of docs/ into links within the site.

Pages are written for a code host, where a link is a path relative to the file. In the site, `docs/x` is the page `x`,
the README of any other folder `p` is the page `source/p.md`, and any other file `p` is the download `source/p`.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
RENAMED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# Code is matched first, so that its brackets are not taken for links.
LINK = re.compile(r"^```.*?^```|`[^`\n]+`|(?<=\]\()([^)#\s]+)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the READMEs of the source, and every file that a page links to."""
    waiting = [*(ROOT / name for name in RENAMED), *(ROOT / "src").rglob("README.md")]
    waiting.remove(ROOT / "src/pointgrad/scaffold/template/README.md")  # of the packages made from the template
    waiting += [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if files.get_file_from_path(_place(path)) is None:
            files.append(_file(path, config))
        if path.is_dir():
            waiting += [file for file in path.iterdir() if file.is_file()]
        elif path.suffix == ".md":
            waiting += _linked(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links between files of the repository with links between pages of the site."""
    source = page.file.abs_src_path
    if source is None:  # a page from _folder, whose links are correct
        return markdown
    here = Path(page.file.src_uri).parent

    def moved(target: str) -> str:
        path = (Path(source).parent / target).resolve()
        return Path(os.path.relpath(_place(path), here)).as_posix() if _ours(path) else target

    return _replace(markdown, moved)


def _replace(markdown: str, change: Callable[[str], str]) -> str:
    return LINK.sub(lambda found: change(found[1]) if found[1] else found[0], markdown)


def _linked(page: Path) -> Iterator[Path]:
    for found in LINK.finditer(page.read_text()):
        path = (page.parent / found[1]).resolve() if found[1] else ROOT
        if _ours(path):
            yield path


def _ours(path: Path) -> bool:
    return path != ROOT and ROOT in path.parents and path.exists()


def _place(path: Path) -> str:
    """The path of a file of the repository in the site."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if path.is_dir() or path.name == "README.md":
        return f"source/{name.removesuffix('/README.md')}.md"
    return RENAMED.get(name, f"source/{name}")


def _file(path: Path, config: MkDocsConfig) -> File:
    if path.is_dir():
        return File.generated(config, _place(path), content=_folder(path))
    return File.generated(config, _place(path), abs_src_path=str(path))


def _folder(path: Path) -> str:
    """A page that lists the files of a linked folder."""
    names = sorted(file.name for file in path.iterdir() if file.is_file())
    return f"# {path.relative_to(ROOT)}\n\n" + "".join(f"- [{name}]({path.name}/{name})\n" for name in names)

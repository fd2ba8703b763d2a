"""Expand patterns in the navigation of mkdocs.yml.

An entry such as `operators/*` stands for every page that it matches and that the navigation does not name elsewhere.
Pages are sorted by `order` in their front matter, then by path.
"""

from fnmatch import fnmatch
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.utils.meta import get_data


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {file.src_uri: get_data(file.content_string)[1].get("order", 0) for file in files.documentation_pages()}
    unnamed = [page for page in sorted(pages, key=lambda page: (pages[page], page)) if page not in _named(config.nav)]
    config.nav = _expand(config.nav, unnamed)
    return files


def _named(entry: Any) -> set[str]:
    if isinstance(entry, str):
        return {entry}
    children = entry.values() if isinstance(entry, dict) else entry
    return set().union(*map(_named, children))


def _expand(entries: list[Any], unnamed: list[str]) -> list[Any]:
    """Takes each page out of `unnamed` at the first pattern that matches it."""
    expanded: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            expanded.append({k: _expand(v, unnamed) if isinstance(v, list) else v for k, v in entry.items()})
        elif "*" in entry:
            found = [page for page in unnamed if fnmatch(page, entry)]
            unnamed[:] = [page for page in unnamed if page not in found]
            expanded += found
        else:
            expanded.append(entry)
    return expanded

"""Keep notes on the source out of the search, and find operators by their short names."""

import re
from typing import Any

from mkdocs.structure.pages import Page

# Names that other libraries use, added to the heading's section so that a search finds them.
SHORT = {"farthest_point_sampling": "fps", "ball_query": "radius search", "knn": "k nearest neighbours"}
HEADING = re.compile(r"^## `(\w+)`.*$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if page.file.src_uri.startswith("source/src/"):
        page.meta["search"] = {"exclude": True}
    if page.file.src_uri.startswith("operators/"):
        return HEADING.sub(_with_short_name, markdown)
    return markdown


def _with_short_name(found: re.Match[str]) -> str:
    short = SHORT.get(found[1])
    return f"{found[0]}\n\nAlso called {short}." if short else found[0]

"""Order the search results: operators, guides, API, then the rest; without the notes on the source."""

import re
from typing import Any

from mkdocs.structure.pages import Page

# Factors of the score of pages, by the beginning of their path.
WEIGHTS = {"operators/": 4, "api/": 2, "migration": 0.5, "changelog": 0.25}
WEIGHTS |= dict.fromkeys(("start", "concepts", "own_network", "data", "training", "predict", "viewer"), 3)
# Names that other libraries use, added to the heading's section so that a search finds them.
SHORT = {"farthest_point_sampling": "fps", "ball_query": "radius search", "knn": "k nearest neighbours"}
HEADING = re.compile(r"^## `(\w+)`.*$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    path = page.file.src_uri
    if path.startswith("source/src/"):
        page.meta["search"] = {"exclude": True}
    for beginning, weight in WEIGHTS.items():
        if path.startswith(beginning):
            page.meta["search"] = {"boost": weight}
    return HEADING.sub(_with_short_name, markdown) if path.startswith("operators/") else markdown


def _with_short_name(found: re.Match[str]) -> str:
    short = SHORT.get(found[1])
    return f"{found[0]}\n\nAlso called {short}." if short else found[0]

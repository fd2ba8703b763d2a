"""Hide the side bars on the home page."""

from typing import Any

from mkdocs.structure.pages import Page


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    return markdown

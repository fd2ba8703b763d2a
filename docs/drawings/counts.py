"""The tables of docs/reliability.md and README.md, from reliability/results: nothing in them is typed in."""

from reliability import page


def draw() -> None:
    for path in page.PAGES:
        path.write_text(page.updated(path))

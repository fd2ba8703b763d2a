"""Write the tables of docs/reliability.md and docs/migration.md from reliability/results."""

from reliability import page


def draw() -> None:
    for path in page.PAGES:
        path.write_text(page.updated(path))

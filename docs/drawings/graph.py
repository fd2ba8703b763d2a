"""The graph of the network on the book's page about graphs, drawn by pointgrad itself."""

from pathlib import Path

BOOK = Path(__file__).parents[1] / "book"


def draw() -> None:
    names: dict[str, object] = {}
    first = (BOOK / "graph.md").read_text().split("```python\n")[1].split("```")[0]
    exec(first, names)  # the page's own code: what it shows is what is drawn
    names["found"].write(BOOK / "images" / "graph.svg")

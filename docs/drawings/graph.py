"""The graph on the book's page about autograd graphs, drawn by `pointgrad.inspect`."""

from pathlib import Path

BOOK = Path(__file__).parents[1] / "book"


def draw() -> None:
    names: dict[str, object] = {}
    first = (BOOK / "graph.md").read_text().split("```python\n")[1].split("```")[0]
    exec(first, names)  # the code of the page itself
    names["found"].write(BOOK / "images" / "graph.svg")

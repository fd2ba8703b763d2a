"""The table of results in a terminal."""

from rich.console import Console

from benchmarks import page
from pointgrad.bench import table


def test_table_fits_the_width_of_the_terminal(capsys):
    record = page.load("gpu")
    for width in (120, 80):
        table.show(record, Console(width=width))
        lines = capsys.readouterr().out.partition("ours: median")[0].splitlines()  # the remarks follow
        shown = [line for line in lines if line.startswith(("work ", "farthest", "group"))]
        assert len(shown) > 5
        assert max(map(len, shown)) <= width
        assert {"ours", "plain", "peers"} <= set(shown[0].split())

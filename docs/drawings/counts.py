"""The tables of docs/reliability.md, from reliability/results: nothing is typed in there."""

import sys

from style import ROOT

sys.path.insert(0, str(ROOT))
from reliability import page


def draw() -> None:
    page.PAGE.write_text(page.anew())

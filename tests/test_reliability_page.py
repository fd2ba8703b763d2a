"""The tables of docs/reliability.md and README.md say what was counted, and nothing else."""

import re

from reliability import page


def test_tables_are_those_that_were_counted():
    shown = set()
    for path in page.PAGES:
        text = path.read_text()
        shown |= set(re.findall(r"<!-- counted (\w+) -->", text))
        assert page.anew(path) == text, "make figures ONLY=counts"
    assert shown == set(page.SECTIONS)


def test_the_readme_names_every_result():
    readme = (page.RESULTS.parent / "README.md").read_text()
    names = {path.name for path in page.RESULTS.glob("*.json")}
    assert {name for name in names if f"`{name}`" not in readme} == set()

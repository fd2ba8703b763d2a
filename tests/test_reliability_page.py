"""docs/reliability.md says what was counted, and nothing else."""

import re

from reliability import page


def test_tables_are_those_that_were_counted():
    text = page.PAGE.read_text()
    assert set(re.findall(r"<!-- counted (\w+) -->", text)) == set(page.SECTIONS)
    assert page.anew() == text, "make figures ONLY=counts"


def test_the_readme_names_every_result():
    readme = (page.RESULTS.parent / "README.md").read_text()
    names = {path.name for path in page.RESULTS.glob("*.json")}
    assert {name for name in names if f"`{name}`" not in readme and not name.startswith("gpu_")} == set()

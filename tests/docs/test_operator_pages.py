"""Pages of docs/operators: each operator is on exactly one complete page, with the measured times."""

import inspect
import re
from pathlib import Path

import pytest

import pointgrad
import pointgrad.functional
from docs.drawings import operators as operators_table

DOCS = Path(__file__).parents[2] / "docs"
OVERVIEW = DOCS / "operators" / "README.md"
FAMILIES = sorted(set(OVERVIEW.parent.glob("*.md")) - {OVERVIEW})
LABELS = ("Formula", "Shapes", "Example", "Gradient")
TITLES = ("How to choose", "Cost", "Precision", "In other libraries")


def public() -> tuple[set[str], set[str]]:
    """Names of operators (`functional.` in front where needed) and of the named tuples they return."""
    offered = vars(pointgrad).items()
    offered = [(name, value) for name, value in offered if getattr(value, "__module__", "").startswith("pointgrad.ops")]
    results = {name for name, value in offered if inspect.isclass(value) and issubclass(value, tuple)}
    functional = {name for name, value in vars(pointgrad.functional).items() if inspect.isfunction(value)}
    names = {name for name, _ in offered} - results - {"backend", "release_buffers"}
    return names | {f"functional.{name}" for name in functional}, results


def operators(path: Path) -> dict[str, str]:
    """The text of each section whose heading names operators."""
    parts = re.split(r"^## (.*)\n", path.read_text(), flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    return {name: text for title, text in sections.items() for name in re.findall(r"`([\w.]+)`", title)}


def test_every_operator_is_on_exactly_one_page():
    names, results = public()
    headed = [name for path in FAMILIES for name in operators(path)]
    elementary = re.findall(r"^\| \[`(functional\.\w+)`\]\(\.\./book/", (OVERVIEW.parent / "loss.md").read_text(), re.M)
    assert sorted(headed + elementary) == sorted(names)
    text = "".join(path.read_text() for path in FAMILIES)
    assert {name for name in results if f"`{name}(" in text} == results
    assert "`pointgrad.backend`" in OVERVIEW.read_text()


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
def test_page_is_complete(path):
    page = path.read_text()
    for name, text in operators(path).items():
        assert [label for label in re.findall(r"^\*\*(\w+)\.\*\*", text, re.M) if label in LABELS] == list(LABELS), name
        assert "```python" in text.split("**Example.**")[1], name
    assert [title for title in TITLES if f"\n## {title}\n" not in page] == []
    assert re.search(r"!\[.{20,}\]\(\.\./(images/operators|book/images)/.+\)", page), "a picture with a description"
    assert "](../benchmarks.md)" in page
    readme = path.parents[2] / "src" / "pointgrad" / "ops" / path.stem / "README.md"
    assert f"/docs/operators/{path.name})" in readme.read_text(), "the README of the family links to the page"


def test_table_of_operators_is_up_to_date():
    assert "<!-- operators -->" in OVERVIEW.read_text()
    assert operators_table.rewrite() == OVERVIEW.read_text(), "make figures ONLY=operators"


def test_times_match_the_measurements():
    pytest.importorskip("rich")
    from benchmarks import page

    shown = []
    for path in FAMILIES:
        text = path.read_text()
        assert page.updated(path) == text, f"{path.name}: make figures ONLY=speed"
        beginnings = [each for found in re.findall(r"<!-- measured (.*) -->", text) for each in found.split("; ")]
        assert [each for each in beginnings if f"| {each}" not in text] == [], path.name
        shown += beginnings
    rows = [row for name in ("gpu", "cpu") for row in page.load(name)["rows"]]
    names = {row["name"] for row in rows if row["family"] not in ("compat", "overhead")}
    assert {name for name in names if not name.startswith(tuple(shown))} == set(), "measured, but on no page"


GUIDE = DOCS / "own_operator.md"


def test_guide_names_existing_checks():
    from pointgrad.inspect.audit import CHECKS

    table = GUIDE.read_text().split("## 11. Common mistakes")[1].split("**Outputs")[0]
    named = {name for row in re.findall(r"^\|.*\| (.*) \|$", table, re.M) for name in re.findall(r"`([^`]+)`", row)}
    assert named
    assert named <= set(CHECKS)

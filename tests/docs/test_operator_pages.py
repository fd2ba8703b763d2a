"""The pages of docs/operators: each operator on exactly one, every page complete, times as they were measured."""

import inspect
import re
from pathlib import Path

import pytest

import pointgrad
import pointgrad.functional

DOCS = Path(__file__).parents[2] / "docs"
OVERVIEW = DOCS / "operators" / "README.md"
FAMILIES = sorted(set(OVERVIEW.parent.glob("*.md")) - {OVERVIEW})
LABELS = ("Formula", "Shapes", "Example", "Gradient")
TITLES = ("Which one", "Cost", "Precision", "In other libraries")


def public() -> tuple[set[str], set[str]]:
    """Operators, and the named tuples that they return; those of `functional` with its name in front."""
    offered = vars(pointgrad).items()
    offered = [(name, value) for name, value in offered if getattr(value, "__module__", "").startswith("pointgrad.ops")]
    results = {name for name, value in offered if inspect.isclass(value) and issubclass(value, tuple)}
    functional = {name for name, value in vars(pointgrad.functional).items() if inspect.isfunction(value)}
    names = {name for name, _ in offered} - results - {"backend"}
    return names | {f"functional.{name}" for name in functional}, results


def operators(path: Path) -> dict[str, str]:
    """What each section that is headed by operators says about them."""
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
def test_a_page_is_complete(path):
    page = path.read_text()
    for name, text in operators(path).items():
        assert [label for label in re.findall(r"^\*\*(\w+)\.\*\*", text, re.M) if label in LABELS] == list(LABELS), name
        assert "```python" in text.split("**Example.**")[1], name
    assert [title for title in TITLES if f"\n## {title}\n" not in page] == []
    assert re.search(r"!\[.{20,}\]\(\.\./(images/operators|book/images)/.+\)", page), "a picture, and what it shows"
    assert "](../benchmarks.md)" in page
    room = path.parents[2] / "src" / "pointgrad" / "ops" / path.stem / "README.md"
    assert f"/docs/operators/{path.name})" in room.read_text(), "the room leads to its page"


def test_the_overview_leads_to_every_page_and_names_every_operator():
    overview = OVERVIEW.read_text()
    assert {path.name for path in FAMILIES} <= set(re.findall(r"\]\((\w+\.md)\)", overview))
    shown = {name for path in FAMILIES for name in operators(path)}
    assert {name for name in shown if f"`{name}`" not in overview} == set()


def test_times_are_those_that_were_measured():
    pytest.importorskip("rich")
    from benchmarks import page

    for path in FAMILIES:
        assert "<!-- measured " in path.read_text(), path.name
        assert page.updated(path) == path.read_text(), f"{path.name}: make figures ONLY=speed"
        for beginning in re.search(r"<!-- measured (.*) -->", path.read_text())[1].split("; "):
            assert f"| {beginning}" in path.read_text(), beginning


GUIDE = DOCS / "own_operator.md"


def test_the_guide_names_checks_that_exist():
    from pointgrad.inspect.audit import CHECKS

    table = GUIDE.read_text().split("## 11. Common mistakes")[1].split("**Outputs")[0]
    named = {name for row in re.findall(r"^\|.*\| (.*) \|$", table, re.M) for name in re.findall(r"`([^`]+)`", row)}
    assert named
    assert named <= set(CHECKS)

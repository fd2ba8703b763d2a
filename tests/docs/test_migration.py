"""Migration pages: every name in their tables exists, and every supported function has an entry."""

import importlib
import inspect
import re

import pytest

import pointgrad
import pointgrad.compat
from tests.support import pages

DOCS = pages.DOCS
PAGES = [DOCS / "migration.md", *sorted((DOCS / "migration").glob("*.md"))]
PEERS = pointgrad.compat.peers()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_named_objects_exist(path):
    """Every dotted `pointgrad` name in the text, and every name in an import line."""
    page = path.read_text()
    for dotted in set(re.findall(r"pointgrad(?:\.\w+)+", page)):
        found = pointgrad
        for part in dotted.split(".")[1:]:
            if not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)
    for module, imported in re.findall(r"`from (pointgrad[\w.]*) import ([\w, ]+)`", page):
        for name in imported.split(", "):
            exec(f"from {module} import {name}")


def test_every_library_has_a_page():
    assert {path.stem for path in PAGES[1:]} == set(PEERS)
    for name in PEERS:
        assert f"(migration/{name}.md)" in PAGES[0].read_text()


@pytest.mark.parametrize("name", PEERS)
def test_every_function_is_on_the_page(name):
    page = (DOCS / "migration" / f"{name}.md").read_text()
    for module in pointgrad.compat.modules(name):
        for exported in getattr(module, "__all__", ()):
            if inspect.isfunction(getattr(module, exported)):
                assert re.search(rf"\b{exported}\b", page), exported

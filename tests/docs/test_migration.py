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
CLIENTS = [DOCS / "migration" / "torch_pointcloud.md"]  # libraries that run on compat


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


def page_of(name):
    """The page of a library, or that of all compiled modules."""
    own = DOCS / "migration" / f"{name}.md"
    return own if own.exists() else DOCS / "migration" / "compiled_modules.md"


def test_every_page_is_of_a_library_and_linked():
    assert set(PAGES[1:]) == {page_of(name) for name in PEERS} | set(CLIENTS)
    for path in PAGES[1:]:
        assert f"(migration/{path.name})" in PAGES[0].read_text()
    for name in PEERS:
        assert re.search(rf"\b{name}\b", page_of(name).read_text(), re.IGNORECASE), name


@pytest.mark.parametrize("name", PEERS)
def test_every_function_is_on_the_page(name):
    page = page_of(name).read_text()
    for module in pointgrad.compat.modules(name):
        for exported in getattr(module, "__all__", ()):
            if inspect.isfunction(getattr(module, exported)):
                assert re.search(rf"\b{exported}\b", page), exported

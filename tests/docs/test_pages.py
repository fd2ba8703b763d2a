"""Every page: its code runs, its links resolve, it is not a stub, and the site builds."""

import html.parser
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.site import notebooks
from tests.support import pages
from tests.support.places import PLACES

IN_DOCS = [path for path in pages.PAGES if pages.DOCS in path.parents and path.parent.name != "site"]
# The README's example runs in tests/test_package.py; its commands appear on other pages too.
# Pages with a notebook run in test_notebooks.py.
ELSEWHERE = [pages.ROOT / "README.md", *(pages.DOCS / name for name in notebooks.PAGES)]
RUN = [path for path in pages.PAGES if path not in ELSEWHERE and pages.blocks(path)]
# The accepted reasons for not running a block.
REASONS = {
    "needs a GPU",
    "needs several GPUs",
    "needs several machines",
    "needs data from elsewhere",
    "needs a program of yours",
    "needs torch-pointcloud",
    "opens the browser",
    "takes minutes",
}


def name(path: Path) -> str:
    return path.relative_to(pages.ROOT).as_posix()


# torch 2.15 warns about tensors that its own opcheck creates.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("path", RUN, ids=name)
@pytest.mark.usefixtures("no_library")
def test_code_runs(path, tmp_path, monkeypatch):
    pytest.importorskip("tyro")
    if "import triton" in path.read_text() and not any(place.backend == "triton" for place in PLACES):
        pytest.skip("neither a GPU nor Triton's interpreter is available")
    monkeypatch.chdir(tmp_path)
    if "import audit" in path.read_text():
        # An audit forks: that needs a process without CUDA and without earlier autograd threads.
        command = [sys.executable, "-m", "tests.support.pages", str(path)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": pages.PYTHONPATH}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    else:
        pages.run(path)


@pytest.mark.parametrize("path", pages.PAGES, ids=name)
def test_skipped_blocks_have_a_reason(path):
    for block in pages.blocks(path):
        if block.note.startswith("not run"):
            assert block.reason in REASONS
            assert block.language == "python" or block.commands, "the block has nothing to run"


def test_most_blocks_run():
    found = [block for path in RUN for block in pages.blocks(path) if block.language == "python" or block.commands]
    assert len([block for block in found if block.reason]) < len(found) / 5


@pytest.mark.parametrize("path", pages.PAGES, ids=name)
def test_links_resolve(path):
    pages.check_links(path)


@pytest.mark.parametrize("path", IN_DOCS, ids=name)
def test_no_page_is_a_stub(path):
    text = path.read_text()
    assert re.match(r"(---\n.*?\n---\n+)?# \S", text, re.DOTALL), "a page starts with its heading"
    reference = "<!-- public names of pointgrad" in text
    assert reference or len(pages.without_code(text).split()) > 100
    assert not re.search(r"\b(TODO|FIXME|TBD|coming soon)\b", text, re.IGNORECASE)


def exported(package: str) -> set[str]:
    """Public names at run time: `__all__`, or everything that is neither private nor a module."""
    module = importlib.import_module(package)
    public = {name for name in vars(module) if not name.startswith("_")}
    return set(getattr(module, "__all__", {name for name in public if not inspect.ismodule(vars(module)[name])}))


def packages() -> list[str]:
    """Packages with an API page."""
    inner = {"pointgrad.ops", "pointgrad.catalog", "pointgrad.cli", "pointgrad.bench"}
    found = [f"pointgrad.{file.parent.name}" for file in pages.SOURCE.glob("*/__init__.py")]
    return ["pointgrad", *sorted(set(found) - inner)]


class Links(html.parser.HTMLParser):
    """The resources a page loads, the links it contains, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded, self.linked, self.anchors, self.classes = [], [], set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.classes |= set((found.get("class") or "").split())
        self.anchors |= {found.get("id"), found.get("name")}
        if tag == "a":
            self.linked.append(found.get("href") or "")
        elif tag == "link":
            self.loaded.append(found.get("href") or "")
        elif "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture
def site(tmp_path):
    """The files of the site, built as `make docs` does."""
    for needed in ("mkdocs", "material", "mkdocstrings", "math_core", "ziamath"):
        pytest.importorskip(needed)
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        capture_output=True, text=True, cwd=pages.ROOT, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="the last mkdocstrings for Python 3.10 does not work with newer pymdown-extensions",
)
@pytest.mark.long
def test_site(site):
    """One test, so that the site is built once."""
    _check_pages_and_links(site)
    _check_formulas(site)
    _check_reference(site)


def _check_pages_and_links(site):
    """Every page exists, every link resolves to a file and an anchor, and nothing is loaded from another host."""
    parsed = {name: Links(path.read_text()) for name, path in site.items() if name.endswith(".html")}
    for path in IN_DOCS:
        page = path.relative_to(pages.DOCS).with_suffix(".html").as_posix()
        assert re.sub(r"README\.html$", "index.html", page) in parsed
    for page, links in parsed.items():
        if page == "404.html":  # its links start at the root of the host
            continue
        for target in links.loaded:
            assert not urlsplit(target).netloc, f"{page} loads {target}"
        for target in {*links.loaded, *links.linked}:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            found = _join(page, unquote(parts.path))
            assert found in site, f"{page} links to {target}"
            if parts.fragment and found in parsed:
                assert unquote(parts.fragment) in parsed[found].anchors, f"{page} links to {target}"
    for name, path in site.items():
        if name.endswith(".css"):
            assert not re.search(r"url\([\"']?(https?:)?//", path.read_text()), name


def _check_formulas(site):
    """All formulas are MathML."""
    page = site["book/softmax.html"].read_text()
    assert page.count("<math") > 20
    assert '<math display="block">' in page
    for name, path in site.items():
        if name.endswith(".html"):
            assert "arithmatex" not in Links(path.read_text()).classes, name


def _check_reference(site):
    """Every public name is on its page, with sections for arguments, examples as code, and typed signatures."""
    for package in packages():
        page = site[f"api/{'operators' if package == 'pointgrad' else package.split('.')[1]}.html"].read_text()
        assert {name for name in exported(package) if f'id="{package}.{name}"' not in page} == set()
        assert "<blockquote>" not in page, package
        # A function with the name of its module is shown, not the module.
        assert "doc-symbol-module" not in page, package
    page = site["api/operators.html"].read_text()
    knn = page.partition('id="pointgrad.knn"')[2].partition('id="pointgrad.to_edges"')[0]
    assert re.search(r"<code>queries</code>", knn)
    assert "&gt;&gt;&gt; " in knn
    assert re.search(r">k<.*?>int<", knn, re.DOTALL)


def _join(page: str, target: str) -> str:
    if not target:
        return page
    parts = page.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    joined = "/".join(parts)
    return f"{joined}/index.html".lstrip("/") if target.endswith(("/", "..")) or target == "." else joined

"""What holds for every page: its code runs, its links lead somewhere, it is no stub; and the site is built of them."""

import ast
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

from tests.support import pages
from tests.support.places import PLACES

IN_DOCS = [path for path in pages.PAGES if pages.DOCS in path.parents and path.parent.name != "site"]
# The README's example runs in test_house.py; its commands are those of the pages.
RUN = [path for path in pages.PAGES if path != pages.ROOT / "README.md" and pages.blocks(path)]
# Why a block is not run: nothing else is a reason.
REASONS = {
    "needs a GPU",
    "needs several GPUs",
    "needs several machines",
    "needs data from elsewhere",
    "needs a program of yours",
    "opens the browser",
    "takes minutes",
}


def name(path: Path) -> str:
    return path.relative_to(pages.ROOT).as_posix()


# torch 2.15 warns of tensors that its own opcheck makes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("path", RUN, ids=name)
@pytest.mark.usefixtures("no_library")
def test_code_runs(path, tmp_path, monkeypatch):
    pytest.importorskip("tyro")
    if "import triton" in path.read_text() and not any(place.backend == "triton" for place in PLACES):
        pytest.skip("nothing here can run Triton")
    monkeypatch.chdir(tmp_path)
    if "import audit" in path.read_text():
        # An audit forks its process, which is possible or not by what ran in it before, and not beside a GPU.
        command = [sys.executable, "-m", "tests.support.pages", str(path)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": pages.PYTHONPATH}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    else:
        pages.run(path)


@pytest.mark.parametrize("path", pages.PAGES, ids=name)
def test_what_is_not_run_says_why(path):
    for block in pages.blocks(path):
        if block.note.startswith("not run"):
            assert block.reason in REASONS
            assert block.language == "python" or block.commands, "nobody would run it"


def test_most_blocks_run():
    found = [block for path in RUN for block in pages.blocks(path) if block.language == "python" or block.commands]
    assert len([block for block in found if block.reason]) < len(found) / 5


@pytest.mark.parametrize("path", pages.PAGES, ids=name)
def test_links_lead_somewhere(path):
    pages.check_links(path)


@pytest.mark.parametrize("path", IN_DOCS, ids=name)
def test_no_page_is_a_stub(path):
    text = path.read_text()
    assert re.match(r"(---\n.*?\n---\n+)?# \S", text, re.DOTALL), "a page begins with its heading"
    reference = "::: pointgrad." in text
    assert reference or len(pages.without_code(text).split()) > 100
    assert not re.search(r"\b(TODO|FIXME|TBD|coming soon)\b", text, re.IGNORECASE)
    navigation = (pages.ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    entries = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", navigation, re.MULTILINE)
    assert path.relative_to(pages.DOCS).as_posix() in entries, "a page is in the navigation"


def exported(package: str) -> set[str]:
    module = importlib.import_module(package)
    if hasattr(module, "__all__"):
        return set(module.__all__)
    imports = [node for node in ast.parse(Path(module.__file__).read_text()).body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname for node in imports for alias in node.names}
    return {name for name in names if not inspect.ismodule(getattr(module, name))}


def packages() -> list[str]:
    """With public names; rooms are reached through `pointgrad`, layers of them through their package."""
    inner = {"pointgrad.ops", "pointgrad.cli", "pointgrad.bench"}
    found = [f"pointgrad.{file.parent.name}" for file in pages.SOURCE.glob("*/__init__.py")]
    return ["pointgrad", *sorted(set(found) - inner)]


@pytest.mark.parametrize("package", packages())
def test_reference_has_every_public_name(package):
    page = pages.DOCS / "api" / f"{'operators' if package == 'pointgrad' else package.split('.')[1]}.md"
    shown = re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(f"{package}.{name}" for name in exported(package))


class Links(html.parser.HTMLParser):
    """What a page loads or leads to, and where in it one can be led to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded, self.led, self.anchors, self.classes = [], [], set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.classes |= set((found.get("class") or "").split())
        self.anchors |= {found.get("id"), found.get("name")}
        if tag == "a":
            self.led.append(found.get("href") or "")
        elif tag == "link":
            self.loaded.append(found.get("href") or "")
        elif "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture
def site(tmp_path):
    """The site, built as `make docs` builds it."""
    for needed in ("mkdocs", "material", "mkdocstrings", "math_core", "ziamath"):
        pytest.importorskip(needed)
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        capture_output=True, text=True, cwd=pages.ROOT, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="the last mkdocstrings for Python 3.10 does not go with newer pymdown-extensions"
)
def test_site(site):
    """One test, so that it is built once."""
    _is_whole(site)
    _shows_formulas(site)
    _shows_docstrings(site)


def _is_whole(site):
    """Every page is there, every link in it leads to a file and a place that are there, and nothing is loaded from
    elsewhere."""
    parsed = {name: Links(path.read_text()) for name, path in site.items() if name.endswith(".html")}
    for path in IN_DOCS:
        page = path.relative_to(pages.DOCS).with_suffix(".html").as_posix()
        assert re.sub(r"README\.html$", "index.html", page) in parsed
    for page, links in parsed.items():
        if page == "404.html":  # its links begin with the root of the host
            continue
        for target in links.loaded:
            assert not urlsplit(target).netloc, f"{page} loads {target}"
        for target in {*links.loaded, *links.led}:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            found = _join(page, unquote(parts.path))
            assert found in site, f"{page} leads to {target}"
            if parts.fragment and found in parsed:
                assert unquote(parts.fragment) in parsed[found].anchors, f"{page} leads to {target}"
    for name, path in site.items():
        if name.endswith(".css"):
            assert not re.search(r"url\([\"']?(https?:)?//", path.read_text()), name


def _shows_formulas(site):
    """As MathML, all of them."""
    page = site["book/softmax.html"].read_text()
    assert page.count("<math") > 20
    assert '<math display="block">' in page
    for name, path in site.items():
        if name.endswith(".html"):
            assert "arithmatex" not in Links(path.read_text()).classes, name


def _shows_docstrings(site):
    """Arguments as a list, examples as code, a signature with its types."""
    page = site["api/operators.html"].read_text()
    for name in exported("pointgrad"):
        assert f'id="pointgrad.{name}"' in page
    knn = page.partition('id="pointgrad.knn"')[2].partition('id="pointgrad.ball_query"')[0]
    assert re.search(r"<li>\s*(<p>)?<code>queries</code>: \(M, D\)", knn)
    assert "&gt;&gt;&gt; " in knn
    assert "<blockquote>" not in page
    assert re.search(r">k<.*?>int<", knn, re.DOTALL)
    for name, page in site.items():  # a function that is called as its file is shown, not the file
        assert not name.startswith("api/") or "doc-symbol-module" not in page.read_text(), name


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

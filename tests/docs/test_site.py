"""The site: pages, links, formulas, API reference, and in a browser its search, pictures and tables."""

import functools
import html.parser
import http.server
import importlib
import inspect
import io
import json
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

import pytest

import pointgrad
from docs.site import notebooks
from tests.support import pages
from tests.support.browser import chromium


def exported(package: str) -> set[str]:
    """Public names at run time: `__all__`, or everything that is neither private nor a module."""
    module = importlib.import_module(package)
    public = {name for name in vars(module) if not name.startswith("_")}
    return set(getattr(module, "__all__", {name for name in public if not inspect.ismodule(vars(module)[name])}))


def packages() -> list[str]:
    """Packages with an API page."""
    inner = {f"pointgrad.{name}" for name in ("bench", "catalog", "cli", "ops", "scaffold")}
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
    _check_search_index(site)
    with served(site) as address, chromium() as browser:  # the last check, because it skips without a browser
        _check_in_browser(browser, address)


def _check_pages_and_links(site):
    """Every page exists, every link resolves to a file and an anchor, and nothing is loaded from another host."""
    parsed = {name: Links(path.read_text()) for name, path in site.items() if name.endswith(".html")}
    for path in pages.IN_DOCS:
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
    for name in notebooks.PAGES:
        assert name.replace(".md", ".ipynb") in parsed[name.replace(".md", ".html")].linked
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


def _check_search_index(site):
    """Notes on the source are pages, but are not found."""
    found = {entry["location"] for entry in json.loads(site["search/search_index.json"].read_text())["docs"]}
    assert "source/src/pointgrad/nn.html" in site
    assert not any(location.startswith("source/src/") for location in found)
    assert "own_network.html" in found


@contextmanager
def served(site):
    """The address of a server of the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=site["index.html"].parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _check_in_browser(browser, address):
    page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="dark")
    requested = []
    page.on("request", lambda request: requested.append(request.url))

    page.goto(f"{address}/index.html")
    assert f"pointgrad {pointgrad.__version__}" in page.locator("header").inner_text()
    order = ["[class*=highlight]:has-text('pip install')", ".highlight:has-text('import torch')", "img", ".cards"]
    tops = [page.locator(f"article {each}").first.bounding_box()["y"] for each in order]
    assert tops == sorted(tops)
    for query, expected in (("fps", "operators/sampling.html"), ("k nearest", "operators/neighbors.html")):
        page.locator(".md-search__input").fill(query)
        page.locator(".md-search__input").press("End")  # the search listens to keys
        page.locator(f".md-search-result__link[href*='{expected}']").first.wait_for()
        assert expected in page.locator(".md-search-result__link").first.get_attribute("href"), query

    # The paper of a figure has the colour of the page, and the hero is transparent.
    for name, picture in (("operators/sampling.html", "sampling.png"), ("concepts.html", "concepts_layouts.svg")):
        page.goto(f"{address}/{name}")
        _assert_dark(page, page.locator(f"img[src$='{picture}']"))
    page.goto(f"{address}/index.html")
    _assert_dark(page, page.locator("img[src$='hero.png']"))

    page.goto(f"{address}/benchmarks.html")
    assert page.locator(".md-typeset__table").count() > 8
    tables = "tables => tables.map(table => table.scrollWidth - table.parentElement.clientWidth)"
    assert max(page.locator(".md-typeset__table").evaluate_all(tables)) <= 1, "a table is cut off at 1400 pixels"
    for path in ("index.html", "benchmarks.html", "operators/sampling.html"):
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(f"{address}/{path}")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, path
    assert [url for url in requested if not url.startswith(address)] == []


def _assert_dark(page, picture):
    """The corner of a picture has the colour of the page around it, which is dark."""
    from PIL import Image

    picture.scroll_into_view_if_needed()
    page.wait_for_function("image => image.complete", arg=picture.element_handle())
    box = picture.bounding_box()
    shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    inside = shown.getpixel((int(box["x"]) + 4, int(box["y"]) + 4))
    outside = shown.getpixel((int(box["x"]) - 4, int(box["y"]) + 4))
    assert inside == outside
    assert max(inside) < 80


@pytest.mark.parametrize(
    ("remote", "expected"),
    [
        ("https://github.com/owner/name.git", ("https://github.com/owner/name", "owner/name")),
        ("https://user:secret@example.org:8443/group/name/", ("https://example.org:8443/group/name", "group/name")),
        ("git@github.com:owner/name.git", ("https://github.com/owner/name", "owner/name")),
        ("ssh://git@example.org:2222/owner/name", ("https://example.org/owner/name", "owner/name")),
        ("/srv/name.git", (None, None)),
        ("../name", (None, None)),
        ("", (None, None)),
    ],
)
def test_repository_link(remote, expected):
    pytest.importorskip("mkdocs")
    from docs.site import project

    assert project.repository(remote) == expected


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

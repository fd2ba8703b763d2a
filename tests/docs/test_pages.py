"""Every page: its code runs, its links resolve, and it is not a stub."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site import notebooks
from tests.support import pages
from tests.support.places import PLACES

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
    "needs a C++ compiler",
    "needs an account",
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


@pytest.mark.parametrize("path", pages.IN_DOCS, ids=name)
def test_no_page_is_a_stub(path):
    text = path.read_text()
    assert re.match(r"(---\n.*?\n---\n+)?# \S", text, re.DOTALL), "a page starts with its heading"
    reference = "<!-- public names of pointgrad" in text
    assert reference or len(pages.without_code(text).split()) > 100
    assert not re.search(r"\b(TODO|FIXME|TBD|coming soon)\b", text, re.IGNORECASE)

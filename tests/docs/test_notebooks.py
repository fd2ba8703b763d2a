"""The notebooks of the site: valid, with all code of the page, and a Jupyter kernel prints what the page shows."""

import json
import os

import pytest

from docs.site import notebooks
from tests.support import pages
from tests.support.places import PLACES

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("tyro")

# Commands run in the process of the kernel, which saves an import of torch for each. A failed one raises an error.
COMMANDS = """
import shlex
from pointgrad import cli

def system(command):
    program, *arguments = shlex.split(command, comments=True)
    assert (program, cli.main(arguments)) == ("pointgrad", 0), command

get_ipython().system = system
"""


def cells(name):
    """The notebook of a page, as Jupyter reads it, and its code cells."""
    found = nbformat.reads(json.dumps(notebooks.notebook(pages.DOCS / name)), as_version=4)
    return found, [cell for cell in found.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", notebooks.PAGES)
def test_notebook_has_all_code_of_its_page(name):
    found, code = cells(name)
    nbformat.validate(found)
    blocks = [block for block in pages.blocks(pages.DOCS / name) if not block.reason]
    expected = [block.code.rstrip("\n") for block in blocks if block.language == "python"]
    assert [cell.source for cell in code if not cell.source.startswith("!")] == expected
    commands = [command for block in blocks for command in block.commands]
    assert [line[1:] for cell in code for line in cell.source.splitlines() if line.startswith("!")] == commands
    prose = "".join(cell.source for cell in found.cells if cell.cell_type == "markdown")
    assert "](" not in prose.replace("](attachment:", "").replace("](http", "")


@pytest.mark.long
@pytest.mark.parametrize("name", notebooks.PAGES)
def test_notebook_runs(name, tmp_path, monkeypatch):
    if "import triton" in (pages.DOCS / name).read_text() and not any(place.backend == "triton" for place in PLACES):
        pytest.skip("neither a GPU nor Triton's interpreter is available")
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [pages.PYTHONPATH, os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # the audit forks
    notebook, code = cells(name)
    shown = [[output.text for output in cell.outputs] for cell in code]
    for cell in code:
        cell.source += cell.metadata.get("note", "").replace("tests add: ", " ")
    if any(cell.source.startswith("!") for cell in code):
        notebook.cells.insert(0, nbformat.v4.new_code_cell(COMMANDS))
    work = tmp_path / "work"
    work.mkdir()
    # An error in a cell is raised here.
    nbclient.NotebookClient(
        notebook, timeout=300, coalesce_streams=True, resources={"metadata": {"path": work}}
    ).execute()
    for cell, expected in zip(code, shown, strict=True):
        printed = [output.text for output in cell.outputs if output.get("name") == "stdout"]
        assert not expected or printed == expected, cell.source
        assert "Warning" not in "".join(output.text for output in cell.outputs if output.get("name") == "stderr")

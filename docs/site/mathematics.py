"""Convert formulas to MathML, which browsers display without scripts.

Pages contain `$...$` and `$$...$$`, which code hosts display too.
"""

import html
import re
from importlib.resources import files as resources
from typing import Any

from math_core import LatexToMathML
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
CONVERTER = LatexToMathML()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a font for mathematics, which not every system has."""
    font = resources("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"
    files.append(File.generated(config, "site/mathematics.ttf", content=font.read_bytes()))
    return files


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    block = found[1] == "div"
    formula = CONVERTER.convert_with_local_state(html.unescape(found[2]), displaystyle=block)
    return f'<div class="formula">{formula}</div>' if block else formula

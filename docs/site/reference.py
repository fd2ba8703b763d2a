"""List the public names of each package on its page in docs/api.

A page holds the comment `<!-- public names of pointgrad.data -->`. The site shows the documentation of every name that
the package exports in its place, grouped by the module that defines it.
"""

import ast
import re
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src"
MARKER = re.compile(r"^<!-- public names of (\S+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return MARKER.sub(lambda found: _listing(found[1]), markdown)


def _listing(package: str) -> str:
    """A module with several names gets a heading; the names of all others come first."""
    groups: dict[str, list[str]] = {}
    for name, module in _exports(package).items():
        groups.setdefault(module.rpartition(".")[2], []).append(name)
    headed = {module: names for module, names in groups.items() if len(names) > 1 and len(groups) > 1}
    lines = [f"::: {package}.{name}" for module, names in groups.items() if module not in headed for name in names]
    for module, names in headed.items():
        lines.append(f"## {module.replace('_', ' ').capitalize()}")
        lines += [f"::: {package}.{name}" for name in names]
    return "\n\n".join(lines)


def _exports(package: str) -> dict[str, str]:
    """Public names of a package and the modules they come from: `__all__`, or every `import name as name`."""
    folder = SOURCE.joinpath(*package.split("."))
    body = ast.parse((folder / "__init__.py").read_text()).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return dict.fromkeys(ast.literal_eval(node.value), package)
    imports = [(node.module or "", alias) for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return {
        alias.name: module
        for module, alias in imports
        if alias.asname == alias.name and not (SOURCE / module.replace(".", "/") / alias.name).is_dir()
    }

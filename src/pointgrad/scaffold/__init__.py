"""A new package for a differentiable operator, from the files in `template`.

The template is a working package named `my_operator`. Lines between comments `[cuda]` and `[/cuda]` belong to that
kernel only; the same holds for the other conditions in `_conditions`.
"""

import keyword
import re
import secrets
import shutil
import tokenize
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path

import torch

import pointgrad
from pointgrad import functional

KERNELS = ("python", "cpp", "cuda", "triton")
TEMPLATE = Path(__file__).with_name("template")
PLACEHOLDER = "my_operator"

# The files of the template, each with the condition under which it is part of a package.
_FILES = {
    "README.md": "always",
    "pyproject.toml": "always",
    ".gitignore": "always",
    ".github/workflows/tests.yml": "always",
    "benchmark.py": "always",
    "setup.py": "compiled",
    "csrc/my_operator.h": "compiled",
    "csrc/bindings.cpp": "compiled",
    "csrc/cpu.cpp": "cpp",
    "csrc/cuda.cu": "cuda",
    "src/my_operator/__init__.py": "always",
    "src/my_operator/reference.py": "always",
    "src/my_operator/function.py": "always",
    "src/my_operator/register.py": "always",
    "src/my_operator/kernels.py": "kernels",
    "src/my_operator/triton_kernels.py": "triton",
    "tests/test_operator.py": "always",
    "tests/test_kernels.py": "kernels",
}
# Those that are no keywords of Python. Names that the C++ files use are refused as well.
_CPP_KEYWORDS = (
    "alignas alignof and_eq asm auto bitand bitor bool catch char compl const consteval constexpr constinit decltype "
    "default delete do double enum explicit export extern float friend goto inline int long mutable namespace new "
    "noexcept not_eq nullptr operator or_eq private protected public register requires short signed sizeof static "
    "struct switch template this throw typedef typeid typename union unsigned using virtual void volatile xor xor_eq"
)


def check_name(name: str) -> None:
    """Check that a package, an operator and a C++ namespace can have this name.

    Raises:
        ValueError: The name is invalid or taken.
    """
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?", name):
        raise ValueError(f"NAME must consist of letters, digits and inner underscores, as in my_operator, got {name!r}")
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ValueError(f"NAME must not be a keyword of Python, got {name!r}")
    if name in _CPP_KEYWORDS.split():
        raise ValueError(f"NAME must not be a keyword of C++, got {name!r}")
    if hasattr(pointgrad, name) or hasattr(functional, name):
        raise ValueError(f"NAME must be new, but pointgrad has an operator or a module named {name}")
    if any(operator.startswith(f"{name}::") for operator in torch._C._dispatch_get_all_op_names()):
        raise ValueError(f"NAME must be new, but torch.ops.{name} exists")
    spec = find_spec(name)
    if spec is not None and spec.origin is not None:  # a folder without __init__.py has no origin
        raise ValueError(f"NAME must be new, but a module of that name exists: {spec.origin}")
    if name in _names_in_template():
        raise ValueError(f"NAME must not be a name that the generated code uses itself, got {name!r}")


def check_kernels(kernels: Collection[str]) -> None:
    """Check the names of kernels.

    Raises:
        ValueError: A name is unknown, or occurs twice.
    """
    for kernel in kernels:
        if kernel not in KERNELS:
            raise ValueError(f"kernels must be some of {', '.join(KERNELS)}, got {kernel!r}")
    for kernel in kernels:
        if list(kernels).count(kernel) > 1:
            raise ValueError(f"kernels must not contain a name twice, got {','.join(kernels)!r}")


def files(name: str, kernels: Collection[str]) -> dict[str, str]:
    """The files of the new package.

    Args:
        name: Name of the package and of its operator.
        kernels: Some of `KERNELS`. The plain PyTorch form, "python", is always included.

    Returns:
        The content of each file, by its path.
    """
    conditions = _conditions(kernels)
    found = {}
    for path, condition in _FILES.items():
        if condition in conditions:
            content = _select((TEMPLATE / path).read_text(encoding="utf-8"), conditions)
            found[path.replace(PLACEHOLDER, name)] = content.replace(PLACEHOLDER, name)
    return found


def write(folder: Path, content: dict[str, str]) -> None:
    """Write files to a new or empty folder: all of them, or none.

    Raises:
        ValueError: The folder holds something.
        OSError: The folder cannot be written.
    """
    exists = folder.is_dir()
    if exists and any(folder.iterdir()):
        raise ValueError(f"{folder} must be a new or an empty folder, but it holds {min(folder.iterdir()).name}")
    draft = (folder if exists else folder.parent) / f".{folder.name[:40]}.{secrets.token_hex(8)}.part"
    moved: list[Path] = []
    try:
        draft.mkdir()
        for path, text in content.items():
            file = draft / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        if not exists:
            draft.rename(folder)
            return
        for child in list(draft.iterdir()):
            child.rename(folder / child.name)
            moved.append(folder / child.name)
        draft.rmdir()
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        for entry in moved:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        raise


def _names_in_template() -> set[str]:
    """The names in the code of the template: a package of the same name would collide with some of them."""
    found = set()
    for path in _FILES:
        if path.endswith(".py"):
            with tokenize.open(TEMPLATE / path) as file:
                tokens = tokenize.generate_tokens(file.readline)
                found |= {token.string for token in tokens if token.type == tokenize.NAME}
        elif path.startswith("csrc/"):
            code = re.sub(r"//.*", "", (TEMPLATE / path).read_text(encoding="utf-8"))
            found |= set(re.findall(r"\w+", code))
    return found - {PLACEHOLDER}


def _conditions(kernels: Collection[str]) -> set[str]:
    """The conditions that hold for these kernels."""
    holds = {
        "always": True,
        "cpp": "cpp" in kernels,
        "cuda": "cuda" in kernels,
        "triton": "triton" in kernels,
        "compiled": "cpp" in kernels or "cuda" in kernels,
        "gpu": "cuda" in kernels or "triton" in kernels,
        "kernels": bool({"cpp", "cuda", "triton"} & set(kernels)),
    }
    return {name if value else f"un{name}" for name, value in holds.items()}


def _select(text: str, conditions: Collection[str]) -> str:
    """Remove the lines whose condition does not hold, and the comments that enclose them."""

    def replace(match: re.Match[str]) -> str:
        return match["lines"] if match["name"] in conditions else ""

    marked = r"^.*\[(?P<name>[a-z]+)\].*\n(?P<lines>(?:.*\n)*?)^.*\[/(?P=name)\].*\n"
    return re.sub(marked, replace, text, flags=re.MULTILINE)

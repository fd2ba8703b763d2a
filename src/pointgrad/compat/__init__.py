"""Other libraries' names on pointgrad's operators: change one import, or none.

Each public package here mirrors the module tree of the library it is named after. Use it by changing the import,
`from pointgrad.compat.pytorch3d.ops import knn_points`; or call `install` once, before the first import of the
library, and change nothing else; or run a program as it is: `python -m pointgrad.compat run script.py`.
"""

import importlib
import pkgutil
import sys
from types import ModuleType

from ._finder import Finder

__all__ = ["install", "modules", "peers"]


def peers() -> list[str]:
    """The libraries that can be installed: every public package of this folder.

    >>> "pytorch3d" in peers()
    True
    """
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))


def modules(name: str) -> list[ModuleType]:
    """A library's package here and all modules below it.

    >>> modules("pytorch3d")[0].__name__
    'pointgrad.compat.pytorch3d'
    """
    root = importlib.import_module(f"{__name__}.{name}")
    below = pkgutil.walk_packages(getattr(root, "__path__", ()), f"{root.__name__}.")
    return [root, *(importlib.import_module(found.name) for found in below)]


def install(*names: str) -> None:
    """Makes `import <name>` find `pointgrad.compat.<name>`, with all its submodules, in this process.

    names: of the libraries, such as "pytorch3d"; all of `peers()` without any.

    Ours wins over one that is installed but not yet imported. One that is already imported is refused with an
    ImportError, and then nothing is installed: what holds its functions would keep them. Doing it twice does nothing.

    >>> install("pytorch3d")
    >>> import pytorch3d.ops
    >>> pytorch3d.ops.knn_points.__module__
    'pointgrad.compat.pytorch3d.ops.knn'
    """
    known = peers()
    for name in names:
        if name not in known:
            raise ValueError(f"names must be of {', '.join(known)}, got {name!r}")
    wanted = names or known
    for name in wanted:
        _refuse_if_imported(name)
    found = {module.__name__.removeprefix(f"{__name__}."): module for name in wanted for module in modules(name)}
    sys.modules.update(found)  # at once: another thread sees a library whole or not at all
    Finder.serve(wanted)


def _refuse_if_imported(name: str) -> None:
    for loaded, module in list(sys.modules.items()):
        belongs = loaded == name or loaded.startswith(f"{name}.")
        if belongs and module is not None and module is not sys.modules.get(f"{__name__}.{loaded}"):
            where = getattr(module, "__file__", None) or "an unknown place"
            raise ImportError(
                f"{loaded} is already imported from {where}: call pointgrad.compat.install({name!r}) before the first "
                f"import of {name}, or run the program by `python -m pointgrad.compat run`",
                name=name,
            )

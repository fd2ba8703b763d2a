"""The interfaces of other point-cloud libraries, implemented with pointgrad's operators.

Each public package here mirrors the module tree of the library of the same name. Either change the import,
`from pointgrad.compat.pytorch3d.ops import knn_points`; or call `install` once, before the first import of the
library; or run an unchanged program with `python -m pointgrad.compat run script.py`.
"""

import importlib
import pkgutil
import sys
from types import ModuleType

from ._finder import Finder, is_library

__all__ = ["install", "modules", "peers"]


def peers() -> list[str]:
    """List the libraries that can be installed.

    Returns:
        The names of the public packages in this folder, sorted.

    Example:
        >>> "pytorch3d" in peers()
        True
    """
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))


def modules(name: str) -> list[ModuleType]:
    """Import the package of a library and all of its submodules.

    Args:
        name: Name of the library.

    Returns:
        The package, followed by its submodules.

    Example:
        >>> modules("pytorch3d")[0].__name__
        'pointgrad.compat.pytorch3d'
    """
    root = importlib.import_module(f"{__name__}.{name}")
    below = pkgutil.walk_packages(getattr(root, "__path__", ()), f"{root.__name__}.")
    return [root, *(importlib.import_module(found.name) for found in below)]


def install(*names: str) -> None:
    """Make `import <name>` import `pointgrad.compat.<name>` and its submodules in this process.

    A library takes precedence over one that is installed but not yet imported; its modules and attributes that this
    package does not have are imported from the installed one. Names of modules that repositories compile from their own
    copy of the source, such as `pointnet2._ext`, are only used where the program has no Python file of that name.
    Calling `install` twice has no further effect.

    Args:
        names: Names of the libraries, such as "pytorch3d"; all of `peers()` if none is given.

    Raises:
        ValueError: If a name is not in `peers()`.
        ImportError: If a library is already imported, since modules that use its functions would keep them. Nothing
            is installed in this case.

    Example:
        >>> install("pytorch3d")
        >>> import pytorch3d.ops
        >>> pytorch3d.ops.knn_points.__module__
        'pointgrad.compat.pytorch3d.ops.knn'
    """
    known = peers()
    for name in names:
        if name not in known:
            raise ValueError(f"names must be among {', '.join(known)}, got {name!r}")
    found = {name: modules(name) for name in names or known}
    libraries = [name for name, (package, *_) in found.items() if is_library(package)]
    for name in libraries:
        _check_not_imported(name)
    provided = {_original_name(module): module for part in found.values() for module in part}
    # In one step, so that other threads never see part of a library.
    sys.modules.update({_original_name(module): module for name in libraries for module in found[name]})
    Finder.serve(provided)


def _original_name(module: ModuleType) -> str:
    return module.__name__.removeprefix(f"{__name__}.")


def _check_not_imported(name: str) -> None:
    for loaded, module in list(sys.modules.items()):
        belongs = loaded == name or loaded.startswith(f"{name}.")
        if belongs and module is not None and module is not sys.modules.get(f"{__name__}.{loaded}"):
            path = getattr(module, "__file__", None) or "an unknown location"
            raise ImportError(
                f"{loaded} is already imported from {path}: call pointgrad.compat.install({name!r}) before the first "
                f"import of {name}, or run the program with `python -m pointgrad.compat run`",
                name=name,
            )

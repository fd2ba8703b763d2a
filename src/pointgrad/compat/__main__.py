"""`python -m pointgrad.compat run script.py ...` and `python -m pointgrad.compat list`."""

import contextlib
import importlib
import importlib.util
import os
import pkgutil
import runpy
import sys
import textwrap
from types import TracebackType

import pointgrad.compat

USAGE = """\
usage: python -m pointgrad.compat run [--only NAME,NAME] script.py [argument ...]
       python -m pointgrad.compat run [--only NAME,NAME] -m module [argument ...]
       python -m pointgrad.compat list

run   runs a program, unchanged, with other libraries' imports served by pointgrad (--only: these libraries)
list  prints the libraries and what is provided of each
"""
WRONG = 2  # exit status of a wrong command line, as everywhere


class Wrong(Exception):
    """Why the command line cannot be followed, in one line."""


def main(arguments: list[str]) -> int:
    command, *rest = arguments or ["--help"]
    if command in ("-h", "--help") or (command == "run" and rest[:1] in (["-h"], ["--help"])):
        print(USAGE, end="")
        return 0
    try:
        if command == "list":
            if rest:
                raise Wrong(f"list takes no arguments, got {' '.join(rest)!r}")
            with contextlib.suppress(BrokenPipeError):  # `list | head`
                _list()
                sys.stdout.flush()
        elif command == "run":
            _run(*_parse(rest))
        else:
            raise Wrong(f"the command must be run or list, got {command!r}")
    except Wrong as error:
        print(f"pointgrad.compat: {error}", file=sys.stderr)
        return WRONG
    return 0


def _parse(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    """The libraries, whether the program is a module, and the program with its own arguments."""
    names: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option, equals, value = rest.pop(0).partition("=")
        if option != "--only":
            raise Wrong(f"run has no option {option}; a script's own options come after it")
        if not equals:
            if not rest:
                raise Wrong("--only must be followed by names separated by commas")
            value = rest.pop(0)
        names = [name.strip() for name in value.split(",") if name.strip()]
        known = pointgrad.compat.peers()
        for name in names or [""]:
            if name not in known:
                raise Wrong(f"--only must be of {', '.join(known)}, got {name!r}")
    is_module = rest[:1] == ["-m"]
    if is_module:
        rest.pop(0)
    if not rest:
        raise Wrong(f"run needs {'a module after -m' if is_module else 'a script, or -m and a module'}")
    return names, is_module, rest


def _run(names: list[str], is_module: bool, arguments: list[str]) -> None:
    """As Python itself would, but for what `import` finds."""
    program = arguments[0]
    if is_module:
        if not _exists(program):
            raise Wrong(f"there is no module named {program}")
    elif not os.path.exists(program):
        raise Wrong(f"there is no file {program}")
    pointgrad.compat.install(*names)
    os.environ["POINTGRAD_COMPAT"] = ",".join(names or pointgrad.compat.peers())
    startup = os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "_startup"
    )  # for the processes that the program starts
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [startup, os.environ.get("PYTHONPATH")]))
    sys.argv = list(arguments)
    try:
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
            return
        if not getattr(sys.flags, "safe_path", False):  # Python 3.11: -P
            del sys.path[0]  # where `python -m` was called
            if pkgutil.get_importer(program) is None:  # neither a folder nor an archive, which runpy puts there itself
                sys.path.insert(0, os.path.dirname(os.path.realpath(program)))
        runpy.run_path(program, run_name="__main__")
    except BaseException as error:
        _show_from_the_program_on(error)
        raise


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a parent is there, and what it imports is not
        return False


def _show_from_the_program_on(error: BaseException) -> None:
    """Leaves out the frames of this file and of runpy, whatever prints the traceback in the end."""
    hook, own = sys.excepthook, (__file__, runpy.__file__, "<frozen runpy>")
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename in own:
        below = below.tb_next

    def show(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        shown = below if value is error else traceback
        hook(kind, value.with_traceback(shown), shown)

    sys.excepthook = show


def _list() -> None:
    for name in pointgrad.compat.peers():
        modules = sorted(pointgrad.compat.modules(name), key=lambda module: module.__name__.count("."))
        version = getattr(modules[0], "__version__", None)
        print(f"{name} {version}" if version else name)
        seen: list[object] = []  # a name is printed where it is nearest to the root
        for module in modules:
            public = {key: getattr(module, key) for key in getattr(module, "__all__", ()) if not key.startswith("_")}
            new = sorted(key for key, value in public.items() if value not in seen)
            seen += public.values()
            if new:
                title = f"  {module.__name__.removeprefix('pointgrad.compat.')}: "
                print(textwrap.fill(", ".join(new), 100, initial_indent=title, subsequent_indent="    "))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

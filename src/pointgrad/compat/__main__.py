"""Commands `python -m pointgrad.compat run script.py ...` and `python -m pointgrad.compat list`."""

import contextlib
import importlib
import importlib.util
import os
import pkgutil
import runpy
import sys
import textwrap
from types import ModuleType, TracebackType

import pointgrad.compat
from pointgrad.compat import _cpu

USAGE = """\
usage: python -m pointgrad.compat run [--only NAME,NAME] [--cpu] script.py [argument ...]
       python -m pointgrad.compat run [--only NAME,NAME] [--cpu] -m module [argument ...]
       python -m pointgrad.compat list

run   run an unchanged program with imports of other libraries provided by pointgrad
      --only: just these libraries
      --cpu:  run on the CPU even where the program requests CUDA, and report on stderr what was redirected
list  print the libraries and the functions provided of each
"""
USAGE_STATUS = 2


class UsageError(Exception):
    """A command line that is not valid. The message has one line."""


def main(arguments: list[str]) -> int:
    """Run a command and return the exit status."""
    command, *rest = arguments or ["--help"]
    if command in ("-h", "--help") or (command == "run" and rest[:1] in (["-h"], ["--help"])):
        print(USAGE, end="")
        return 0
    try:
        if command == "list":
            if rest:
                raise UsageError(f"list takes no arguments, got {' '.join(rest)!r}")
            with contextlib.suppress(BrokenPipeError):  # `list | head`
                _list()
                sys.stdout.flush()
        elif command == "run":
            _run(*_parse(rest))
        else:
            raise UsageError(f"the command must be run or list, got {command!r}")
    except UsageError as error:
        print(f"pointgrad.compat: {error}", file=sys.stderr)
        return USAGE_STATUS
    return 0


def _parse(arguments: list[str]) -> tuple[list[str], bool, bool, list[str]]:
    """Libraries, whether CUDA is redirected, whether the program is a module, and the program with its arguments."""
    names: list[str] = []
    on_cpu = False
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option, equals, value = rest.pop(0).partition("=")
        if option == "--cpu" and not equals:
            on_cpu = True
            continue
        if option != "--only":
            raise UsageError(f"run has no option {option}; options of the script must follow its name")
        if not equals:
            if not rest:
                raise UsageError("--only must be followed by a comma-separated list of names")
            value = rest.pop(0)
        names = [name.strip() for name in value.split(",") if name.strip()]
        known = pointgrad.compat.peers()
        for name in names or [""]:
            if name not in known:
                raise UsageError(f"--only must be a list of {', '.join(known)}, got {name!r}")
    is_module = rest[:1] == ["-m"]
    if is_module:
        rest.pop(0)
    if not rest:
        raise UsageError(f"run needs {'a module after -m' if is_module else 'a script, or -m and a module'}")
    return names, on_cpu, is_module, rest


def _run(names: list[str], on_cpu: bool, is_module: bool, arguments: list[str]) -> None:
    """Run a program like Python itself, except for what `import` finds."""
    program = arguments[0]
    if is_module:
        if not _exists(program):
            raise UsageError(f"no module named {program}")
    elif not os.path.exists(program):
        raise UsageError(f"no such file: {program}")
    if on_cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["POINTGRAD_COMPAT_CPU"] = "1"
        _cpu.redirect()
    pointgrad.compat.install(*names)
    os.environ["POINTGRAD_COMPAT"] = ",".join(names or pointgrad.compat.peers())
    # For the processes that the program starts.
    startup = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_startup")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [startup, os.environ.get("PYTHONPATH")]))
    sys.argv = list(arguments)
    try:
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
            return
        if not getattr(sys.flags, "safe_path", False):  # Python 3.11: -P
            del sys.path[0]  # the current folder, which `python -m` has added
            if pkgutil.get_importer(program) is None:  # runpy itself adds folders and archives
                sys.path.insert(0, os.path.dirname(os.path.realpath(program)))
        runpy.run_path(program, run_name="__main__")
    except BaseException as error:
        _hide_own_frames(error)
        raise


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the parent package exists but fails to import something else
        return False


def _hide_own_frames(error: BaseException) -> None:
    """Remove the frames of this file and of runpy from the printed traceback."""
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
        modules = sorted(pointgrad.compat.modules(name), key=_depth)
        version = getattr(modules[0], "__version__", None)
        print(f"{name} {version}" if version else name)
        seen: list[object] = []  # a function is printed only for the module nearest to the root
        for module in modules:
            public = {key: getattr(module, key) for key in getattr(module, "__all__", ()) if not key.startswith("_")}
            new = sorted(key for key, value in public.items() if value not in seen)
            seen += public.values()
            if new:
                title = f"  {module.__name__.removeprefix('pointgrad.compat.')}: "
                print(textwrap.fill(", ".join(new), 100, initial_indent=title, subsequent_indent="    "))


def _depth(module: ModuleType) -> tuple[int, bool]:
    """Distance from the root of a library; private modules follow the others."""
    return module.__name__.count("."), module.__name__.rpartition(".")[2].startswith("_")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

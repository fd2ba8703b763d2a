"""The `pointgrad` command: one module per subcommand, each a dataclass whose fields are arguments and flags."""

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from .status import ExitStatus


def main(arguments: list[str] | None = None) -> int:
    """Run `pointgrad` with these arguments, by default those of the process, and return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"pointgrad {version('pointgrad')}")
        return ExitStatus.OK
    try:
        import tyro
    except ModuleNotFoundError as error:
        print(f"pointgrad: the command line needs {error.name}: pip install 'pointgrad[cli]'", file=sys.stderr)
        return ExitStatus.USAGE
    from .bench import Bench
    from .check import Check
    from .convert import Convert
    from .evaluate import Evaluate
    from .graph import Graph
    from .helptext import join_lines
    from .info import Info
    from .models import Models
    from .new_operator import NewOperator
    from .predict import Predict
    from .render import Render
    from .train import command as train
    from .view import View

    commands: dict[str, Callable[..., Any]] = {
        "train": train(arguments),
        "evaluate": Evaluate,
        "predict": Predict,
        "view": View,
        "render": Render,
        "info": Info,
        "convert": Convert,
        "models": Models,
        "check": Check,
        "graph": Graph,
        "bench": Bench,
        "new-operator": NewOperator,
    }
    for command in commands.values():
        if isinstance(command, type):
            join_lines(command)
    about = "Train, use and view networks on point clouds. `pointgrad --version` prints the version."
    chosen = tyro.extras.subcommand_cli_from_dict(commands, prog="pointgrad", description=about, args=arguments)
    return chosen.run()

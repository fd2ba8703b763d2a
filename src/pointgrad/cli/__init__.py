"""The command `pointgrad`: one file per subcommand, each a dataclass whose fields are its arguments and flags."""

import sys
from collections.abc import Callable
from typing import Any

MISSING = 2  # exit status of a wrong command line, as everywhere


def main(arguments: list[str] | None = None) -> int:
    """Runs `pointgrad ...` and returns the exit status."""
    try:
        import tyro
    except ModuleNotFoundError as error:
        print(f"pointgrad: the command line needs {error.name}: pip install 'pointgrad[cli]'", file=sys.stderr)
        return MISSING
    from .bench import Bench
    from .check import Check
    from .convert import Convert
    from .evaluate import Evaluate
    from .graph import Graph
    from .info import Info
    from .models import Models
    from .predict import Predict
    from .render import Render
    from .train import command as train
    from .view import View

    arguments = sys.argv[1:] if arguments is None else arguments
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
    }
    command = tyro.extras.subcommand_cli_from_dict(commands, prog="pointgrad", args=arguments)
    return command.run()

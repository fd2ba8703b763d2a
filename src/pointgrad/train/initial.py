"""Starting from trained weights, and training of the last layers only (linear probing)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from pointgrad import models
from pointgrad.data import FileError
from pointgrad.data.files.memory import check_regular
from pointgrad.errors import one_line
from pointgrad.models.hub import WEIGHTS, compare
from pointgrad.models.published import PUBLISHED

from . import archive
from .checkpoint import CheckpointError, find, read

HEAD = "head"  # the last layers of every network of pointgrad.models
LAST_LAYERS = (f"{HEAD}.", "final.", "seg_head.")  # here and in published weights


def load_weights(model: nn.Module, path: str | Path) -> models.Unloaded:
    """Load trained weights into a network that may have other classes.

    Args:
        model: The network. Its last layers, `model.head`, keep their weights if the file does not have them, or has
            them with other shapes; all other weights must fit.
        path: A run folder, a checkpoint of pointgrad, a folder of `save_pretrained`, or published weights that
            `models.load_published` accepts, as .safetensors or an archive of `torch.save`. No code in it is executed.

    Returns:
        Names of weights of the last layers that were not loaded, and of weights that the network does not have.

    Raises:
        CheckpointError: The file cannot be read, or belongs to a different network. The message names the weights.
            Those that fit may have been loaded.
    """
    path = Path(path)
    if path.is_dir():
        path = path / WEIGHTS if (path / WEIGHTS).exists() else find(path)
    state = _state(path)
    own = model.state_dict()
    name = getattr(model, "config", {}).get("name", type(model).__name__)
    if isinstance(model, models.Network) and name in PUBLISHED and not own.keys() & state.keys():
        unloaded = models.load_published(model, state, strict=False)
    else:
        unloaded = compare(model, {name: tuple(getattr(each, "shape", ())) for name, each in state.items()})
        wrong = {text.split(" ", 1)[0] for text in unloaded.mismatched}
        fitting = {name: state[name] for name in own if name in state and name not in wrong}
        try:
            model.load_state_dict({**own, **fitting})
        except (TypeError, RuntimeError) as error:
            raise CheckpointError(f"{path}: weights must be tensors: {one_line(error, limit=200)}") from None
    problems = models.Unloaded(*([name for name in names if not name.startswith(LAST_LAYERS)] for names in unloaded))
    if problems.missing or problems.mismatched:
        raise CheckpointError(f"{path}: weights must be those of {name}, got {problems.text()}")
    return unloaded


def freeze(model: nn.Module) -> nn.Module:
    """Fix all weights but those of the last layers.

    Args:
        model: A network with last layers `model.head`.

    Returns:
        The last layers.

    Raises:
        ValueError: The network has no such layers.
    """
    head = getattr(model, HEAD, None)
    if not isinstance(head, nn.Module) or not any(True for _ in head.parameters()):
        raise ValueError(f"freeze requires a network with trainable layers named {HEAD}, got {type(model).__name__}")
    model.requires_grad_(False)
    head.requires_grad_(True)
    return head


def _state(path: Path) -> Mapping[str, Any]:
    """The weights in a file by name."""
    try:
        check_regular(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with open(path, "rb") as file:
            content = archive.load(file)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except ModuleNotFoundError:
        raise CheckpointError(f"{path}: reading it needs safetensors: pip install 'pointgrad[train]'") from None
    except FileError as error:
        raise CheckpointError(f"{path}: holds no weights, or is damaged: {error}") from None
    except Exception as error:  # zipfile, pickle and safetensors raise errors of their own
        raise CheckpointError(f"{path}: holds no weights, or is damaged") from error
    if isinstance(content, dict) and "format" in content and "state" in content:
        return dict(read(path)["state"])  # with the checks of a checkpoint
    found = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found):
        raise CheckpointError(f"{path}: expected weights by name, found {type(content).__name__}")
    return found

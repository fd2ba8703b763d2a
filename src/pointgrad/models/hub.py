"""Networks as folders, locally or in a repository of Hugging Face's hub: weights as safetensors, options as JSON.

Nothing in a folder is executed. The names and shapes of the weights are compared with the network before they are read.
"""

import importlib
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from pointgrad.errors import PrintableError, one_line, printable
from pointgrad.models.catalog import build, names
from pointgrad.models.network import Network
from pointgrad.models.published import Unloaded
from pointgrad.writing import make_folder, replace_bytes

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MOST_BYTES = 2**16  # size of the file of options
REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")


class PretrainedError(PrintableError, ValueError):
    """A folder or repository is not a saved network. The message starts with its name."""


def save_pretrained(network: Network, folder: str | Path) -> None:
    """Write the network to a folder; see `Network.save_pretrained`."""
    safetensors = _import("safetensors.torch")
    folder, state = Path(folder), network.state_dict()
    known = network.config.get("name") in names()
    if not known:
        raise ValueError(f"network must be one of pointgrad.models, got {type(network).__name__}")
    with torch.device("meta"):
        differences = compare(build(**network.config), {name: tuple(each.shape) for name, each in state.items()})
    if any(differences):
        raise ValueError(f"network must have the weights of {network.config['name']}, got {differences.text()}")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    make_folder(folder)
    replace_bytes(folder / WEIGHTS, safetensors.save(tensors, {"format": "pt"}))
    replace_bytes(folder / CONFIG, (json.dumps(network.config, indent=2) + "\n").encode())


def from_pretrained(source: str | Path, *, revision: str | None = None, token: str | None = None) -> Network:
    """Load a network; see `Network.from_pretrained`."""
    safetensors, folder = _import("safetensors"), Path(source)
    if not folder.is_dir():
        if not REPOSITORY.fullmatch(str(source)) or folder.exists():
            raise PretrainedError(
                f"{source}: expected a folder with {CONFIG} and {WEIGHTS}, or a repository owner/name"
            )
        folder = _download(str(source), revision, token)
    config = _options(folder / CONFIG)
    try:
        with torch.device("meta"):  # without memory, until the shapes are known to be those of the file
            expected = build(**config)
    except Exception as error:  # the file may hold any value
        raise PretrainedError(f"{folder / CONFIG}: cannot build the network: {one_line(error, limit=300)}") from error
    path = folder / WEIGHTS
    try:
        with safetensors.safe_open(_regular(path), framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            differences = compare(expected, shapes)
            if any(differences):
                raise PretrainedError(f"{path}: weights must be those of {config['name']}, got {differences.text()}")
            state: dict[str, Tensor] = {name: file.get_tensor(name) for name in shapes}
    except (OSError, safetensors.SafetensorError) as error:
        reason = one_line(error, limit=200)
        raise PretrainedError(f"{path}: is not a file of safetensors, or is damaged: {reason}") from error
    network = build(**config)
    network.load_state_dict(state)
    return network.eval()


def push_to_hub(
    network: Network, repository: str, *, private: bool | None, token: str | None, revision: str | None, message: str
) -> str:
    """Upload the network; see `Network.push_to_hub`."""
    api = _import("huggingface_hub").HfApi(token=token)
    with TemporaryDirectory() as folder:
        save_pretrained(network, folder)
        name = api.create_repo(repository, private=private, exist_ok=True).repo_id
        made = api.upload_folder(repo_id=name, folder_path=folder, revision=revision, commit_message=message)
    return str(made.commit_url)


def compare(network: nn.Module, shapes: dict[str, tuple[int, ...]]) -> Unloaded:
    """Compare the names and shapes of weights with those of a network."""
    own = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    return Unloaded(
        [name for name in own if name not in shapes],
        [name for name in shapes if name not in own],
        [f"{name} {shapes[name]} for {own[name]}" for name in own if shapes.get(name, own[name]) != own[name]],
    )


def _options(path: Path) -> dict[str, Any]:
    try:
        with open(_regular(path), "rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise PretrainedError(f"{path}: cannot be read: {error.strerror}") from error
    if len(text) > MOST_BYTES:
        raise PretrainedError(f"{path}: expected at most {MOST_BYTES} bytes, found more")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PretrainedError(f"{path}: expected JSON: {one_line(error, limit=100)}") from None
    if not isinstance(config, dict) or config.get("name") not in list(names()):
        raise PretrainedError(f"{path}: expected the name and options of a network of pointgrad, found others")
    if not all(value is None or isinstance(value, (bool, int, float, str)) for value in config.values()):
        raise PretrainedError(f"{path}: options must be numbers, texts or true and false, found others")
    return config


def _regular(path: Path) -> Path:
    """Raise an error unless the path is a file: opening a pipe would wait for its writer."""
    if not path.is_file():
        raise PretrainedError(f"{path}: no such file")
    return path


def _download(repository: str, revision: str | None, token: str | None) -> Path:
    """The local copy of a repository."""
    try:
        hub = _import("huggingface_hub")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{printable(repository)}: no such folder, and {error}", name=error.name) from None
    try:
        files = [CONFIG, WEIGHTS]
        return Path(hub.snapshot_download(repository, revision=revision, token=token, allow_patterns=files))
    except Exception as error:  # network failures, missing access and invalid names
        raise PretrainedError(f"{repository}: cannot be downloaded: {one_line(error, limit=300)}") from error


def _import(name: str) -> Any:
    """Import an optional package."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        use = "repositories" if package == "huggingface_hub" else "saved networks"
        raise ModuleNotFoundError(f"{use} need {package}: pip install {package}", name=error.name) from None

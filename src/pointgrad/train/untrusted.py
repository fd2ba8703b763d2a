"""Checkpoints and configurations may come from anybody: they are data, and nothing in them is run.

`torch.load(weights_only=True)` and YAML's safe loader see to that. What they still allow is checked here before: names
that a checkpoint of pointgrad never needs, sizes that are not in the file, YAML that grows when it is looked at.
"""

import io
import pickletools
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.memory import check_regular

# All that the pickle in a checkpoint of pointgrad names. torch allows more, bytearray(10**12) among it.
NAMES = re.compile(r"collections OrderedDict|torch Size|torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter)")
YAML_LIMIT = 1 << 20  # bytes
DEPTH = 20  # of lists and mappings in each other


def check_archive(file: IO[bytes]) -> None:
    """A `FileError` if an archive of torch says that it holds more than the file, or names what it may not."""
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise FileError("expected an archive of torch, found a compressed one")
        if (held := sum(entry.file_size for entry in entries)) > size:
            raise FileError(f"expected at most {size} bytes in it, found {held}")
        (structure,) = [archive.read(entry) for entry in entries if entry.filename.endswith("/data.pkl")]
    for operation, name, _ in pickletools.genops(structure):
        if operation.name in ("GLOBAL", "INST", "STACK_GLOBAL") and not NAMES.fullmatch(str(name)):
            raise FileError(f"expected weights, found a call of {str(name)[:100].replace(' ', '.')}, which is not made")
    file.seek(0)


@contextmanager
def no_more_weights(state: dict[str, Any]) -> Iterator[None]:
    """A network that is built inside may not have more weights than these, whatever its options say: the first that is
    too many is a ValueError, before anything is written into its memory."""
    thread = threading.get_ident()  # another one may build what it likes
    left = sum(value.numel() for value in state.values() if isinstance(value, Tensor))

    def count(_module: nn.Module, name: str, weights: Any) -> None:
        nonlocal left
        if isinstance(weights, Tensor) and threading.get_ident() == thread:
            left -= weights.numel()
        if left < 0:
            raise ValueError(f"its options ask for more weights than it holds, from {name} {tuple(weights.shape)} on")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def read_yaml(path: Path) -> Any:
    """The content of a small file of YAML. Raises `FileError`."""
    with naming(path, "a configuration"):
        check_regular(path)
        with open(path, "rb") as file:
            raw = file.read(YAML_LIMIT + 1)
        if len(raw) > YAML_LIMIT:
            raise FileError(f"expected a configuration of at most {YAML_LIMIT} bytes, found more")
        return parse_yaml(raw.decode())


def parse_yaml(text: str) -> Any:
    """Plain values, lists and mappings. What refers to another place is refused: a few lines of it can stand for any
    number of values. Raises `FileError`."""
    import yaml  # type: ignore[import-untyped]

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise FileError("expected YAML without aliases, found one")
            self.depth += 1
            if self.depth > DEPTH:
                raise FileError(f"expected YAML at most {DEPTH} levels deep, found more")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        return yaml.load(text, Loader)
    except FileError:
        raise
    except Exception as error:  # also of dates and numbers that are none
        reason = " ".join(str(error).split())[:300]
        raise FileError(f"is not YAML: {reason or type(error).__name__}") from None

"""Checks of checkpoints and configurations from untrusted sources: they are data, and nothing in them is executed.

`torch.load(weights_only=True)` and YAML's safe loader ensure that. What they still allow is checked here first: names
that a checkpoint of pointgrad never needs, sizes larger than the file, YAML that expands.
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
from pointgrad.errors import one_line

# The only names in the pickle of a pointgrad checkpoint. torch allows more, among them bytearray(10**12).
NAMES = re.compile(r"collections OrderedDict|torch Size|torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter)")
YAML_LIMIT = 1 << 20  # bytes
DEPTH = 20  # nesting of lists and mappings


def check_archive(file: IO[bytes]) -> None:
    """Raise a `FileError` if an archive of torch claims to hold more than the file, or names a forbidden function."""
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
def limit_weights(state: dict[str, Any]) -> Iterator[None]:
    """Raise a ValueError as soon as a network built inside has more weights than `state`, before they are filled."""
    thread = threading.get_ident()  # other threads may build networks of any size
    left = sum(value.numel() for value in state.values() if isinstance(value, Tensor))

    def count(_module: nn.Module, name: str, weights: Any) -> None:
        nonlocal left
        if isinstance(weights, Tensor) and threading.get_ident() == thread:
            left -= weights.numel()
        if left < 0:
            raise ValueError(f"its options require more weights than it holds, from {name} {tuple(weights.shape)} on")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def read_yaml(path: Path) -> Any:
    """Read a small YAML file. Raises `FileError`."""
    with naming(path, "a configuration"):
        check_regular(path)
        with open(path, "rb") as file:
            raw = file.read(YAML_LIMIT + 1)
        if len(raw) > YAML_LIMIT:
            raise FileError(f"expected a configuration of at most {YAML_LIMIT} bytes, found more")
        return parse_yaml(raw.decode())


def parse_yaml(text: str) -> Any:
    """Parse YAML of plain values, lists and mappings; aliases, which can expand without limit, are errors.

    Raises:
        FileError: The text is not valid YAML, contains an alias, or is nested too deeply.
    """
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
    except Exception as error:  # invalid dates and numbers raise other errors than YAML's
        raise FileError(f"is not YAML: {one_line(error, limit=300)}") from None

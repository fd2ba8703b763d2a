"""Reading YAML from untrusted sources."""

from collections import Counter
from pathlib import Path
from typing import Any

from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.memory import check_regular
from pointgrad.errors import one_line

YAML_LIMIT = 1 << 16  # bytes
DIGITS = 100  # characters of a number
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
DEPTH = 20  # nesting of lists and mappings


def read_yaml(path: Path) -> Any:
    """Read a small YAML file. Raises `FileError`."""
    with naming(path, "a YAML file"):
        check_regular(path)
        with open(path, "rb") as file:
            raw = file.read(YAML_LIMIT + 1)
        if len(raw) > YAML_LIMIT:
            raise FileError(f"expected a YAML file of at most {YAML_LIMIT} bytes, found more")
        return parse_yaml(raw.decode())


def parse_yaml(text: str) -> Any:
    """Parse YAML of plain values, lists and mappings; aliases, which can expand without limit, are errors.

    Raises:
        FileError: The text is not valid YAML, contains an alias, a key twice or a number of too many digits, or is
            nested too deeply.
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
            if node.tag in NUMBERS and len(node.value) > DIGITS:
                raise FileError(f"expected numbers of at most {DIGITS} characters, found {len(node.value)}")
            if isinstance(node, yaml.MappingNode):
                counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
                if counts and (common := counts.most_common(1)[0])[1] > 1:
                    raise FileError(f"expected unique keys, found {common[0]} {common[1]} times")
            return node

    try:
        return yaml.load(text, Loader)
    except FileError:
        raise
    except Exception as error:  # invalid dates and numbers raise other errors than YAML's
        raise FileError(f"is not YAML: {one_line(error, limit=300)}") from None

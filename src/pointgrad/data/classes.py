"""Classes of a network and the codes that files use for them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pointgrad.data.files.errors import FileError
from pointgrad.data.untrusted import read_yaml
from pointgrad.errors import printable

Other = Literal["ignore", "refuse"]
MAX_CODE = 65534  # 65535 means "no label" in the 16 bits of a .label file
YAML = (".yaml", ".yml")

# LAS Specification 1.4 of the American Society for Photogrammetry and Remote Sensing, table 17.
ASPRS = (
    "never classified", "unclassified", "ground", "low vegetation", "medium vegetation", "high vegetation", "building",
    "low point (noise)", "model key-point", "water", "rail", "road surface", "overlap", "wire guard", "wire conductor",
    "transmission tower", "wire connector", "bridge deck", "high noise", "overhead structure", "ignored ground",
    "snow", "temporal exclusion",
)  # fmt: skip
UNCLASSIFIED = (0, 1)  # LAS codes of points without a class


@dataclass(frozen=True)
class ClassMap:
    """Classes with the codes that stand for them in files. Checkpoints store it.

    Several codes may be merged into one class; predictions write its first code. Negative labels always mean
    "no label".

    Attributes:
        names: Names of the classes, in the order of the network's outputs.
        codes: Codes of each class, from 0 to 65534.
        other: Handling of points with any other code: "ignore" gives them no label, "refuse" raises an error.

    Raises:
        ValueError: If a name or a code occurs twice, a name is empty, or a class has no valid code.

    Example:
        >>> classes = ClassMap(("ground", "vegetation"), ((2,), (3, 4, 5)))
        >>> classes.apply(torch.tensor([2, 5, 7, -1])), classes.restore(torch.tensor([0, 1, -1]))
        (tensor([ 0,  1, -1, -1]), tensor([ 2,  3, -1]))
    """

    names: tuple[str, ...]
    codes: tuple[tuple[int, ...], ...]
    other: Other = "ignore"

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))  # checkpoints contain lists
        object.__setattr__(self, "codes", tuple(map(tuple, self.codes)))
        if not self.names or len(self.names) != len(self.codes):
            raise ValueError(f"classes must have one list of codes each, got {len(self.names)} and {len(self.codes)}")
        if self.other not in get_args(Other):
            raise ValueError(f"other classes must be ignore or refuse, got {self.other!r}")
        owner: dict[int, str] = {}
        for number, (name, codes) in enumerate(zip(self.names, self.codes, strict=True)):
            if not isinstance(name, str) or not name.strip() or name != printable(name):
                raise ValueError(f"class names must be printable and not empty, got {name!r}")
            if name in self.names[:number]:
                raise ValueError(f"class names must be unique, got {name!r} twice")
            if not codes:
                raise ValueError(f"class {name!r} must have at least one code, got none")
            for code in codes:
                if type(code) is not int or not 0 <= code <= MAX_CODE:
                    raise ValueError(f"codes of class {name!r} must be integers from 0 to {MAX_CODE}, got {code!r}")
                if code in owner:
                    raise ValueError(f"codes must be unique, got {code} for {owner[code]!r} and {name!r}")
                owner[code] = name

    @staticmethod
    def parse(texts: Sequence[str], other: Other = "ignore") -> "ClassMap":
        """Parse `name=code,code` texts, or the path of one YAML file with lines `name: code` or `name: [code, code]`.

        Args:
            texts: The texts.
            other: See `ClassMap`.

        Raises:
            ValueError: If a text or the file is malformed (`FileError` if the file cannot be read).

        Example:
            >>> ClassMap.parse(["ground=2", "vegetation=3,4,5"]).codes
            ((2,), (3, 4, 5))
        """
        if len(texts) == 1 and texts[0].lower().endswith(YAML):
            return ClassMap.read(Path(texts[0]), other)
        names, codes = [], []
        for text in texts:
            name, equals, numbers = text.rpartition("=")
            if not equals:
                raise ValueError(f"classes must be name=code,code or one .yaml file, got {text!r}")
            names.append(name.strip())
            codes.append(tuple(_code(number, name) for number in numbers.split(",")) if numbers.strip() else ())
        return ClassMap(tuple(names), tuple(codes), other)

    @staticmethod
    def read(path: Path, other: Other = "ignore") -> "ClassMap":
        """Read a YAML file; see `parse`."""
        content = read_yaml(path)
        swapped = isinstance(content, Mapping) and any(isinstance(value, str) for value in content.values())
        if not isinstance(content, Mapping) or (swapped and all(type(key) is int for key in content)):
            found = "lines code: name" if swapped else "none"
            raise ValueError(f"{path}: expected lines name: code, found {found}")
        listed = [value if isinstance(value, list) else [value] for value in content.values()]
        try:
            return ClassMap(tuple(map(str, content)), tuple(map(tuple, listed)), other)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def texts(self) -> tuple[str, ...]:
        """Return the classes as `parse` reads them."""
        each = zip(self.names, self.codes, strict=True)
        return tuple(f"{name}={','.join(map(str, codes))}" for name, codes in each)

    def yaml(self) -> str:
        """Return the classes as the YAML that `read` reads."""
        each = zip(self.names, self.codes, strict=True)
        return "".join(f"{json.dumps(name)}: {json.dumps(codes)}\n" for name, codes in each)

    @property
    def plain(self) -> bool:
        """Whether the code of every class is its number."""
        return self.codes == tuple((number,) for number in range(len(self.names)))

    def known(self) -> dict[int, str]:
        """Return the class name of each code."""
        each = zip(self.names, self.codes, strict=True)
        return {code: name for name, codes in each for code in codes}

    def apply(self, labels: Tensor) -> Tensor:
        """Replace codes (N,) by the numbers of their classes; -1 for all other codes."""
        pairs = sorted((code, number) for number, codes in enumerate(self.codes) for code in codes)
        codes, numbers = torch.tensor(pairs, device=labels.device).T.contiguous()
        labels = labels.long().contiguous()
        found = torch.searchsorted(codes, labels).clamp(max=len(codes) - 1)
        return torch.where(codes[found] == labels, numbers[found], -1)

    def restore(self, classes: Tensor) -> Tensor:
        """Replace class numbers (N,) by the first code of each class; -1 stays."""
        first = torch.tensor([*(codes[0] for codes in self.codes), -1], device=classes.device)
        return first[classes.long()]

    def others(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Return those of the counts by code that belong to no class, except negative labels."""
        known = self.known()
        return {code: count for code, count in sorted(counts.items()) if code >= 0 and code not in known}

    def check(self, counts: Mapping[int, int], where: str = "") -> None:
        """Raise `FileError` if other codes are refused and occur in the counts by code; `where`: the file."""
        if self.other == "refuse" and (others := self.others(counts)):
            prefix = f"{where}: " if where else ""
            raise FileError(
                f"{prefix}expected only codes of the classes {' '.join(self.texts())}, found also {_points(others)}"
            )

    def ordered(self, names: Sequence[str]) -> "ClassMap | None":
        """Return the classes in the order of `names`, or None if these are not the same names."""
        if set(names) != set(self.names):
            return None
        return ClassMap(tuple(names), tuple(self.codes[self.names.index(name)] for name in names), self.other)

    def sums(self, counts: Mapping[int, int]) -> list[int]:
        """Return the number of points of each class, from counts by code."""
        return [sum(counts.get(code, 0) for code in codes) for codes in self.codes]


def choose_classes(counts: Mapping[int, int], *, las: bool) -> ClassMap | None:
    """Choose classes for labels without class names: one for each code that occurs.

    In LAS files, points of the codes 0 and 1 (never classified, unclassified) have no label, unless fewer than two
    classes remain without them.

    Args:
        counts: Number of points of each code.
        las: Whether the codes are those of the LAS classification.

    Returns:
        The classes. None if codes are numbered from 0 without gaps, so that no map is needed.
    """
    codes = sorted(code for code in counts if code >= 0)
    if las:
        classified = [code for code in codes if code not in UNCLASSIFIED]
        codes = classified if len(classified) > 1 else codes
        return ClassMap(tuple(map(asprs, codes)), tuple((code,) for code in codes))
    if codes == list(range(len(codes))):
        return None
    return ClassMap(tuple(map(str, codes)), tuple((code,) for code in codes))


def asprs(code: int) -> str:
    """Return the name of a code of the LAS classification."""
    return ASPRS[code] if 0 <= code < len(ASPRS) else f"class {code}"


def count_codes(labels: Tensor) -> dict[int, int]:
    """Return the number of points of each label in (N,)."""
    values, counts = labels.unique(return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def describe_codes(counts: Mapping[int, int], names: Mapping[int, str]) -> str:
    """List counts by code: "2 (ground): 1,204, 7: 10"."""
    return ", ".join(
        f"{code} ({names[code]}): {count:,}" if code in names else f"{code}: {count:,}"
        for code, count in sorted(counts.items())
    )


def ignored_note(counts: Mapping[int, int]) -> str:
    """Count the points that are ignored because of their codes: "1,204 points with codes 7, 18 are ignored"."""
    return f"{_points(counts)} {'is' if sum(counts.values()) == 1 else 'are'} ignored"


def _points(counts: Mapping[int, int]) -> str:
    total = sum(counts.values())
    listed = ", ".join(map(str, sorted(counts)))
    points, codes = "point" if total == 1 else "points", "code" if len(counts) == 1 else "codes"
    return f"{total:,} {points} with {codes} {listed}"


def _code(text: Any, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"codes of class {name!r} must be integers from 0 to {MAX_CODE}, got {text.strip()!r}"
        ) from None

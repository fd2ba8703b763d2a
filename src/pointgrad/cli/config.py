"""Reading dataclasses from YAML files, with one-line errors."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pointgrad.data import FileError
from pointgrad.data.untrusted import read_yaml
from pointgrad.errors import PrintableError

T = TypeVar("T")
INT_LIMIT = 2**63


class ConfigError(PrintableError, ValueError):
    """A configuration cannot be used. The message starts with its path."""


def read_config(kind: type[T], path: Path) -> T:
    """Read a dataclass from a YAML file.

    Args:
        kind: The dataclass.
        path: The file.

    Raises:
        ConfigError: The file cannot be read, or has unknown keys or values of the wrong type.
    """
    try:
        content = read_yaml(path)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path}: reading it needs {error.name}: pip install 'pointgrad[train]'") from None
    except FileError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: expected keys and values, got {type(content).__name__}")
    try:
        return from_mapping(kind, content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def from_mapping(kind: type[T], content: Mapping[Any, Any], prefix: str = "") -> T:
    """Create a dataclass from keys and values. `prefix`: path of the keys, for messages. Raises `ConfigError`."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]
    values = {}
    for key, value in content.items():
        if key not in names:
            key = str(key)[:60]
            near = difflib.get_close_matches(key, names, 1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else f"; known keys are {', '.join(names)}"
            raise ConfigError(f"unknown key {prefix}{key}{hint}")
        values[key] = _convert(hints[key], value, f"{prefix}{key}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{prefix.rstrip('.') + ': ' if prefix else ''}{error}") from None


def _convert(hint: Any, value: Any, name: str) -> Any:
    """Convert a value to a type. Raises `ConfigError`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _convert(arguments[0], value, name)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = [each for each in arguments if each is not type(None)]
        return _convert(hint, value, name)
    if origin is Literal:
        if isinstance(value, bool) or str(value) not in arguments:  # YAML parses 32 as a number
            raise ConfigError(f"{name} must be one of {', '.join(arguments)}, got {_shown(value)}")
        return str(value)
    if dataclasses.is_dataclass(hint):
        _expect(isinstance(value, Mapping), name, "keys and values", value)
        return from_mapping(typing.cast(Any, hint), value, f"{name}.")
    if origin is tuple:
        _expect(isinstance(value, (list, tuple)), name, "a list", value)
        each = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        _expect(len(each) == len(value), name, f"a list of {len(each)}", value)
        pairs = zip(each, value, strict=True)
        return tuple(_convert(kind, item, f"{name}[{number}]") for number, (kind, item) in enumerate(pairs))
    if hint is float:
        value = _number(value)
        _expect(isinstance(value, (int, float)) and not isinstance(value, bool), name, "a number", value)
        _expect(math.isfinite(value), name, "a finite number", value)
        return float(value)
    if hint is Path:
        _expect(isinstance(value, str), name, "a path", value)
        return Path(value)
    words = {int: "a whole number", bool: "true or false", str: "text"}
    right = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    _expect(right, name, words.get(hint, str(hint)), value)
    _expect(hint is not int or abs(value) < INT_LIMIT, name, "an integer of 64 bits", value)
    return value


def _number(value: Any) -> Any:
    """Convert to float where possible: YAML parses 1e-3 as text, and integers of any length."""
    try:
        return float(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else value
    except (ValueError, OverflowError):
        return str(value)


def check_numbers(flags: Any, prefix: str = "") -> None:
    """Raise ValueError if a number in a dataclass is not finite, or is an integer of more than 64 bits."""
    for each in dataclasses.fields(flags):
        name, value = f"{prefix}{each.name}", getattr(flags, each.name)
        if dataclasses.is_dataclass(value):
            check_numbers(value, f"{name}.")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float):
                _expect(math.isfinite(number), name, "a finite number", number)
            elif isinstance(number, int):
                _expect(abs(number) < INT_LIMIT, name, "an integer of 64 bits", number)


def _expect(right: bool, name: str, contract: str, value: Any) -> None:
    if not right:
        raise ConfigError(f"{name} must be {contract}, got {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:100]}..."

"""Clouds from tensors, arrays and clouds, as `pointgrad.view` and `pointgrad.render` accept them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pointgrad.data.cloud import Cloud
from pointgrad.data.names import class_names

VALUE = "value"  # column of colors given as one number per point
CHANNELS = ("red", "green", "blue")
ROUNDING = 1e-3  # by which colors may exceed the range from 0 to 1
ACCEPTED = "a tensor, an array, a Cloud, or a dict or list of these"


def as_clouds(points: Any, colors: Any = None, labels: Any = None, *, name: str | None = None) -> dict[str, Cloud]:
    """Copy points with their colors and labels to named clouds on the CPU.

    Args:
        points: (N, 3) tensor, array or `Cloud`; a dict of these by name, a list of these, or (B, N, 3).
        colors: For each cloud (N, 3), uint8 or from 0 to 1, or one value per point (N,); structured as `points`.
        labels: For each cloud (N,), integers, -1 for no label; structured as `points`.
        name: Name of a single cloud.

    Returns:
        Clouds by name; without names, clouds of several are named by their source or position.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If a shape or value is invalid, or no point is finite.

    Example:
        >>> clouds = as_clouds({"a": torch.rand(5, 3), "b": np.zeros((2, 3))}, labels={"a": [0, 1, 0, 1, 1]})
        >>> [(name, len(cloud), cloud.labels) for name, cloud in clouds.items()]
        [('a', 5, tensor([0, 1, 0, 1, 1])), ('b', 2, None)]
    """
    if _is_several(points):
        if name is not None:
            raise ValueError("name must be given with a single cloud only; name several clouds with a dict")
        found = _several(points, colors, labels)
    else:
        name = _checked_name(name) if name is not None else _name_of(points, "points")
        found = {name: _cloud("points", points, colors, labels, "colors", "labels")}
    if not any(len(cloud) for cloud in found.values()):
        raise ValueError("points must have at least one point, got none")
    if not any(bool(cloud.points.isfinite().all(1).any()) for cloud in found.values()):
        raise ValueError("points must have finite coordinates, got NaN or infinity in every point")
    return found


def _is_several(points: Any) -> bool:
    return isinstance(points, (Mapping, list, tuple)) or (not isinstance(points, Cloud) and np.ndim(points) == 3)


def _several(points: Any, colors: Any, labels: Any) -> dict[str, Cloud]:
    """Convert a mapping, a sequence or a batch (B, N, 3), with colors and labels of the same structure."""
    if not len(points):
        raise ValueError("points must have at least one cloud, got none")
    shape = np.shape(points) if not isinstance(points, (Mapping, list, tuple)) else ()
    if shape and shape[2] != 3:
        hint = ": pass points[..., :3], and other columns as colors or labels" if shape[2] > 3 else ""
        hint = "; they look transposed: pass points.swapaxes(1, 2)" if shape[1] == 3 else hint
        raise ValueError(f"points must be (N, 3) or (B, N, 3), got {tuple(shape)}{hint}")
    keys = list(points) if isinstance(points, Mapping) else list(range(len(points)))
    given = {"colors": colors, "labels": labels}
    for argument, values in given.items():
        if values is None:
            continue
        if isinstance(points, Mapping):
            if not isinstance(values, Mapping):
                raise TypeError(f"{argument} must be a dict like points, got {type(values).__name__}")
            if extra := [key for key in values if key not in points]:
                raise ValueError(f"{argument} must have names of points, {', '.join(map(str, keys))}; got {extra[0]}")
        elif isinstance(values, Mapping) or (np.ndim(values) == 0 and not isinstance(values, (list, tuple))):
            raise TypeError(f"{argument} must have one entry per cloud like points, got {type(values).__name__}")
        elif len(values) != len(points):
            raise ValueError(f"{argument} must have one entry for each of {len(points)} clouds, got {len(values)}")
    clouds: dict[str, Cloud] = {}
    for key in keys:
        if isinstance(points, Mapping):
            name, label = _checked_name(key), f"[{key!r}]"
            own_colors, own_labels = (None if values is None else values.get(key) for values in given.values())
        else:
            name, label = _name_of(points[key], str(key)), f"[{key}]"
            name = name if name not in clouds else str(key)
            own_colors, own_labels = (None if values is None else values[key] for values in given.values())
        clouds[name] = _cloud(f"points{label}", points[key], own_colors, own_labels, f"colors{label}", f"labels{label}")
    return clouds


def _cloud(name: str, points: Any, colors: Any, labels: Any, colors_name: str, labels_name: str) -> Cloud:
    if isinstance(points, Cloud):
        cloud = replace(
            points,
            points=_copy(points.points),
            features={key: _copy(column) for key, column in points.features.items()},
            labels=None if points.labels is None else _copy(points.labels),
        )
    else:
        cloud = Cloud(_coordinates(name, points))
    if colors is not None:
        cloud.features.update(_colors(colors_name, colors, len(cloud)))
    return cloud if labels is None else replace(cloud, labels=_labels(labels_name, labels, len(cloud)))


def _coordinates(name: str, points: Any) -> Tensor:
    if isinstance(points, (str, bytes)) or hasattr(points, "__fspath__"):
        raise TypeError(f"{name} must be points, got a file name: pass pointgrad.data.read(...)")
    if not isinstance(points, Tensor) and not hasattr(points, "__array__"):
        accepted = ACCEPTED if name == "points" else "a tensor, an array or a Cloud"
        raise TypeError(f"{name} must be {accepted}, got {type(points).__name__}")
    values = _tensor(name, points)
    if values.dim() != 2 or values.shape[1] != 3:
        hint = ""
        if values.dim() == 2 and values.shape[0] == 3:
            hint = f"; they look transposed: pass {name}.T"
        elif values.dim() == 2 and values.shape[1] > 3:
            hint = f": pass {name}[:, :3], and other columns as colors or labels"
        raise ValueError(f"{name} must be (N, 3){' or (B, N, 3)' * (name == 'points')}, got {_shape(values)}{hint}")
    if values.dtype == torch.bool:
        raise TypeError(f"{name} must be numbers, got bool")
    if not values.is_floating_point():
        return values.double()
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _colors(name: str, colors: Any, count: int) -> dict[str, Tensor]:
    if isinstance(colors, str):
        raise TypeError(f"{name} must be an array, got {colors!r}; to color by a column, pass by={colors!r}")
    values = _tensor(name, colors)
    if values.shape == (count,):
        return {VALUE: values.to(torch.int64) if values.dtype == torch.bool else values}
    if values.shape != (count, 3):
        hint = f": pass {name}[:, :3]" if values.shape == (count, 4) else ""
        raise ValueError(f"{name} must be ({count}, 3) or ({count},) like points, got {_shape(values)}{hint}")
    if values.dtype == torch.bool:
        raise TypeError(f"{name} must be uint8 or floating point from 0 to 1, got bool")
    top = 1.0 if values.is_floating_point() else 255
    slack = ROUNDING if values.is_floating_point() else 0
    if count and not bool(((values >= -slack) & (values <= top + slack)).all()):  # false for NaN
        low, high = values.double().aminmax()
        raise ValueError(f"{name} must be from 0 to {top:g} as {_dtype(values)}, got {low:.4g} to {high:.4g}")
    bytes_ = (values.double().clamp(0, top) * (255 / top)).round().to(torch.uint8)
    return dict(zip(CHANNELS, bytes_.unbind(1), strict=True))


def _labels(name: str, labels: Any, count: int) -> Tensor:
    values = _tensor(name, labels)
    if values.shape != (count,):
        hint = f"; of scores, pass {name}.argmax(-1)" if values.dim() == 2 and values.shape[0] == count else ""
        raise ValueError(f"{name} must be ({count},) like points, got {_shape(values)}{hint}")
    if values.is_floating_point():
        raise TypeError(f"{name} must be integers, got {_dtype(values)}")
    return values.to(torch.int64)


def _tensor(name: str, value: Any) -> Tensor:
    """Copy an array to a tensor on the CPU."""
    if not isinstance(value, Tensor):
        try:
            array = np.asarray(value)
            if array.dtype.kind not in "buif":
                raise TypeError(f"{name} must be numbers, got {array.dtype}")
            array = array.astype(array.dtype.newbyteorder("="))
            if array.dtype.kind == "u" and array.dtype.itemsize > 1:
                array = array.astype(np.int64)
            value = torch.from_numpy(np.ascontiguousarray(array.astype(np.float64) if array.itemsize > 8 else array))
        except ValueError:  # rows of different lengths
            raise ValueError(f"{name} must be a regular array, got rows of different lengths") from None
        return value
    if value.layout != torch.strided or value.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got {'a nested tensor' if value.is_nested else value.layout}")
    if value.is_meta:
        raise TypeError(f"{name} must have data, got a tensor on the device meta")
    if value.is_complex():
        raise TypeError(f"{name} must be numbers, got {_dtype(value)}")
    return _copy(value)


def _copy(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)


def _name_of(points: Any, default: str) -> str:
    """Name a cloud by the file that it comes from."""
    source = points.source.rpartition("/")[2] if isinstance(points, Cloud) else ""
    return source or default


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a cloud must be a non-empty string, got {name!r}")
    return name


def class_map(classes: Mapping[int, str] | Sequence[str] | None) -> dict[int, str]:
    """Class names by number, from a list or a dict.

    Raises:
        TypeError: If `classes` is something else.

    Example:
        >>> class_map(["road", "tree"]), class_map({6: "building"})
        ({0: 'road', 1: 'tree'}, {6: 'building'})
    """
    if classes is None:
        return {}
    found = classes if isinstance(classes, Mapping) else None
    if isinstance(classes, Sequence) and not isinstance(classes, str):
        found = dict(enumerate(classes))
    if found is None or not all(isinstance(key, Integral) and isinstance(name, str) for key, name in found.items()):
        raise TypeError(f"classes must be a list of names or a dict of names by number, got {classes!r}")
    return {int(key): name for key, name in found.items()}


def stored_names(clouds: Mapping[str, Cloud]) -> dict[int, str]:
    """Class names of the labels of clouds that were read from files; empty unless these files have the same names."""
    sources = {cloud.source for cloud in clouds.values()}
    found = [class_names(source) if source and Path(source).is_file() else {} for source in sorted(sources)]
    return found[0] if found and all(names == found[0] for names in found) else {}


def preferred_column(colors: Any, clouds: Mapping[str, Cloud]) -> str | None:
    """Column that colors the points at first: that of the argument `colors`, or None without it."""
    if colors is None:
        return None
    return VALUE if any(VALUE in cloud.features for cloud in clouds.values()) else "rgb"


def _shape(values: Tensor) -> str:
    return str(tuple(values.shape))


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")

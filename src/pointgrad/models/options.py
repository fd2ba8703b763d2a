"""Checks of the options of networks."""

from typing import Any

from pointgrad.models.network import TASKS
from pointgrad.ops import checks


def check(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options unchanged, or raise an error if one is invalid."""
    task = config["task"]
    checks.value(task in TASKS, "task", " or ".join(TASKS), repr(task))
    for name, least in (("classes", 1), ("channels", 0), ("categories", 0), ("k", 1)):
        if name in config:
            checks.kind(checks.is_integer(config[name]), name, "an int", config[name])
            checks.value(config[name] >= least, name, f"at least {least}", config[name])
    for name in ("width", "density", "radius", "voxel"):
        if name in config:
            checks.kind(_is_number(config[name]), name, "a number", config[name])
            checks.value(0 < config[name] < float("inf"), name, "positive and finite", config[name])
    for name in ("coordinates", "legacy"):
        if name in config:
            checks.boolean(name, config[name])
    for name in ("dropout", "drop_path"):
        if name in config:
            checks.kind(_is_number(config[name]), name, "a number", config[name])
            checks.value(0 <= config[name] < 1, name, "in [0, 1)", config[name])
    checks.value(
        "norm" not in config or config["norm"] in ("batch", "group"),
        "norm",
        '"batch" or "group"',
        repr(config.get("norm")),
    )
    if config.get("categories"):
        checks.value(task == "segmentation", "categories", "0 for classification", config["categories"])
    return config


def scaled(factor: float, size: int) -> int:
    """A size times a factor, rounded to a multiple of 8, at least 8; unchanged if the factor is 1."""
    return size if factor == 1 else max(8, round(size * factor / 8) * 8)


def variant(config: dict[str, Any], allowed: tuple[str, ...]) -> None:
    """Check the option `variant`."""
    checks.value(config["variant"] in allowed, "variant", " or ".join(allowed), repr(config["variant"]))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

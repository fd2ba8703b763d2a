"""Stand-ins for hydra 0.11 and other packages with which the tests of Pointnet2_PyTorch set up networks."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch


class Helpers:
    """Namespace `pytest.helpers` of the plugin pytest-helpers-namespace."""

    def register(self, function: Any) -> Any:
        setattr(self, function.__name__, function)
        return function


class Configuration(dict[str, Any]):
    """Configuration with dotted keys, such as "model.use_xyz"."""

    task_model = ""


def compose(_: str, overrides: list[str]) -> Configuration:
    values = dict(each.split("=") for each in overrides)
    configuration = Configuration({"model.use_xyz": values["model.use_xyz"] == "True"})
    task = {"cls": "Classification", "semseg": "SemSeg"}[values["task"]]
    configuration.task_model = f"PointNet2{task}{values['model'].upper()}"
    return configuration


def instantiate(name: str, configuration: Configuration) -> Any:
    import pointnet2.models

    return getattr(pointnet2.models, name)(configuration)


def provide(name: str, **members: Any) -> ModuleType:
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__dict__.update(members)
    return sys.modules[name]


pytest.helpers = Helpers()  # type: ignore[attr-defined]
experimental = provide("hydra.experimental", initialize=lambda _: None, compose=compose)
provide("hydra", experimental=experimental, utils=provide("hydra.utils", instantiate=instantiate))
provide("pytorch_lightning", LightningModule=torch.nn.Module)
provide("torchvision", transforms=None)
for name in ("lmdb", "msgpack_numpy"):  # imported for data sets, not used by the tests
    provide(name)

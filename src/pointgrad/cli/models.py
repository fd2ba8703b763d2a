"""`pointgrad models [NAME]`: the available networks, or the layers of one."""

from dataclasses import dataclass
from typing import Literal

from tyro.conf import Positional

from pointgrad import models

from .status import ExitStatus, fail


@dataclass
class Models:
    """List the networks with their number of parameters, or the layers of one network.

    Exit status: 0; 2 for an invalid command line.
    """

    name: Positional[str] = ""
    """Name of a network, whose layers are listed."""

    task: Literal["classification", "segmentation"] = "classification"
    """One class per cloud, or per point."""

    classes: int = 40
    """Number of classes."""

    def run(self) -> int:
        try:
            if self.name:
                models.summary(models.build(self.name, task=self.task, classes=self.classes))
                return ExitStatus.OK
            width = max(map(len, models.names()))
            for name, line in models.names().items():
                network = models.build(name, task=self.task, classes=self.classes)
                count = sum(parameter.numel() for parameter in network.parameters())
                print(f"{name:{width}}  {count:>11,}  {line}")
        except (TypeError, ValueError) as error:
            return fail("models", ExitStatus.USAGE, error)
        return ExitStatus.OK

"""`pointgrad models [NAME]`: the networks, or the layers of one."""

from dataclasses import dataclass
from typing import Literal

from tyro.conf import Positional

from pointgrad import models

from .fail import fail

WRONG = 2  # exit status, as the help of the command says


@dataclass
class Models:
    """Lists the networks with their number of parameters; with a name, the layers of that one.

    Exit status: 0; 2 for a wrong command line.
    """

    name: Positional[str] = ""
    """Of a network."""

    task: Literal["classification", "segmentation"] = "classification"
    """A class per cloud, or per point."""

    classes: int = 40
    """How many there are."""

    def run(self) -> int:
        try:
            if self.name:
                models.summary(models.build(self.name, task=self.task, classes=self.classes))
                return 0
            width = max(map(len, models.names()))
            for name, line in models.names().items():
                network = models.build(name, task=self.task, classes=self.classes)
                count = sum(parameter.numel() for parameter in network.parameters())
                print(f"{name:{width}}  {count:>11,}  {line}")
        except (TypeError, ValueError) as error:
            return fail("models", WRONG, str(error))
        return 0

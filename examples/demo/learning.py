"""Training with the command line: one network classifies objects, another segments their parts.

    python examples/demo/learning.py

Trains both networks from scratch on built-in data, in about three minutes on two CPU cores, and writes to out/learning.
Test objects have proportions that no training object has.
"""

import json
import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console

from pointgrad import cli, data

OUT = Path("out/learning")
OBJECTS, PARTS = OUT / "objects", OUT / "parts"
# A PointNet++ with a quarter of the usual width, and fewer points and neighbours, which is fast enough on two cores.
NETWORK = "--model pointnet2 --prepare.points 512 --options width=0.25 dropout=0.1"
RECIPE = "--lr 0.006 --warmup-epochs 1 --smoothing 0.1 --augment.rotate z --augment.scale 0.9 1.1 --augment.translate 0"
CHAIR = "chair"

console = Console()


def command(text: str) -> None:
    """Print and run a command; exit if it fails."""
    console.print(f"\n[bold cyan]pointgrad {text}", highlight=False)
    status = cli.main(shlex.split(text))
    if status:
        sys.exit(status)


def metrics(name: str) -> dict[str, float]:
    """Metrics that `pointgrad evaluate` has written."""
    return json.loads((OUT / name).read_text())


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)  # a run folder is never overwritten
    command(f"train --data shapes {NETWORK} density=0.5 {RECIPE} --epochs 10 --out {OBJECTS}")
    command(f"evaluate {OBJECTS} --data shapes --json {OUT}/objects.json")
    command(f"train --data shapes --task segmentation {NETWORK} density=0.25 {RECIPE} --epochs 4 --out {PARTS}")
    command(f"evaluate {PARTS} --data shapes --json {OUT}/parts.json")

    shapes = data.Shapes("test", "segmentation")
    kind = shapes.categories.index(CHAIR)
    chair = next(shape for shape in map(shapes.__getitem__, range(len(shapes))) if shape.category == kind)
    data.write(OUT / "chair.ply", chair)
    command(f"predict {PARTS} {OUT}/chair.ply --category {kind} --evaluate --out {OUT}/labelled")

    objects, points = (f"[bold]{metrics(f'{name}.json')['accuracy']:.1%}[/]" for name in ("objects", "parts"))
    console.print(f"\nTest accuracy: {objects} of the objects (chance: 8%), {points} of their points (chance: 3%).")
    console.print(f"See [bold]{OBJECTS}/curves.png[/], confusion.png and examples.png, and the same files in {PARTS}.")
    console.print(f"The chair with predicted parts is [bold]{OUT}/labelled/chair.ply[/].")


if __name__ == "__main__":
    main()

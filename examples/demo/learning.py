"""Learning with the commands of pointgrad: one network tells kinds of objects apart, another finds their parts.

    python examples/demo/learning.py

Trains both from nothing, on built-in data, in about three minutes on two CPU cores, and writes all to out/learning. The
test objects have proportions that no object of the training has.
"""

import json
import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console

from pointgrad import cli, data

OUT = Path("out/learning")
KINDS, PARTS = OUT / "kinds", OUT / "parts"
# A PointNet++ with a quarter of the width, and fewer points and neighbours, so that two cores are enough.
NETWORK = "--model pointnet2 --prepare.points 512 --options width=0.25 dropout=0.1"
RECIPE = "--lr 0.006 --warmup-epochs 1 --smoothing 0.1 --augment.rotate z --augment.scale 0.9 1.1 --augment.translate 0"
CHAIR = "chair"

console = Console()


def command(text: str) -> None:
    console.print(f"\n[bold cyan]pointgrad {text}", highlight=False)
    status = cli.main(shlex.split(text))
    if status:
        sys.exit(status)


def figures(name: str) -> dict[str, float]:
    return json.loads((OUT / name).read_text())


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)  # a run folder is never overwritten
    command(f"train --data shapes {NETWORK} density=0.5 {RECIPE} --epochs 10 --out {KINDS}")
    command(f"evaluate {KINDS} --data shapes --json {OUT}/kinds.json")
    command(f"train --data shapes --task segmentation {NETWORK} density=0.25 {RECIPE} --epochs 4 --out {PARTS}")
    command(f"evaluate {PARTS} --data shapes --json {OUT}/parts.json")

    shapes = data.Shapes("test", "segmentation")
    kind = shapes.categories.index(CHAIR)
    chair = next(shape for shape in map(shapes.__getitem__, range(len(shapes))) if shape.category == kind)
    data.write(OUT / "chair.ply", chair)
    command(f"predict {PARTS} {OUT}/chair.ply --category {kind} --evaluate --out {OUT}/labelled")

    kinds, parts = figures("kinds.json"), figures("parts.json")
    known, labelled = f"[bold]{kinds['accuracy']:.1%}[/]", f"[bold]{parts['accuracy']:.1%}[/]"
    console.print(
        f"\n{known} of the test objects known, {labelled} of their points; a guess would be right for 8% and 3%."
    )
    console.print(f"Look at [bold]{KINDS}/curves.png[/], confusion.png and examples.png; the same in {PARTS};")
    console.print(f"the chair with its parts is [bold]{OUT}/labelled/chair.ply[/].")


if __name__ == "__main__":
    main()

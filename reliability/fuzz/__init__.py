"""Random calls of every operator, right and wrong, compared with the reference: one family per room of `ops`.

`python -m reliability.fuzz` runs them (`__main__.py`). A family is a module with `OPERATORS`: how to draw the arguments
of each of its operators. `check.py` says what must hold for all of them, `spoil.py` how calls are made wrong.
"""

FAMILIES = (
    "sampling", "neighbors", "gather", "scatter", "interpolate", "attention", "voxels", "distance", "conv", "loss",
)  # fmt: skip

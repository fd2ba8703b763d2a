"""Random calls of every operator, valid and invalid, compared with the reference.

`python -m reliability.fuzz` runs them (`__main__.py`). The arguments are drawn as the catalogue (`pointgrad.catalog`)
describes; `check.py` compares the results, `spoil.py` makes invalid calls.
"""

from pointgrad import catalog

OLD = ("sampling", "scatter", "interpolate", "attention", "voxels", "distance", "conv", "loss")
FAMILIES = tuple(name for name, ops in catalog.FAMILIES.items() if any(op.draw for op in ops))
FAMILIES += tuple(name for name in OLD if name not in FAMILIES)

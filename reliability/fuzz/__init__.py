"""Random calls of every operator, valid and invalid, compared with the reference.

`python -m reliability.fuzz` runs them (`__main__.py`). The arguments are drawn as the catalogue (`pointgrad.catalog`)
describes; `check.py` compares the results, `spoil.py` makes invalid calls. `raw.py` calls the registered operators
without their public functions.
"""

from pointgrad import catalog

RAW = "raw"  # in place of a family
FAMILIES = tuple(name for name, operators in catalog.FAMILIES.items() if any(op.draw for op in operators))

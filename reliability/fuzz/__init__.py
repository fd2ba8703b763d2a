"""Random calls of every operator, valid and invalid, compared with the reference.

`python -m reliability.fuzz` runs them (`__main__.py`). The arguments are drawn as the catalogue (`pointgrad.catalog`)
describes; `check.py` compares the results, `spoil.py` makes invalid calls.
"""

from pointgrad import catalog

FAMILIES = tuple(name for name, operators in catalog.FAMILIES.items() if any(op.draw for op in operators))

"""Descriptions that are not in the catalogue yet, in its form."""

import importlib
import pkgutil

from pointgrad import catalog
from pointgrad.catalog import BadCall, OpInfo, Sample

_families = [importlib.import_module(f"{__name__}.{family.name}") for family in pkgutil.iter_modules(__path__)]
_families = [family for family in _families if family.__name__ != f"{__name__}.base"]


def _op(case) -> OpInfo:
    family, _, name = case.name.partition("/")
    sample = Sample(name or "plain", case.inputs, case.large, case.smooth, case.seeded, case.waits, case.any_order)
    return OpInfo(
        f"{family}@{case.operator.__name__}", case.call, [sample], case.differentiable,
        index_rows=case.rows or (lambda arguments: None), composed=case.composed, registered=not case.plain,
    )  # fmt: skip


CASES = [*catalog.CASES, *(case for family in _families for old in family.CASES for case in _op(old).cases())]
BAD_CALLS = [(op, bad) for op in catalog.OPERATORS for bad in op.errors]
for _family in _families:
    for _call, _error, _message in _family.BAD_METADATA:
        BAD_CALLS.append((OpInfo("old", _call, ()), BadCall(_error, _message, (), {})))
    for _call, _message in _family.BAD_VALUES:
        BAD_CALLS.append((OpInfo("old", _call, ()), BadCall(ValueError, _message, (), {}, True)))

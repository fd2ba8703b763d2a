"""The tables behind the contract test, one file per room: ways to call its operators, right and wrong.

A new operator gets the whole contract by adding its cases to its room's file: `CASES`, then `BAD_METADATA`
(what shapes and dtypes show, on every device) and `BAD_VALUES` (what only values show, on CPU tensors).
"""

import importlib
import pkgutil

from .base import Case as Case
from .base import Make as Make

_rooms = [importlib.import_module(f"{__name__}.{room.name}") for room in pkgutil.iter_modules(__path__)]
_rooms = [room for room in _rooms if room.__name__ != f"{__name__}.base"]

CASES = [case for room in _rooms for case in room.CASES]
BAD_METADATA = [call for room in _rooms for call in room.BAD_METADATA]
BAD_VALUES = [call for room in _rooms for call in room.BAD_VALUES]

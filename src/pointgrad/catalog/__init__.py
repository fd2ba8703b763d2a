"""One description per operator, one module per family: `OPERATORS` of every module in this folder.

`import pointgrad` does not import the catalogue. Tests, `reliability`, benchmarks and the demo iterate over it. To
describe a new operator, add an `OpInfo` to its family's module (see `base.py`).
"""

import importlib
import pkgutil

from .base import Benchmark as Benchmark
from .base import Case as Case
from .base import OpInfo as OpInfo
from .base import Precision as Precision
from .base import Sample as Sample
from .base import Scaling as Scaling
from .base import first_float as first_float
from .errors import BadCall as BadCall
from .inputs import Draw as Draw
from .inputs import Make as Make

_modules = {
    module.name: importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)
}
FAMILIES: dict[str, list[OpInfo]] = {
    name: module.OPERATORS for name, module in sorted(_modules.items()) if hasattr(module, "OPERATORS")
}
OPERATORS = [op for operators in FAMILIES.values() for op in operators]
CASES = [case for op in OPERATORS for case in op.cases()]

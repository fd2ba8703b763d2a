"""The package `pointgroup_ops` of PointGroup and Pointcept, for programs that do not have their own copy of it."""

from .functions import *  # noqa: F403
from .functions import __all__ as __all__

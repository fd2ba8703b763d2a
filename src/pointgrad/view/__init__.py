"""Browser viewer for point clouds, operators and training runs. `pointgrad.view(points)` is `show(points)`."""

import inspect
import sys
import types

from pointgrad.view.run import RunViewer as RunViewer
from pointgrad.view.viewer import Viewer as Viewer
from pointgrad.view.window import Window as Window
from pointgrad.view.window import show as show


class _CallableModule(types.ModuleType):
    __call__ = staticmethod(show)
    __signature__ = inspect.signature(show)


sys.modules[__name__].__class__ = _CallableModule

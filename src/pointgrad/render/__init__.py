"""Images of point clouds, computed without a display. `pointgrad.render(points)` is `image(points)`."""

import inspect
import sys
import types

from pointgrad.data.names import class_names as class_names
from pointgrad.data.sidecar import with_labels as with_labels
from pointgrad.render.colors import Scale as Scale
from pointgrad.render.colors import choices as choices
from pointgrad.render.colors import first_choice as first_choice
from pointgrad.render.colors import paint as paint
from pointgrad.render.colors import scale as scale
from pointgrad.render.image import image as image
from pointgrad.render.palette import Palette as Palette
from pointgrad.render.save import save as save
from pointgrad.render.still import picture as picture
from pointgrad.render.still import turntable as turntable


class _CallableModule(types.ModuleType):
    __call__ = staticmethod(image)
    __signature__ = inspect.signature(image)


sys.modules[__name__].__class__ = _CallableModule

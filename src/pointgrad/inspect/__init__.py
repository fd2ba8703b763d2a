"""Looking into gradients: pictures of the autograd graph, what a call runs, hooks, and an audit."""

from .hooks import ActivationPenalty as ActivationPenalty
from .hooks import GradientWatcher as GradientWatcher
from .hooks import LayerNorms as LayerNorms
from .hooks import NonFinite as NonFinite
from .hooks import Record as Record
from .hooks import Recorder as Recorder

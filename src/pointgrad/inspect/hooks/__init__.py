"""Context managers that attach hooks to the layers of a module and remove them on exit."""

from .penalty import ActivationPenalty as ActivationPenalty
from .recorder import Record as Record
from .recorder import Recorder as Recorder
from .watcher import GradientWatcher as GradientWatcher
from .watcher import LayerNorms as LayerNorms
from .watcher import NonFinite as NonFinite

"""Tools to inspect gradients: autograd graph pictures, call traces, hooks, and an audit of differentiable functions."""

from .audit import Report as Report
from .audit import Row as Row
from .audit import audit as audit
from .calls import Call as Call
from .calls import Calls as Calls
from .calls import calls as calls
from .graph import graph as graph
from .hooks import ActivationPenalty as ActivationPenalty
from .hooks import GradientWatcher as GradientWatcher
from .hooks import LayerNorms as LayerNorms
from .hooks import NonFinite as NonFinite
from .hooks import Record as Record
from .hooks import Recorder as Recorder
from .nodes import Edge as Edge
from .nodes import Graph as Graph
from .nodes import Node as Node
from .nodes import Saved as Saved

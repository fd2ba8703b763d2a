"""Looking into gradients: pictures of the autograd graph, what a call runs, hooks, and an audit."""

from pointgrad.inspect.calls import Call as Call
from pointgrad.inspect.calls import Calls as Calls
from pointgrad.inspect.calls import calls as calls
from pointgrad.inspect.graph import graph as graph
from pointgrad.inspect.nodes import Edge as Edge
from pointgrad.inspect.nodes import Graph as Graph
from pointgrad.inspect.nodes import Node as Node
from pointgrad.inspect.nodes import Saved as Saved

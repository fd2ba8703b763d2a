"""Looking into gradients: pictures of the autograd graph, what a call runs, hooks, and an audit."""

from pointgrad.inspect.graph import Edge as Edge
from pointgrad.inspect.graph import Graph as Graph
from pointgrad.inspect.graph import Node as Node
from pointgrad.inspect.graph import Saved as Saved
from pointgrad.inspect.graph import graph as graph

"""Store for clouds that do not fit into memory: points grouped by the leaves of a kd-tree over x and y."""

from pointgrad.data.tiles.scene import FEATURE as FEATURE
from pointgrad.data.tiles.scene import Progress as Progress
from pointgrad.data.tiles.scene import Scene as Scene
from pointgrad.data.tiles.scene import collect as collect

"""Browser viewer for point clouds, operators and training runs."""

from pointgrad.view.run import RunViewer as RunViewer
from pointgrad.view.viewer import Viewer as Viewer

"""Clouds, operators and trainings to look at, in a browser."""

from pointgrad.view.run import RunViewer as RunViewer
from pointgrad.view.viewer import Viewer as Viewer

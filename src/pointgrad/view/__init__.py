"""Clouds, operators and trainings to look at, in a browser."""

from pointgrad.view.viewer import Viewer as Viewer

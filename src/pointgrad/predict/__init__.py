"""Labels for clouds of any size, from a trained network."""

from pointgrad.predict.labels import Labels as Labels
from pointgrad.predict.labels import label as label

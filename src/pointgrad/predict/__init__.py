"""Prediction of labels for clouds of any size with a trained network."""

from pointgrad.predict.classes import Classes as Classes
from pointgrad.predict.classes import classify as classify
from pointgrad.predict.files import label_file as label_file
from pointgrad.predict.files import output as output
from pointgrad.predict.labels import Labels as Labels
from pointgrad.predict.labels import label as label
from pointgrad.predict.report import Report as Report

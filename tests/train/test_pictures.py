"""Figures of a run."""

import io

import numpy as np
import pytest
import torch

from pointgrad.data import STREET_CLASSES
from pointgrad.render import Palette


def test_confusion_shows_the_colors_of_classes():
    pytest.importorskip("matplotlib")
    from PIL import Image

    from pointgrad.train import pictures

    content = pictures.confusion(torch.eye(6), STREET_CLASSES)
    image = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    rows, columns = [], []
    for color in Palette().colors(dict(enumerate(STREET_CLASSES))).values():
        places = np.argwhere(abs(image - np.array(color)).max(2) <= 2)
        left, below = places[places[:, 1].argmin()], places[places[:, 0].argmax()]
        assert left[0] < below[0]  # one square left of the rows and one below the columns
        assert left[1] < below[1]
        rows.append(left[0])
        columns.append(below[1])
    assert rows == sorted(rows)
    assert columns == sorted(columns)

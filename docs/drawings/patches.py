"""Figure of the patches of a cloud along an order, with the keys that the last patch shares. All rows are computed."""

import torch

import pointgrad

from .figures import IMAGES
from .rows import ROWS, arrow, blank_panel, cells, label
from .style import GRAY, save_svg

PATCH = 4


def draw() -> None:
    order = torch.tensor([3, 0, 7, 1, 9, 4, 2, 8, 6, 5])
    index, inverse = pointgrad.patch_index(order, PATCH)
    own = torch.zeros(index.numel(), dtype=torch.bool)
    own[inverse] = True
    figure, axes = blank_panel((10, 3.6), 20, 7.2)
    label(axes, 5, 0.5, "order: the points along a curve")
    for place, row in enumerate(order.tolist()):
        cells(axes, place, 1, [str(row)], ROWS[place // PATCH])
        label(axes, place + 0.5, 2.4, str(place), color=GRAY)
    label(axes, 16, 0.5, "keys of each patch (patch = 4)")
    for number, rows in enumerate(index.tolist()):
        for at, row in enumerate(rows):
            is_query = own[number * PATCH + at]
            cells(axes, 14 + at, 1 + 1.5 * number, [str(row)], ROWS[number] if is_query else None)
        label(axes, 13.4, 1.5 + 1.5 * number, str(number), color=GRAY)
    arrow(axes, (10.3, 1.5), (12.9, 1.5), GRAY)
    label(
        axes,
        10,
        6.4,
        "coloured: queries and keys of the patch; others: keys shared with the patch before",
        color=GRAY,
    )
    save_svg(figure, IMAGES / "patches.svg")

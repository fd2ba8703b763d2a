"""Figure of the chapter on normalization: which values share a mean and a variance."""

import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from .functional import save
from .style import BLUE, GRAY, GREEN, ORANGE

CLOUDS, CHANNELS, GROUPS = (3, 2), 8, 2  # points of each cloud
COLORS = (BLUE, ORANGE, GREEN, "#8e6bb0")


def draw() -> None:
    panels = {
        "batch norm:\na channel of all points": lambda cloud, point, channel: channel % 2,
        "layer norm:\na point": lambda cloud, point, channel: point % 2,
        'group norm of each point,\nnorm="group" in a SharedMLP': lambda cloud, point, channel: (
            (2 * point + channel * GROUPS // CHANNELS) % 4
        ),
        "group norm of each cloud,\nCloudNorm": lambda cloud, point, channel: 2 * cloud + channel * GROUPS // CHANNELS,
    }
    figure, every = plt.subplots(1, 4, figsize=(11, 3.4))
    for axes, (title, color) in zip(every, panels.items(), strict=True):
        top = 0.0
        point = 0
        for cloud, size in enumerate(CLOUDS):
            axes.text(-0.4, top + size / 2, f"cloud {cloud}", ha="right", va="center", rotation=90, fontsize=10)
            for row in range(size):
                for channel in range(CHANNELS):
                    face = COLORS[color(cloud, point, channel)]
                    box = Rectangle((channel, top + row), 1, 1, fc=face, ec="white", lw=1.5, alpha=0.75)
                    axes.add_patch(box)
                point += 1
            top += size + 0.4
        axes.set_title(title, fontsize=10)
        axes.text(CHANNELS / 2, top + 0.2, "8 channels", ha="center", va="center", fontsize=10, color=GRAY)
        axes.set_xlim(-1.2, CHANNELS)
        axes.set_ylim(top + 0.6, 0)
        axes.set_aspect("equal")
        axes.set_axis_off()
    save(figure, "normalization")

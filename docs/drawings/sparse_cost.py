"""Draw the cost of sparse convolution against voxels and channels, from benchmarks/results/sparse_*.json."""

import json

import matplotlib.pyplot as plt

from .style import BLUE, GRAY, ORANGE, ROOT, save_svg

RESULTS = ROOT / "benchmarks" / "results"
LINES = {
    "ours forward": (BLUE, "-", "pointgrad, forward"),
    "ours forward + backward": (BLUE, "--", "pointgrad, forward + backward"),
    "plain forward": (GRAY, "-", "plain PyTorch, forward"),
    "plain forward + backward": (GRAY, "--", "plain PyTorch, forward + backward"),
    "map": (ORANGE, "-", "kernel map"),
}


def draw() -> None:
    """Milliseconds against the number of voxels and of channels: one row for each measured device."""
    found = [(name, RESULTS / f"sparse_{name}.json") for name in ("cpu", "gpu")]
    records = [json.loads(path.read_text()) for _, path in found if path.exists()]
    if not records:
        return
    figure, panels = plt.subplots(len(records), 2, figsize=(11, 3.7 * len(records)), squeeze=False)
    for row, record in zip(panels, records, strict=True):
        machine = record["machine"]
        place = f"one {machine['gpu']}" if "gpu" in machine else f"{machine['threads']} CPU threads"
        for axes, along in zip(row, ("voxels", "channels"), strict=True):
            rows = record[f"by_{along}"]
            for name, (color, style, label) in LINES.items():
                shown = [(each[along], each[name]["median"]) for each in rows if name in each]
                axes.plot(*zip(*shown, strict=True), style, marker="o", markersize=3, color=color, label=label)
            fixed = "channels" if along == "voxels" else "voxels"
            axes.set(xscale="log", yscale="log", xlabel=along)
            axes.set_title(f"submanifold 3³, {rows[0][fixed]:,} {fixed}, {rows[0]['dtype']}\n{place}", fontsize=10)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("milliseconds")
    panels[0, 0].set_ylim(top=8 * panels[0, 0].get_ylim()[1])
    panels[0, 0].legend(frameon=False, fontsize=8, ncol=2, loc="upper left")
    figure.tight_layout()
    save_svg(figure, ROOT / "docs" / "images" / "operators" / "sparse_cost.svg")
    plt.close(figure)

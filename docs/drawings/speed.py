"""Draw the figures of speed and write the tables of docs/benchmarks.md and docs/operators, from benchmarks/results."""

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

from benchmarks import page
from benchmarks.page import load, series
from pointgrad.bench import table

from .style import BLUE, GRAY, GREEN, ORANGE, ROOT, save_svg

IMAGES = ROOT / "docs" / "images"
DEVICES = ("cpu", "gpu")
COLORS = {
    "ours": BLUE, "plain PyTorch": GRAY, "compiled": "#c3cad2", "fpsample": ORANGE, "pykdtree": ORANGE,
    "scipy": GREEN, "faiss": "#a05fb5", "torch_cluster": "#c2453d", "torch_scatter": "#c2453d",
    "torch_points_kernels": "#d9a520", "pytorch3d": "#5aa9c9", "pointops": GREEN, "pointnet2_ops": ORANGE,
}  # fmt: skip
OTHERS = "#6b4f3a"
TIMES = FuncFormatter(lambda value, _: f"{value:g}x")


def where(record: dict) -> str:
    machine = record["machine"]
    return f"one {machine['gpu']}" if "gpu" in machine else f"{machine['threads']} CPU threads"


def rivals(result: dict) -> dict[str, float]:
    """Times of the best plain form, the compiled form and each peer, as multiples of pointgrad's."""
    found = {}
    for kind, name in (("plain", "plain PyTorch"), ("compiled", "compiled")):
        best = next(iter(table.fastest(result, kind).values()), None)
        found |= {name: best["ratio"]} if best else {}
    return found | {name: each["ratio"] for name, each in table.fastest(result, "peer").items()}


def ratios(name: str) -> None:
    """One bar per rival, in two columns."""
    record = load(name)
    work = [(r["name"], rivals(r)) for r in record["rows"] if r["state"] == "timed" and r["family"] != "overhead"]
    work = [(title, bars) for title, bars in work if bars]
    total, left = sum(len(bars) + 1 for _, bars in work), []
    while work and sum(len(bars) + 1 for _, bars in left) < total / 2:
        left.append(work.pop(0))
    heights = [sum(len(bars) + 0.8 for _, bars in part) for part in (left, work)]
    figure, panels = plt.subplots(1, 2, figsize=(14, 0.19 * max(heights) + 1.4))
    seen: dict[str, object] = {}
    every = [ratio for _, bars in left + work for ratio in bars.values()]
    for axes, part in zip(panels, (left, work), strict=True):
        place, ticks = 0.0, []
        for title, bars in part:
            ticks.append((place + (len(bars) - 1) / 2, title))
            for rival, ratio in bars.items():
                # A bar starts at 1: to the right the rival is slower, to the left faster.
                bar = axes.barh(place, ratio - 1, 0.86, left=1, color=COLORS.get(rival, OTHERS))
                seen.setdefault(rival, bar)
                near = "left" if ratio >= 1 else "right"
                text = f" {table.times(ratio)[:-1]} "
                axes.text(ratio, place, text, va="center", ha=near, fontsize=7)
                place += 1
            place += 0.8
        axes.set_yticks([y for y, _ in ticks], [title for _, title in ticks], fontsize=8)
        axes.set_ylim(max(heights) - 0.4, -0.9)
        axes.set(xscale="log", xlim=(min(every) / 3, max(every) * 3))
        axes.axvline(1, color=BLUE, linewidth=1.6)
        axes.xaxis.set_major_formatter(TIMES)
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    top = figure.get_size_inches()[1]
    title = f"time of other libraries as multiples of pointgrad's (blue line): {where(record)}"
    figure.suptitle(title, fontsize=11, y=1 - 0.08 / top)
    corner = (0.5, 1 - 0.24 / top)
    figure.legend(seen.values(), seen, loc="upper center", ncols=9, frameon=False, fontsize=9, bbox_to_anchor=corner)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.55 / top))
    save_svg(figure, IMAGES / f"ratios_{name}.svg")
    plt.close(figure)


def scaling() -> None:
    """Milliseconds against the number of points."""
    figure, panels = plt.subplots(2, 3, figsize=(12, 6.8), sharex=True)
    for row, name in zip(panels, DEVICES, strict=True):
        record = load(f"scaling_{name}")
        for axes, (work, lines) in zip(row, series(record).items(), strict=True):
            for rival, times in lines.items():
                color = COLORS.get(rival, GRAY)
                width, label = (2.4, "pointgrad") if rival == "ours" else (1.4, rival)
                axes.plot(
                    list(times), list(times.values()), "o-", color=color, label=label, linewidth=width, markersize=3
                )
            axes.set(xscale="log", yscale="log")
            axes.set_title(f"{work}\n{where(record)}", fontsize=10)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=9)
    for axes in panels[1]:
        axes.set_xlabel("points")
    for axes in panels[:, 0]:
        axes.set_ylabel("milliseconds")
    figure.tight_layout()
    figure.savefig(IMAGES / "scaling.png", dpi=130, facecolor="white")
    plt.close(figure)


def floors() -> None:
    """Times relative to the lower bound, a copy of the same number of bytes."""
    parts = [(load(name), name) for name in DEVICES]
    rows = [[r for r in record["rows"] if "times_floor" in r and r["family"] != "loss"] for record, _ in parts]
    figure, panels = plt.subplots(1, 2, figsize=(14, 0.42 * max(map(len, rows)) + 1.6))
    for axes, (record, _), work in zip(panels, parts, rows, strict=True):
        longest = 1.0
        for place, result in enumerate(work):
            plain = next(iter(table.fastest(result, "plain").values()), None)
            bars = [(result["times_floor"], BLUE, "pointgrad")]
            bars += [(result["times_floor"] * plain["ratio"], GRAY, "best plain PyTorch")] if plain else []
            for shift, (value, color, label) in zip((-0.2, 0.2), bars, strict=False):
                axes.barh(place + shift, value, 0.38, color=color, label=label if place == 0 else None)
                longest = max(longest, value)
                text = f" {value:.2f}" if value < 10 else f" {value:.0f}"
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
                axes.text(value * 1.02, place + shift, text, va="center", fontsize=7, bbox=box)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(range(len(work)), [result["name"] for result in work], fontsize=8)
        axes.invert_yaxis()
        axes.set(xscale="log", xlim=(0.5, 3 * longest))
        axes.xaxis.set_major_formatter(TIMES)
        axes.set_title(f"time / lower bound, {where(record)} ({record['GB_per_s']:.0f} GB/s)", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    save_svg(figure, IMAGES / "floors.svg")
    plt.close(figure)


def speed() -> None:
    """Farthest point sampling against the fastest peer, for the README."""
    published = {row["name"]: row["ms"] for row in load("published")["rows"]}
    figure, panels = plt.subplots(1, 2, figsize=(12, 3.6))
    work = {
        "gpu": ["32 x 4096 -> 1024", "8 x 16384 -> 4096", "1 x 100k -> 25k"],
        "cpu": ["1 x 4096 -> 1024", "1 x 16384 -> 4096", "1 x 100k -> 25k"],
    }
    for axes, (name, names) in zip(panels, work.items(), strict=True):
        record = load(name)
        rows = {result["name"]: result for result in record["rows"]}
        for place, title in enumerate(names):
            result = rows[f"farthest points {title}"]
            mine = result["implementations"]["ours"]["ms"]["median"]
            rival, best = next(iter(table.fastest(result, "peer").items()), ("", None))
            theirs, label = (best["ms"]["median"], rival) if best else (None, "")
            older = published.get(result["name"], {}) if name == "gpu" else {}
            if older and (theirs is None or min(older.values()) < theirs):
                theirs, label = min(older.values()), f"{min(older, key=older.get)}, separate run"
            axes.barh(place - 0.2, theirs, 0.36, color=GRAY, label="fastest peer" if place == 0 else None)
            axes.barh(place + 0.2, mine, 0.36, color=BLUE, label="pointgrad" if place == 0 else None)
            axes.text(theirs * 1.08, place - 0.2, f"{theirs:.3g} ms ({label})", va="center", fontsize=8)
            text = f"{mine:.3g} ms, {theirs / mine:.0f}x"
            axes.text(mine * 1.08, place + 0.2, text, va="center", fontsize=9, weight="bold")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set(xscale="log", xlabel="milliseconds, logarithmic")
        axes.set_xlim(0.1, 1e6 if name == "gpu" else 2e4)
        axes.set_title(f"farthest point sampling, {where(record)}", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="lower right")
    figure.tight_layout()
    figure.savefig(IMAGES / "speed.png", dpi=130, facecolor="white")
    plt.close(figure)


def draw() -> None:
    for name in DEVICES:
        ratios(name)
    scaling()
    floors()
    speed()
    for path in (page.PAGE, *page.OPERATOR_PAGES):
        path.write_text(page.updated(path))

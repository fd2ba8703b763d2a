"""What the panel shows in words: the legend, the values of a point."""

import html
from collections.abc import Mapping

import numpy as np

from pointgrad.render import Scale, colors
from pointgrad.view.stage import Picked

ROW = '<div style="display:flex;align-items:center;gap:.5em;font-size:.85em;padding:.1em 1em">{}</div>'
SWATCH = '<span style="width:1em;height:1em;border-radius:.2em;flex:none;background:rgb({},{},{})"></span>'
MOST = 40  # rows of a legend


def legend(scale: Scale) -> str:
    """HTML: the classes with their colours and counts, or the range of values."""
    if scale.kind == "rgb":
        return ROW.format("the file's own colours")
    if scale.kind == "value":
        stops = ",".join(f"rgb({r:.0f},{g:.0f},{b:.0f})" for r, g, b in colors.RAMP)
        bar = f'<span style="flex:1;height:1em;border-radius:.2em;background:linear-gradient(90deg,{stops})"></span>'
        return ROW.format(f"{scale.low:.6g} {bar} {scale.high:.6g}")
    total = max(1, sum(scale.counts.values()))
    rows = [
        f'{SWATCH.format(*scale.color(number))}<span style="flex:1">{html.escape(scale.name(number))}</span>'
        f"<span>{count:,}</span><span style='width:3.5em;text-align:right'>{count / total:.1%}</span>"
        for number, count in scale.counts.items()
    ]
    rows = rows[:MOST] + ([f"and {len(rows) - MOST} more"] if len(rows) > MOST else [])
    return "".join(ROW.format(row) for row in rows)


def values(picked: Picked, names: Mapping[int, str]) -> str:
    """Markdown: a row per column of the point."""
    cloud = picked.row.cloud
    rows = {"point": f"{int(picked.row.number[0]):,}"}
    rows |= dict(
        zip("xyz", (f"{value:.6f}".rstrip("0").rstrip(".") for value in cloud.world()[0].tolist()), strict=True)
    )
    classes = {"label": cloud.labels, **{name: cloud.features.get(name) for name in ("prediction",)}}
    for name, column in classes.items():
        if column is not None:
            number = int(column[0])
            rows[name] = f"{names[number]} ({number})" if number in names else str(number)
    for name, column in cloud.features.items():
        if name not in rows:
            rows[name] = ", ".join(_number(value) for value in np.atleast_1d(column[0].numpy()))
    lines = [f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _number(value: np.generic) -> str:
    return f"{float(value):.7g}" if value.dtype.kind == "f" else str(value.item())

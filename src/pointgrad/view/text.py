"""Texts of the cloud page: legend, table of a point's values, error messages."""

import errno
import html
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pointgrad.errors import one_line, printable
from pointgrad.render import Scale, colors
from pointgrad.view.levels import Part

ROW = '<div style="display:flex;align-items:center;gap:.5em;font-size:.85em;padding:.1em 1em">{}</div>'
SWATCH = '<span style="width:1em;height:1em;border-radius:.2em;flex:none;background:rgb({},{},{})"></span>'
MAX_ROWS = 40  # rows of a legend


def legend(scale: Scale, title: str = "") -> str:
    """Legend as HTML: classes with colours and counts, or the range of values."""
    if title:
        return ROW.format(f"<b>{html.escape(title)}: {html.escape(scale.by)}</b>") + legend(scale)
    if scale.kind == "rgb":
        return ROW.format("the colours of the cloud")
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
    rows = rows[:MAX_ROWS] + ([f"and {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else [])
    return "".join(ROW.format(row) for row in rows)


def point_table(row: Part, names: Callable[[str], Mapping[int, str]]) -> str:
    """Values of a point as a Markdown table, one row per column. `names(column)` gives the class names of a column."""
    cloud = row.cloud
    rows = {"point": f"{int(row.number[0]):,}"}
    rows |= dict(
        zip("xyz", (f"{value:.6f}".rstrip("0").rstrip(".") for value in cloud.world()[0].tolist()), strict=True)
    )
    columns = cloud.features if cloud.labels is None else {"label": cloud.labels, **cloud.features}
    for name, column in columns.items():
        values = np.atleast_1d(column[0].numpy())
        known = names(name).get(int(values[0])) if len(values) == 1 and values.dtype.kind in "iu" else None
        numbers = ", ".join(_number(value) for value in values)
        rows[name] = numbers if known is None else f"{known} ({numbers})"
    lines = [f"| {escape_markdown(name)} | {escape_markdown(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def short_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Files by name, with as many of their folders as distinguish them.

    >>> list(short_names([Path("/a/1/scan.ply"), Path("/a/2/scan.ply"), Path("/a/tree.ply")]))
    ['1/scan.ply', '2/scan.ply', 'tree.ply']
    """
    names, left, depth = dict.fromkeys(paths, ""), set(paths), 1
    while left:
        counts = Counter(path.parts[-depth:] for path in names)
        for path in list(left):
            if counts[path.parts[-depth:]] == 1 or depth >= len(path.parts):
                names[path] = printable(Path(*path.parts[-depth:]))
                left.remove(path)
        depth += 1
    return {name: path for path, name in names.items()}


def escape_markdown(text: str) -> str:
    """Escape text for one line of Markdown.

    >>> print(escape_markdown("a_b <i>"))
    a\\_b \\<i\\>
    """
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|$~&!" else letter for letter in one_line(text))


def describe_error(name: str, error: Exception) -> str:
    """Message of an error, prefixed with the name of the file unless the message contains it."""
    text = one_line(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{name}: no space left in {tempfile.gettempdir()} (TMPDIR), which must hold all columns twice"
    return text if name in text else f"{name}: {text}"


def _number(value: np.generic) -> str:
    return f"{float(value):.7g}" if value.dtype.kind == "f" else str(value.item())

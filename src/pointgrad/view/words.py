"""What the panel shows in words: the legend, the values of a point."""

import errno
import html
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from pointgrad.render import Scale, colors
from pointgrad.view.stage import Picked

ROW = '<div style="display:flex;align-items:center;gap:.5em;font-size:.85em;padding:.1em 1em">{}</div>'
SWATCH = '<span style="width:1em;height:1em;border-radius:.2em;flex:none;background:rgb({},{},{})"></span>'
MOST = 40  # rows of a legend


def legend(scale: Scale, title: str = "") -> str:
    """HTML: the classes with their colours and counts, or the range of values."""
    if title:
        return ROW.format(f"<b>{html.escape(title)}: {html.escape(scale.by)}</b>") + legend(scale)
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


def values(picked: Picked, names: Callable[[str], Mapping[int, str]]) -> str:
    """Markdown: a row per column of the point. names: of the classes in a column."""
    cloud = picked.row.cloud
    rows = {"point": f"{int(picked.row.number[0]):,}"}
    rows |= dict(
        zip("xyz", (f"{value:.6f}".rstrip("0").rstrip(".") for value in cloud.world()[0].tolist()), strict=True)
    )
    columns = cloud.features if cloud.labels is None else {"label": cloud.labels, **cloud.features}
    for name, column in columns.items():
        values = np.atleast_1d(column[0].numpy())
        known = names(name).get(int(values[0])) if len(values) == 1 and values.dtype.kind in "iu" else None
        numbers = ", ".join(_number(value) for value in values)
        rows[name] = numbers if known is None else f"{known} ({numbers})"
    lines = [f"| {plain(name)} | {plain(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def plain(text: str) -> str:
    """As it is, in one line of Markdown.

    >>> print(plain("a_b <i>"))
    a\\_b \\<i\\>
    """
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|$~&!" else letter for letter in one_line(text))


def one_line(text: str) -> str:
    """Such that a browser gets it: names of files may hold bytes that are no text.

    >>> print(one_line("a\\n b\\udcff"))
    a b\\xff
    """
    return " ".join(text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").split())


def about(path: Path, error: Exception) -> str:
    """What an error says, with the file that it is about."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{path}: needs room for all of its columns, twice, in {tempfile.gettempdir()} (TMPDIR), which is full"
    text = str(error) or type(error).__name__
    return text if str(path) in text else f"{path}: {text}"


def _number(value: np.generic) -> str:
    return f"{float(value):.7g}" if value.dtype.kind == "f" else str(value.item())

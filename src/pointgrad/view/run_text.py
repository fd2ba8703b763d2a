"""Texts and tables of the run page."""

import base64
import html
import io
from collections.abc import Sequence

import torch
from torch import Tensor

from pointgrad.render import Palette, Scale
from pointgrad.render.palette import Color
from pointgrad.train.evaluation import Evaluation, Example
from pointgrad.view.run_data import RunState
from pointgrad.view.text import ROW, SWATCH, escape_markdown

NUMBERED = 14  # up to this many classes, cells of a confusion matrix contain counts, and columns have names
NAMED = 40  # up to this many classes, rows have names; larger matrices are drawn as an image
RIGHT, WRONG = (31, 95, 168), (192, 57, 43)
PAIRS = 6
LINES = 8  # lines of the log
SHOWN = ("accuracy", "class_accuracy", "miou", "instance_miou")  # metrics of the best epoch
SMALL = '<div style="font-size:.8em;padding:.2em 1em;line-height:1.35">{}</div>'


def header(name: str, state: RunState) -> str:
    """Name, status, progress and best epoch of a run, as Markdown."""
    done = int(state.history[-1]["epoch"]) if state.history else 0
    lines = [f"**{escape_markdown(name)}**: {escape_markdown(state.status)}"]
    if state.history or state.total is not None:
        lines.append(f"Epoch {done}" + (f" of {state.total}" if state.total is not None else ""))
    rows = {int(row["epoch"]): row for row in state.history}
    if state.best_epoch in rows:
        row = rows[state.best_epoch]
        side = "val" if any(key.startswith("val_") for key in row) else "train"
        metrics = [f"{label(key)} {row[f'{side}_{key}']:.4f}" for key in SHOWN if f"{side}_{key}" in row]
        data = "" if side == "val" else " on the training data"
        lines.append(f"Best: epoch {state.best_epoch}, {', '.join(metrics)}{data}")
    return "\n\n".join([*lines, *(f"⚠ {escape_markdown(problem)}" for problem in state.problems)])


def log(lines: Sequence[str]) -> str:
    """Last lines of the log as HTML, newest first."""
    if not lines:
        return SMALL.format("The log is empty.")
    entries = [_entry(line) for line in reversed(lines[-LINES:])]
    return SMALL.format("<b>Log</b>" + "".join(f'<div style="padding-top:.3em">{entry}</div>' for entry in entries))


def _entry(line: str) -> str:
    _, _, rest = line.partition(" ")
    clock, _, text = rest.partition(" ")
    return f'<span style="opacity:.6">{html.escape(clock)}</span> {html.escape(text)}'


def label(name: str) -> str:
    """Readable name of a metric.

    >>> label("val_instance_miou")
    'val instance mIoU'
    """
    return name.replace("_", " ").replace("miou", "mIoU")


def confusion_table(found: Evaluation, palette: Palette | None = None) -> str:
    """Confusion matrix as HTML: rows are true classes, columns predicted classes, shaded by share of the row.

    Names have the colours of their classes beside them.
    """
    counts, classes = found.confusion, [html.escape(name) for name in found.classes]
    colors = list((palette or Palette()).colors(dict(enumerate(found.classes))).values())
    share = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    strength = share.pow(0.6)  # makes a few percent visible
    if len(classes) > NAMED:
        body = _picture(strength)
    elif len(classes) > NUMBERED:
        body = _table(counts, share, strength, classes, colors, f"width:{260 / len(classes):.2f}px", 10)
    else:
        body = _table(counts, share, strength, classes, colors, "width:1.75em;height:1.75em", 11)
    note = "rows: true class, columns: predicted class, in the same order"
    below = note if len(classes) > NAMED else f"{note}; hover over a cell for names and count"
    below = "" if len(classes) <= NUMBERED else SMALL.format(f'<span style="opacity:.6">{below}</span>')
    return f'<div style="overflow-x:auto;padding:0 1em">{body}</div>{below}'


def _table(
    counts: Tensor,
    share: Tensor,
    strength: Tensor,
    classes: Sequence[str],
    colors: Sequence[Color],
    cell: str,
    size: int,
) -> str:
    numbered = len(classes) <= NUMBERED
    rows = []
    if numbered:
        upright = "writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;font-weight:normal;padding:.3em 0"
        corner = "text-align:right;vertical-align:bottom;font-weight:normal;opacity:.6;padding-right:.4em"
        names = "".join(
            f'<th style="{upright};max-height:9em;{_edge("top", color)}">{name}</th>'
            for name, color in zip(classes, colors, strict=True)
        )
        rows.append(f'<tr><th style="{corner}">true ↓ predicted →</th>{names}</tr>')
    for true, name in enumerate(classes):
        cells = []
        for predicted, other in enumerate(classes):
            part, count = float(share[true, predicted]), int(counts[true, predicted])
            hue = ",".join(map(str, RIGHT if true == predicted else WRONG))
            fill = f"rgba({hue},{float(strength[true, predicted]):.2f})" if count else "rgba(128,128,128,.08)"
            ink = ";color:white" if part > 0.4 else ""
            text = _short(count) if numbered and count else ""
            title = f"{name}, predicted as {other}: {count:,} ({part:.1%})"
            cells.append(f'<td title="{title}" style="padding:0;{cell};background:{fill}{ink}">{text}</td>')
        aside = "text-align:right;font-weight:normal;padding:0 .4em 0 0;white-space:nowrap"
        aside += f";{_edge('right', colors[true])}"
        rows.append(f'<tr><th style="{aside}">{name}</th>{"".join(cells)}</tr>')
    look = f"border-collapse:separate;border-spacing:1px;font-size:{size}px;line-height:1.1;text-align:center"
    return f'<table style="{look}">{"".join(rows)}</table>'


def _edge(side: str, color: Color) -> str:
    """CSS of a border in the colour of a class."""
    return f"border-{side}:.6em solid rgb{color}"


def _picture(strength: Tensor) -> str:
    from PIL import Image

    hue = torch.tensor([WRONG]).expand(len(strength), len(strength), 3).clone()
    hue[range(len(strength)), range(len(strength))] = torch.tensor(RIGHT)
    pixels = (255 + (hue - 255) * strength[..., None]).round().to(torch.uint8).numpy()
    memory = io.BytesIO()
    Image.fromarray(pixels).save(memory, "png")
    content = base64.b64encode(memory.getvalue()).decode()
    look = "width:100%;image-rendering:pixelated;border:1px solid rgba(128,128,128,.3)"
    return f'<img alt="confusion matrix" style="{look}" src="data:image/png;base64,{content}">'


def confusion_summary(found: Evaluation) -> str:
    """Epoch, accuracy and the most frequent confusions, as HTML."""
    items = "clouds" if found.task == "classification" else "points"
    counts = found.confusion
    right, total = int(counts.diag().sum()), int(counts.sum())
    epoch = f"Epoch {found.epoch}, " if found.epoch else "Best weights, "
    share = f"{right:,} of {total:,} {items} correct ({_of(right, total)})"
    lines = [f"{epoch}{found.clouds:,} validation clouds: {share}."]
    pairs = most_confused(counts)
    if pairs:
        lines.append("<b>Most frequent confusions</b>")
    for true, predicted, count in pairs:
        names = html.escape(found.classes[true]), html.escape(found.classes[predicted])
        of = int(counts[true].sum())
        lines.append(f"{names[0]} predicted as {names[1]}: {count:,} of {of:,} {items} ({_of(count, of)})")
    return SMALL.format("".join(f'<div style="padding-bottom:.2em">{line}</div>' for line in lines))


def most_confused(counts: Tensor, most: int = PAIRS) -> list[tuple[int, int, int]]:
    """Largest off-diagonal cells as (true, predicted, count), largest first.

    >>> most_confused(torch.tensor([[5, 2], [3, 0]]))
    [(1, 0, 3), (0, 1, 2)]
    """
    wrong = counts.clone().fill_diagonal_(0).reshape(-1)
    order = wrong.argsort(descending=True, stable=True)[:most].tolist()
    classes = len(counts)
    return [(cell // classes, cell % classes, int(wrong[cell])) for cell in order if int(wrong[cell])]


def title(place: int, example: Example, classes: Sequence[str]) -> str:
    """Title of an example in the list. `place` counts from 0, the worst."""
    if example.target.dim():
        return f"{place + 1}. {_percent(example.right)} correct, {_name(example.source)}"
    true, predicted = classes[int(example.target)], classes[int(example.predicted)]
    verdict = f"{true}, correct" if true == predicted else f"{predicted}, not {true}"
    return f"{place + 1}. {verdict} ({_percent(example.confidence)})"


def details(example: Example, classes: Sequence[str]) -> str:
    """Details of an example, as HTML."""
    lines = [f"<b>{html.escape(example.source) or 'a validation cloud'}</b>"]
    if example.target.dim():
        lines.append(f"accuracy: {_percent(example.right)} of the labelled points")
        lines.append(f"mean confidence: {_percent(example.confidence)}")
    else:
        predicted, true = (html.escape(classes[int(each)]) for each in (example.predicted, example.target))
        lines.append(f"predicted: {predicted}, probability {_percent(example.confidence)}")
        lines.append(f"true: {true}, probability {_percent(example.truth)}")
    lines.append(f"{len(example.points):,} points, as the network receives them")
    return SMALL.format("<br>".join(lines))


def legend(example: Example, classes: Sequence[str], palette: Palette | None = None) -> str:
    """Legend of a labelled cloud as HTML: classes with colours and numbers of predicted and true points."""
    scale = Scale("label", "class", names=dict(enumerate(classes)), palette=palette or Palette())
    both = torch.cat([example.target, example.predicted]).unique().tolist()
    columns = '<span style="width:4em;text-align:right">{}</span>' * 2
    rows = [ROW.format(f'<span style="flex:1;opacity:.6">points</span>{columns.format("predicted", "true")}')]
    for number in sorted(both, key=lambda number: number if number >= 0 else len(classes)):
        predicted = int(((example.predicted == number) & (example.target >= 0)).sum())
        counts = columns.format(f"{predicted:,}" if number >= 0 else "", f"{int((example.target == number).sum()):,}")
        name = html.escape(scale.name(number) if number >= 0 else "no label")
        rows.append(ROW.format(f'{SWATCH.format(*scale.color(number))}<span style="flex:1">{name}</span>{counts}'))
    return "".join(rows)


def _name(source: str) -> str:
    """File name of a path; `details` shows the whole path."""
    return source.rpartition("/")[2]


def _percent(share: float) -> str:
    """Percentage with a non-breaking space."""
    return f"{100 * share:.0f}\u00a0%" if share in (0, 1) else f"{100 * share:.1f}\u00a0%"


def _of(part: int, whole: int) -> str:
    return _percent(part / max(whole, 1))


def _short(count: int) -> str:
    """Count in at most four characters.

    >>> _short(987), _short(4321), _short(54321), _short(7654321)
    ('987', '4.3k', '54k', '7.7M')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 10 * size else f"{count / size:.0f}{unit}"
    return str(count)

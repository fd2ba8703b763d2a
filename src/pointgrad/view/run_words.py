"""What the page of a run says in words and tables."""

import base64
import html
import io
from collections.abc import Sequence

import torch
from torch import Tensor

from pointgrad.render import Scale
from pointgrad.train.evaluation import Evaluation, Example
from pointgrad.view.run_data import Moment
from pointgrad.view.words import ROW, SWATCH, plain

NUMBERED = 14  # classes up to which the cells of a confusion matrix hold numbers, and columns have names
NAMED = 40  # and rows have names; of more, it is a picture
RIGHT, WRONG = (31, 95, 168), (192, 57, 43)
PAIRS = 6
LINES = 8  # of the log
SHOWN = ("accuracy", "class_accuracy", "miou", "instance_miou")  # of the best epoch
SMALL = '<div style="font-size:.8em;padding:.2em 1em;line-height:1.35">{}</div>'


def head(name: str, moment: Moment) -> str:
    """Markdown: which run, what it is doing, how far it is, what was best."""
    done = int(moment.history[-1]["epoch"]) if moment.history else 0
    lines = [f"**{plain(name)}**: {plain(moment.state)}"]
    if moment.history or moment.total is not None:
        lines.append(f"Epoch {done}" + (f" of {moment.total}" if moment.total is not None else ""))
    rows = {int(row["epoch"]): row for row in moment.history}
    if moment.best_epoch in rows:
        row = rows[moment.best_epoch]
        side = "val" if any(key.startswith("val_") for key in row) else "train"
        figures = [f"{label(key)} {row[f'{side}_{key}']:.4f}" for key in SHOWN if f"{side}_{key}" in row]
        data = "" if side == "val" else " on the training data"
        lines.append(f"Best: epoch {moment.best_epoch}, {', '.join(figures)}{data}")
    return "\n\n".join([*lines, *(f"⚠ {plain(problem)}" for problem in moment.problems)])


def log(lines: Sequence[str]) -> str:
    """HTML: the last lines of the log, the latest first."""
    if not lines:
        return SMALL.format("The log is empty.")
    entries = [_entry(line) for line in reversed(lines[-LINES:])]
    return SMALL.format("<b>Log</b>" + "".join(f'<div style="padding-top:.3em">{entry}</div>' for entry in entries))


def _entry(line: str) -> str:
    _, _, rest = line.partition(" ")
    clock, _, text = rest.partition(" ")
    return f'<span style="opacity:.6">{html.escape(clock)}</span> {html.escape(text)}'


def label(name: str) -> str:
    """The name of a figure for people.

    >>> label("val_instance_miou")
    'val instance mIoU'
    """
    return name.replace("_", " ").replace("miou", "mIoU")


def confusion(found: Evaluation) -> str:
    """HTML: a table, rows are true classes and columns predicted ones, darker for a larger share of the row."""
    counts, classes = found.confusion, [html.escape(name) for name in found.classes]
    share = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    strength = share.pow(0.6)  # a few percent are seen too
    if len(classes) > NAMED:
        body = _picture(strength)
    elif len(classes) > NUMBERED:
        body = _table(counts, share, strength, classes, f"width:{260 / len(classes):.2f}px", 10)
    else:
        body = _table(counts, share, strength, classes, "width:1.75em;height:1.75em", 11)
    note = "rows: true, columns: predicted, both in the same order"
    below = note if len(classes) > NAMED else f"{note}; point at a cell for its names and number"
    below = "" if len(classes) <= NUMBERED else SMALL.format(f'<span style="opacity:.6">{below}</span>')
    return f'<div style="overflow-x:auto;padding:0 1em">{body}</div>{below}'


def _table(counts: Tensor, share: Tensor, strength: Tensor, classes: Sequence[str], cell: str, size: int) -> str:
    numbered = len(classes) <= NUMBERED
    rows = []
    if numbered:
        upright = "writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;font-weight:normal;padding:.3em 0"
        corner = "text-align:right;vertical-align:bottom;font-weight:normal;opacity:.6;padding-right:.4em"
        names = "".join(f'<th style="{upright};max-height:9em">{name}</th>' for name in classes)
        rows.append(f'<tr><th style="{corner}">true ↓ predicted →</th>{names}</tr>')
    for true, name in enumerate(classes):
        cells = []
        for said, other in enumerate(classes):
            part, count = float(share[true, said]), int(counts[true, said])
            hue = ",".join(map(str, RIGHT if true == said else WRONG))
            fill = f"rgba({hue},{float(strength[true, said]):.2f})" if count else "rgba(128,128,128,.08)"
            ink = ";color:white" if part > 0.4 else ""
            text = _short(count) if numbered and count else ""
            title = f"{name}, predicted as {other}: {count:,} ({part:.1%})"
            cells.append(f'<td title="{title}" style="padding:0;{cell};background:{fill}{ink}">{text}</td>')
        aside = "text-align:right;font-weight:normal;padding:0 .4em 0 0;white-space:nowrap"
        rows.append(f'<tr><th style="{aside}">{name}</th>{"".join(cells)}</tr>')
    look = f"border-collapse:separate;border-spacing:1px;font-size:{size}px;line-height:1.1;text-align:center"
    return f'<table style="{look}">{"".join(rows)}</table>'


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


def confused(found: Evaluation) -> str:
    """HTML: where the weights are from, and which classes are taken for which, most often first."""
    items = "clouds" if found.task == "classification" else "points"
    counts = found.confusion
    right, total = int(counts.diag().sum()), int(counts.sum())
    epoch = f"Epoch {found.epoch}, " if found.epoch else "The best weights, "
    share = f"{right:,} of {total:,} {items} are right ({_of(right, total)})"
    lines = [f"{epoch}{found.clouds:,} validation clouds: {share}."]
    pairs = most_confused(counts)
    if pairs:
        lines.append("<b>Most often confused</b>")
    for true, said, count in pairs:
        names = html.escape(found.classes[true]), html.escape(found.classes[said])
        of = int(counts[true].sum())
        lines.append(f"{names[0]} is called {names[1]}: {count:,} of {of:,} {items} ({_of(count, of)})")
    return SMALL.format("".join(f'<div style="padding-bottom:.2em">{line}</div>' for line in lines))


def most_confused(counts: Tensor, most: int = PAIRS) -> list[tuple[int, int, int]]:
    """(true, predicted, count) of the largest cells beside the diagonal, the largest first.

    >>> most_confused(torch.tensor([[5, 2], [3, 0]]))
    [(1, 0, 3), (0, 1, 2)]
    """
    wrong = counts.clone().fill_diagonal_(0).reshape(-1)
    order = wrong.argsort(descending=True, stable=True)[:most].tolist()
    classes = len(counts)
    return [(cell // classes, cell % classes, int(wrong[cell])) for cell in order if int(wrong[cell])]


def title(place: int, example: Example, classes: Sequence[str]) -> str:
    """Of an example in the list; place: from 0, the worst."""
    if example.target.dim():
        return f"{place + 1}. {_percent(example.right)} right, {_name(example.source)}"
    true, said = classes[int(example.target)], classes[int(example.predicted)]
    verdict = f"{true}, right" if true == said else f"{said}, not {true}"
    return f"{place + 1}. {verdict} ({_percent(example.confidence)} sure)"


def details(example: Example, classes: Sequence[str]) -> str:
    """HTML: what is known of an example."""
    lines = [f"<b>{html.escape(example.source) or 'a validation cloud'}</b>"]
    if example.target.dim():
        lines.append(f"{_percent(example.right)} of its labelled points are right")
        lines.append(f"{_percent(example.confidence)} sure of its labels on average")
    else:
        lines.append(f"predicted: {html.escape(classes[int(example.predicted)])}, {_percent(example.confidence)} sure")
        lines.append(f"true: {html.escape(classes[int(example.target)])}, to which it gives {_percent(example.truth)}")
    lines.append(f"{len(example.points):,} points, as the network gets them")
    return SMALL.format("<br>".join(lines))


def legend(example: Example, classes: Sequence[str]) -> str:
    """HTML: the classes of a labelled cloud with their colours, and how many points are and are called so."""
    scale = Scale("label", "class", names=dict(enumerate(classes)))
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
    """The end of a path, which tells clouds apart."""
    return source if len(source) <= 24 else f"…{source[-23:]}"


def _percent(share: float) -> str:
    """With a space that does not break."""
    return f"{100 * share:.0f}\u00a0%" if share in (0, 1) else f"{100 * share:.1f}\u00a0%"


def _of(part: int, whole: int) -> str:
    return _percent(part / max(whole, 1))


def _short(count: int) -> str:
    """In at most four characters.

    >>> _short(987), _short(4321), _short(54321), _short(7654321)
    ('987', '4.3k', '54k', '7.7M')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 10 * size else f"{count / size:.0f}{unit}"
    return str(count)

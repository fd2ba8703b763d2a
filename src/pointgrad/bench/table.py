"""Results as a table: for a terminal, fitted to its width, and as Markdown."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH = 120  # if the output is not a terminal
NAME, PEERS = 45, 1  # most characters of a row's name, and most peers, in a terminal
TEXT_COLUMNS = ("work", "peers")  # left-aligned
Result = dict[str, Any]


def console() -> Console:
    """A console as wide as the terminal, or `WIDTH` characters if the output is redirected."""
    made = Console()
    return made if made.is_terminal else Console(width=WIDTH)


def ms(value: float) -> str:
    """Milliseconds with three significant digits."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def times(value: float) -> str:
    """A ratio, such as 0.52x, 3.4x or 18x."""
    return f"{value:.2f}x" if value < 1 else f"{value:.1f}x" if value < 10 else f"{value:.0f}x"


def fastest(result: Result, kind: str) -> dict[str, Result]:
    """The timed implementations of a kind, fastest first. A peer with several variants appears once, with its best."""
    timed = [(name, each) for name, each in result["implementations"].items() if each["kind"] == kind and "ms" in each]
    found: dict[str, Result] = {}
    for name, each in sorted(timed, key=lambda pair: pair[1]["ms"]["median"]):
        found.setdefault(name.partition(" ")[0] if kind == "peer" else name, each)
    return found


def _ours(result: Result) -> str:
    return ms(result["implementations"]["ours"]["ms"]["median"])


def _spread(result: Result) -> str:
    spread = result["implementations"]["ours"]["ms"]
    return f"{ms(spread['p10'])}-{ms(spread['p90'])}"


def _best(kind: str) -> Callable[[Result], str]:
    return lambda result: next((times(each["ratio"]) for each in fastest(result, kind).values()), "")


def _peers(result: Result) -> str:
    """Peers with a time, fastest first, then those with wrong results."""
    shown = [f"{name} {times(each['ratio'])}" for name, each in fastest(result, "peer").items()]
    shown += [f"{name} {times(each['ratio'])}" for name, each in fastest(result, "related").items()]
    wrong = {name.partition(" ")[0] for name, each in result["implementations"].items() if each["state"] == "wrong"}
    return ", ".join([*shown, *(f"{name} wrong" for name in sorted(wrong) if name != "ours")])


def _memory(result: Result) -> str:
    return _peak(result["implementations"]["ours"])


def _peak(implementation: Result) -> str:
    peak = implementation["peak_MiB"]
    return "n/a" if peak is None else f"{peak:.0f}" if peak >= 10 else f"{peak:.1f}"


def _share(result: Result) -> str:
    return f"{100 / result['times_floor']:.0f} %" if "times_floor" in result else ""


# Title, content, and the order in which columns are dropped in a narrow terminal; columns with 0 always stay.
COLUMNS: list[tuple[str, Callable[[Result], str], int]] = [
    ("ours ms", _ours, 0),
    ("p10-p90", _spread, 3),
    ("plain", _best("plain"), 0),
    ("compiled", _best("compiled"), 4),
    ("peers", _peers, 0),
    ("MiB", _memory, 1),
    ("limit", _share, 2),
]


def cells(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Titles and lines of the table, with one line for each timed row. Empty columns are left out."""
    timed = [result for result in record["rows"] if result["state"] == "timed"]
    columns = [(title, [make(result) for result in timed]) for title, make, _ in COLUMNS]
    columns = [("work", [result["name"] for result in timed]), *(each for each in columns if any(each[1]))]
    return [title for title, _ in columns], [list(line) for line in zip(*(texts for _, texts in columns), strict=True)]


def show(record: dict[str, Any], console: Console) -> None:
    """Print the table without the columns that do not fit, followed by the remarks."""
    titles, lines = cells(record)
    for line in lines:
        line[0] = _cut(line[0], NAME)
        if "peers" in titles:
            line[titles.index("peers")] = _few(line[titles.index("peers")])
    for _, title in sorted((rank, title) for title, _, rank in COLUMNS if rank):
        if title in titles and _width(titles, lines) > console.width:
            position = titles.index(title)
            titles, *lines = (line[:position] + line[position + 1 :] for line in (titles, *lines))
    spare = console.width - _width(titles, lines)
    for line in lines:
        line[0] = _cut(line[0], max(NAME + min(spare, 0), 12))
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for title in titles:
        made.add_column(title, justify="left" if title in TEXT_COLUMNS else "right", no_wrap=True, overflow="ellipsis")
    for line in lines:
        made.add_row(*map(escape, line))
    if lines:
        console.print(made)
    for text in remarks(record):
        console.print(escape(text), soft_wrap=True, highlight=False)


def show_forms(record: dict[str, Any], console: Console) -> None:
    """Print one line for each form of each row, with its time and memory, and the time of a copy."""
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("work", "form", "ms", "p10-p90", "times", "MiB"):
        made.add_column(title, justify="left" if title in ("work", "form") else "right", no_wrap=True)
    timed = [result for result in record["rows"] if result["state"] == "timed"]
    for result in timed:
        name = _cut(result["name"], NAME + 15)
        for form, each in result["implementations"].items():
            if "ms" in each:
                spread = f"{ms(each['ms']['p10'])}-{ms(each['ms']['p90'])}"
                cells = (ms(each["ms"]["median"]), spread, times(each["ratio"]), _peak(each))
                made.add_row(escape(name), "yours" if form == "ours" else form, *cells)
                name = ""
        made.add_row("", "copy", ms(result["floor_ms"]), "", times(1 / result["times_floor"]), "")
    if timed:
        console.print(made)
        rate = f"{record['GB_per_s']:.0f} GB/s"
        note = f"times: divided by yours; copy: of as many bytes as must pass through memory; a large copy moves {rate}"
        console.print(note, soft_wrap=True, highlight=False)
    for text in unmeasured(record):
        console.print(escape(text), soft_wrap=True, highlight=False)


def _width(titles: list[str], lines: list[list[str]]) -> int:
    return sum(max(map(len, column)) + 1 for column in zip(titles, *lines, strict=True))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _few(text: str) -> str:
    """The fastest peers, and the number of the others."""
    shown = text.split(", ")
    return text if len(shown) <= PEERS else f"{', '.join(shown[:PEERS])} +{len(shown) - PEERS}"


def remarks(record: dict[str, Any]) -> list[str]:
    """Explanation of the table, rows and implementations without a time and the reason, and missing peers."""
    lines = [
        "ours: median time; plain, compiled, peers: their time divided by ours; limit: time of a copy of as many bytes "
        f"divided by ours; a large copy moves {record['GB_per_s']:.0f} GB/s"
    ]
    if record["quick"]:
        lines.append("quick run with tiny inputs: the times are not meaningful")
    lines += unmeasured(record)
    for name, peer in record["peers"].items():
        if peer["version"] is None:
            lines.append(f"{name} {peer['missing']}: {peer['get']}")
    return lines


def unmeasured(record: dict[str, Any]) -> list[str]:
    """Rows and implementations without a time, and the reason."""
    lines = []
    for result in record["rows"]:
        if result["state"] != "timed":
            lines.append(f"{result['name']}: {_STATES[result['state']]}: {result['reason']}")
            continue
        for name, each in result["implementations"].items():
            if each["state"] != "timed":
                lines.append(f"{result['name']}: {name} {_STATES[each['state']]}: {each['reason']}")
    return lines


_STATES = {"wrong": "wrong, not timed", "failed": "failed", "declined": "skipped"}

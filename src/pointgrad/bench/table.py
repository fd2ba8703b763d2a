"""A record as a table: for a terminal, cut to its width, and for a page."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH = 120  # of what is no terminal
NAME, PEERS = 45, 1  # characters of a name and number of peers that a terminal shows
WORDS = ("work", "peers", "asked")
Result = dict[str, Any]


def console() -> Console:
    made = Console()
    return made if made.is_terminal else Console(width=WIDTH)


def ms(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def times(value: float) -> str:
    return f"{value:.2f}x" if value < 1 else f"{value:.1f}x" if value < 10 else f"{value:.0f}x"


def fastest(result: Result, kind: str) -> dict[str, Result]:
    """The timed contestants of a kind, fastest first; of a peer that has several ways the best one."""
    timed = [(name, each) for name, each in result["contestants"].items() if each["kind"] == kind and "ms" in each]
    found: dict[str, Result] = {}
    for name, each in sorted(timed, key=lambda pair: pair[1]["ms"]["median"]):
        found.setdefault(name.partition(" ")[0] if kind == "peer" else name, each)
    return found


def _ours(result: Result) -> str:
    return ms(result["contestants"]["ours"]["ms"]["median"])


def _spread(result: Result) -> str:
    spread = result["contestants"]["ours"]["ms"]
    return f"{ms(spread['p10'])}-{ms(spread['p90'])}"


def _best(kind: str) -> Callable[[Result], str]:
    return lambda result: next((times(each["ratio"]) for each in fastest(result, kind).values()), "")


def _peers(result: Result) -> str:
    """Of those with a time, fastest first, then those that are wrong."""
    shown = [f"{name} {times(each['ratio'])}" for name, each in fastest(result, "peer").items()]
    shown += [f"{name} {times(each['ratio'])}" for name, each in fastest(result, "beside").items()]
    wrong = {name.partition(" ")[0] for name, each in result["contestants"].items() if each["state"] == "wrong"}
    return ", ".join([*shown, *(f"{name} wrong" for name in sorted(wrong) if name != "ours")])


def _memory(result: Result) -> str:
    peak = result["contestants"]["ours"]["peak_MiB"]
    return "n/a" if peak is None else f"{peak:.0f}" if peak >= 10 else f"{peak:.1f}"


def _share(result: Result) -> str:
    return f"{100 / result['times_floor']:.0f} %" if "times_floor" in result else ""


def _asked(result: Result) -> str:
    signs = {"times_faster": "≥ {}x", "ms": "≤ {} ms", "times_floor": "≤ {}x floor", "ms_above": "≤ {} ms over",
             "times_less_memory": "memory ≥ {}x"}  # fmt: skip
    said = []
    for what, each in result.get("asked", {}).items():
        number = each.get("at_least", each.get("at_most"))
        than = f" {each['than']}" if each.get("than") else ""
        said.append(f"{signs[what].format(f'{number:g}')}{than}: {'yes' if each['met'] else 'NO'}")
    return ", ".join(said)


# Title, content, and the order in which columns go where there is no room; 0 stays.
COLUMNS: list[tuple[str, Callable[[Result], str], int]] = [
    ("ours ms", _ours, 0),
    ("p10-p90", _spread, 4),
    ("plain", _best("plain"), 0),
    ("compiled", _best("compiled"), 5),
    ("peers", _peers, 0),
    ("MiB", _memory, 1),
    ("limit", _share, 3),
    ("asked", _asked, 2),
]


def cells(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Titles, and a line for each row that was timed; columns that say nothing are left out."""
    timed = [result for result in record["rows"] if result["state"] == "timed"]
    columns = [(title, [make(result) for result in timed]) for title, make, _ in COLUMNS]
    columns = [("work", [result["name"] for result in timed]), *(each for each in columns if any(each[1]))]
    return [title for title, _ in columns], [list(line) for line in zip(*(texts for _, texts in columns), strict=True)]


def show(record: dict[str, Any], console: Console) -> None:
    """The table, without the columns for which there is no room, then a line for everything that has none."""
    titles, lines = cells(record)
    for line in lines:
        line[0] = _cut(line[0], NAME)
        for title, shorten in (("peers", _few), ("asked", _met)):
            if title in titles:
                line[titles.index(title)] = shorten(line[titles.index(title)])
    for _, title in sorted((rank, title) for title, _, rank in COLUMNS if rank):
        if title in titles and _natural(titles, lines) > console.width:
            place = titles.index(title)
            titles, *lines = (line[:place] + line[place + 1 :] for line in (titles, *lines))
    spare = console.width - _natural(titles, lines)
    for line in lines:
        line[0] = _cut(line[0], max(NAME + min(spare, 0), 12))
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for title in titles:
        made.add_column(title, justify="left" if title in WORDS else "right", no_wrap=True, overflow="ellipsis")
    for line in lines:
        made.add_row(*map(escape, line))
    if lines:
        console.print(made)
    for text in remarks(record):
        console.print(escape(text), soft_wrap=True, highlight=False)


def _natural(titles: list[str], lines: list[list[str]]) -> int:
    return sum(max(map(len, column)) + 1 for column in zip(titles, *lines, strict=True))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _few(text: str) -> str:
    """The fastest peers; the JSON file has all."""
    shown = text.split(", ")
    return text if len(shown) <= PEERS else f"{', '.join(shown[:PEERS])} +{len(shown) - PEERS}"


def _met(text: str) -> str:
    """Whether all that was asked is met; the JSON file says what it was."""
    return "NO" if "NO" in text else "yes" if text else ""


def remarks(record: dict[str, Any]) -> list[str]:
    """How to read the table; rows and contestants without a time, and why; peers that are not there."""
    said = [
        "ours: median milliseconds; others: times ours; limit: the time of a copy that moves as many bytes, in percent "
        f"of ours; a large copy moves {record['GB_per_s']:.0f} GB/s"
    ]
    if record["quick"]:
        said.append("a quick run: tiny inputs, which show that it works, not how fast")
    for result in record["rows"]:
        if result["state"] != "timed":
            said.append(f"{result['name']}: {_STATES[result['state']]}: {result['reason']}")
            continue
        for name, each in result["contestants"].items():
            if each["state"] != "timed":
                said.append(f"{result['name']}: {name} {_STATES[each['state']]}: {each['reason']}")
    for name, peer in record["peers"].items():
        if peer["version"] is None:
            said.append(f"{name} {peer['missing']}: {peer['get']}")
    return said


_STATES = {"wrong": "wrong, not timed", "failed": "failed", "declined": "not asked"}


def markdown(record: dict[str, Any]) -> str:
    """The same lines for a page, all columns."""
    titles, lines = cells(record)
    rule = ["---" if title in WORDS else "---:" for title in titles]
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, rule, *lines))

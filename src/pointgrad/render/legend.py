"""Text in images: titles, class names with their colors, and color bars."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pointgrad.render.colors import Scale, ramp

ROWS = 30  # maximum number of classes in a legend
BAR = 9  # height of a color bar in rows
SHORTEST = 4  # minimum rows of a legend, even in low images


class Title(NamedTuple):
    """A line of text above an image. Without `color`, it has the color of all text."""

    text: str
    color: tuple[int, int, int] | None = None


class Pen:
    """Draws text on images (H, W, 3 or 4), uint8, in the color `ink` and in a font size that fits the image size."""

    def __init__(self, width: int, height: int, ink: tuple[int, int, int]) -> None:
        try:
            from PIL import ImageFont
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "text in images needs pillow: pip install 'pointgrad[view]'", name=error.name
            ) from None
        self.size = max(11, round(min(width, height * 4 / 3) / 64))
        self.row = round(self.size * 1.6)
        self.ink = ink
        self._font: Any = ImageFont.load_default(self.size)

    def length(self, text: str) -> float:
        return float(self._font.getlength(text))

    def title(self, image: np.ndarray, title: Title, left: int, top: int, width: int) -> np.ndarray:
        """Draw a title, centered in `width`."""
        text = title.text
        while len(text) > 1 and self.length(text) > width:  # keep the end, in which file names differ
            text = "…" + text.lstrip("…")[1:]
        start = left + (width - self.length(text)) / 2
        return self._write(image, [(start, top + self.row / 2, text, title.color or self.ink)], [])

    def legend_width(self, scales: Sequence[Scale], most: int) -> int:
        """Width in pixels that `legend` needs; 0 for RGB colors."""
        words = [self.length(head + tail) for scale in scales for head, tail in _entries(scale)]
        return min(round(max(words) + 3.2 * self.size), most) if words else 0

    def legend(self, image: np.ndarray, scales: Sequence[Scale], left: int, width: int) -> np.ndarray:
        """Draw legends one below the other, vertically centered, in the column given by `left` and `width`."""
        rows = [_rows(scale) for scale in scales]
        available = image.shape[0] // self.row - len(scales) + 1
        longest = rows.index(max(rows))
        rows[longest] = max(rows[longest] - max(sum(rows) - available, 0), SHORTEST)
        top = max((image.shape[0] - (sum(rows) + len(rows) - 1) * self.row) // 2, 0)
        for scale, count in zip(scales, rows, strict=True):
            if scale.kind != "rgb":
                draw = self._classes if scale.kind == "class" else self._bar
                image = draw(image, scale, left, top, width, count)
                top += (count + 1) * self.row
        return image

    def _classes(self, image: np.ndarray, scale: Scale, left: int, top: int, width: int, rows: int) -> np.ndarray:
        numbers: list[int | None] = [*_shown(scale, rows), None]
        faint = tuple((2 * part + 150) // 3 for part in self.ink)
        words: list[Any] = []
        boxes: list[tuple[int, int, np.ndarray]] = []
        for line, ((head, tail), number) in enumerate(zip(_entries(scale, rows), numbers, strict=False)):
            y = top + line * self.row
            if number is not None:
                swatch = np.broadcast_to(np.array(scale.color(number), np.uint8), (self.size, self.size, 3))
                boxes.append((left, round(y + (self.row - self.size) / 2), swatch))
            available = width - 2.2 * self.size - self.length(tail)
            words.append((left + 1.5 * self.size, y + self.row / 2, self._short(head, available), self.ink))
            words.append((left + width - self.length(tail), y + self.row / 2, tail, faint))
        return self._write(image, words, boxes)

    def _bar(self, image: np.ndarray, scale: Scale, left: int, top: int, width: int, rows: int) -> np.ndarray:
        (name, _), (high, _), (low, _) = _entries(scale)
        bar = ramp(np.linspace(1, 0, (rows - 2) * self.row), 0, 1)[:, None].repeat(self.size, 1)
        begin, end, text_left = top + 2 * self.row, top + rows * self.row, left + 1.5 * self.size
        available = width - 1.5 * self.size
        words = [
            (left, top + self.row / 2, self._short(name, width), self.ink),
            (text_left, begin + self.size / 2, self._short(high, available), self.ink),
            (text_left, end - self.size / 2, self._short(low, available), self.ink),
        ]
        return self._write(image, words, [(left, begin, bar)])

    def _short(self, text: str, width: float) -> str:
        """Truncate text at its end to fit into `width`."""
        while len(text) > 1 and self.length(text) > width:
            text = text.rstrip("…")[:-1] + "…"
        return text

    def _write(self, image: np.ndarray, words: list[Any], boxes: list[tuple[int, int, np.ndarray]]) -> np.ndarray:
        from PIL import Image, ImageDraw

        out = image.copy()
        for left, top, box in boxes:
            region = out[top : top + len(box), left : left + box.shape[1]]
            region[..., :3] = box[: region.shape[0], : region.shape[1]]
            region[..., 3:] = 255
        picture = Image.fromarray(out)
        draw = ImageDraw.Draw(picture)
        for x, y, text, color in words:
            draw.text((x, y), text, fill=(*color, 255)[: out.shape[2]], font=self._font, anchor="lm")
        return np.asarray(picture)


def _shown(scale: Scale, rows: int) -> list[int]:
    """Return the class numbers to show in a legend, sorted; only the most frequent if there are too many."""
    frequent = sorted(scale.counts, key=lambda number: -scale.counts[number])
    return sorted(frequent if len(frequent) <= rows else frequent[: rows - 1])


def _rows(scale: Scale) -> int:
    """Number of rows that a legend needs."""
    return {"rgb": 0, "class": min(len(scale.counts), ROWS), "value": BAR + 2}[scale.kind]


def _entries(scale: Scale, rows: int = ROWS) -> list[tuple[str, str]]:
    """Return the texts of a legend: name and count of each class, or column name and the bounds of its range."""
    if scale.kind == "rgb":
        return []
    if scale.kind == "value":
        return [(scale.by, ""), *((_number(end, scale.high - scale.low), "") for end in (scale.high, scale.low))]
    shown = _shown(scale, rows)
    entries = [(scale.name(number), _count(scale.counts[number])) for number in shown]
    if rest := len(scale.counts) - len(shown):
        others = sum(scale.counts.values()) - sum(scale.counts[number] for number in shown)
        entries.append((f"and {rest} more", _count(others)))
    return entries


def _count(count: int) -> str:
    return f"{count:,}" if count else ""


def _number(value: float, span: float) -> str:
    """Format with enough digits to resolve a hundredth of the span."""
    if not 1e-6 < span < 1e9:
        return f"{value:,.6g}"
    return f"{value:,.{max(2 - math.floor(math.log10(span)), 0)}f}"

"""Words in pictures: titles, names of classes with their colours, a bar of colours with its range."""

import math
from typing import Any, NamedTuple

import numpy as np

from pointgrad.render.colors import Scale, ramp

ROWS = 30  # classes in a legend
BAR = 9  # rows


class Title(NamedTuple):
    """A line above a picture. color: where it is not that of all words."""

    text: str
    color: tuple[int, int, int] | None = None


class Pen:
    """Writes on an image (H, W, 3 or 4) uint8 of a size that suits it, in the colour `ink`."""

    def __init__(self, width: int, height: int, ink: tuple[int, int, int]) -> None:
        try:
            from PIL import ImageFont
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "words in pictures need pillow: pip install 'pointgrad[view]'", name=error.name
            ) from None
        self.size = max(11, round(min(width, height * 4 / 3) / 64))
        self.row = round(self.size * 1.6)
        self.ink = ink
        self._font: Any = ImageFont.load_default(self.size)

    def length(self, text: str) -> float:
        return float(self._font.getlength(text))

    def title(self, image: np.ndarray, title: Title, left: int, top: int, width: int) -> np.ndarray:
        """In the middle of a width."""
        text = self._short(title.text, width)
        place = left + (width - self.length(text)) / 2
        return self._write(image, [(place, top + self.row / 2, text, title.color or self.ink)], [])

    def legend_width(self, scale: Scale, most: int) -> int:
        """How many pixels across `legend` needs; 0 for colours that explain themselves."""
        if scale.kind == "rgb":
            return 0
        words = max(self.length(head) + self.length(tail) for head, tail in _entries(scale))
        return min(round(words + (3.2 if scale.kind == "class" else 2.6) * self.size), most)

    def legend(self, image: np.ndarray, scale: Scale, left: int, width: int) -> np.ndarray:
        """At half the height. left, width: of the column that it may use."""
        entries = _entries(scale)
        size, row = self.size, self.row
        rows = len(entries) if scale.kind == "class" else BAR + 2
        top = max((image.shape[0] - rows * row) // 2, 0)
        words: list[tuple[float, float, str, tuple[int, int, int]]] = []
        boxes: list[tuple[int, int, np.ndarray]] = []
        if scale.kind == "value":
            (high, _), (low, _), (name, _) = entries
            bar = ramp(np.linspace(1, 0, BAR * row), 0, 1)[:, None].repeat(size, 1)
            boxes.append((left, top + 2 * row, bar))
            words += [
                (left, top + row / 2, self._short(name, width), self.ink),
                (left + 1.5 * size, top + 2 * row + size / 2, self._short(high, width - 1.5 * size), self.ink),
                (left + 1.5 * size, top + (BAR + 2) * row - size / 2, self._short(low, width - 1.5 * size), self.ink),
            ]
            return self._write(image, words, boxes)
        for place, ((head, tail), number) in enumerate(zip(entries, [*_shown(scale), None], strict=False)):
            y = top + place * row
            if number is not None:
                swatch = np.broadcast_to(np.array(scale.color(number), np.uint8), (size, size, 3))
                boxes.append((left, round(y + (row - size) / 2), swatch))
            room = width - 2.2 * size - self.length(tail)
            words.append((left + 1.5 * size, y + row / 2, self._short(head, room), self.ink))
            end = left + width - self.length(tail)
            words.append((end, y + row / 2, tail, tuple((2 * part + 150) // 3 for part in self.ink)))  # type: ignore[arg-type]
        return self._write(image, words, boxes)

    def _short(self, text: str, width: float) -> str:
        """What fits, with the end of the text, which tells files and long names apart."""
        while len(text) > 1 and self.length(text) > width:
            text = "…" + text.lstrip("…")[1:]
        return text

    def _write(self, image: np.ndarray, words: list[Any], boxes: list[tuple[int, int, np.ndarray]]) -> np.ndarray:
        from PIL import Image, ImageDraw

        out = image.copy()
        for left, top, box in boxes:
            room = out[top : top + len(box), left : left + box.shape[1]]
            room[..., :3] = box[: room.shape[0], : room.shape[1]]
            room[..., 3:] = 255
        picture = Image.fromarray(out)
        draw = ImageDraw.Draw(picture)
        for x, y, text, color in words:
            draw.text((x, y), text, fill=(*color, 255)[: out.shape[2]], font=self._font, anchor="lm")
        return np.asarray(picture)


def _shown(scale: Scale) -> list[int]:
    """The classes of a legend by number: the most frequent, if they are many."""
    frequent = sorted(scale.counts, key=lambda number: -scale.counts[number])
    return sorted(frequent if len(frequent) <= ROWS else frequent[: ROWS - 1])


def _number(value: float, span: float) -> str:
    """With as many digits as tell hundredths of the span apart."""
    if not 1e-6 < span < 1e9:
        return f"{value:,.6g}"
    return f"{value:,.{max(2 - math.floor(math.log10(span)), 0)}f}"


def _entries(scale: Scale) -> list[tuple[str, str]]:
    """What a legend says: name and count of each class, or the ends of the range and the name of the column."""
    if scale.kind == "value":
        return [(_number(end, scale.high - scale.low), "") for end in (scale.high, scale.low)] + [(scale.by, "")]
    shown = _shown(scale)
    entries = [(scale.name(number), f"{scale.counts[number]:,}") for number in shown]
    if rest := len(scale.counts) - len(shown):
        entries.append((f"and {rest} more", f"{sum(scale.counts.values()) - sum(scale.counts[n] for n in shown):,}"))
    return entries

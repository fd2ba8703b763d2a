"""Layered drawing of a directed graph without cycles: where each box goes, and how each line runs.

The steps are Sugiyama's: ranks, then an order within each rank with few crossings, then coordinates. A line that spans
several ranks runs through one small place in each of them. All lines out of one node share these places, like a bus, so
that a tensor that is used often does not fill the picture.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP = 18.0  # between neighbours of a rank
PLACE = 6.0  # the width of a line that passes
MOST_PLACES = 10_000  # beyond that the longest lines are cut, and only their ends are drawn
SWEEPS = 8


@dataclass(frozen=True)
class Layout:
    """x: the centre of each box. rank: its row, from 0 at the top.

    lines: for each edge the (x, rank) that it runs through, from source to target; None where it is cut.
    """

    x: list[float]
    rank: list[int]
    lines: list[list[tuple[float, int]] | None]


def layered(widths: Sequence[float], edges: Sequence[tuple[int, int]], side: Sequence[bool]) -> Layout:
    """Places boxes so that lines run down, mostly straight.

    widths: of the boxes. edges: (source, target) with source < target. side: boxes that may stand beside the main line
    (parameters): what keeps a line straight is decided without them.
    """
    count = len(widths)
    rank = _ranks(count, edges, side)
    longest = _longest_span(rank, edges)
    kept = [rank[target] - rank[source] <= longest for source, target in edges]
    drawing = _Drawing(list(widths), list(side), list(rank))
    routes = [drawing.route(*edge) if keep else None for edge, keep in zip(edges, kept, strict=True)]
    drawing.order()
    x = drawing.coordinates()
    lines = [None if route is None else [(x[place], drawing.rank[place]) for place in route] for route in routes]
    return Layout(x[:count], rank, lines)


def _ranks(count: int, edges: Sequence[tuple[int, int]], side: Sequence[bool]) -> list[int]:
    """Everything stands right before its first use, unless it can as well stand right behind what it is computed from.

    The latter keeps the branches of many steps, which meet only at the end, from all standing in the last rank.
    """
    users: list[set[int]] = [set() for _ in range(count)]
    sources: list[set[int]] = [set() for _ in range(count)]
    for source, target in edges:
        users[source].add(target)
        sources[target].add(source)
    rank = [0] * count
    for node in reversed(range(count)):
        rank[node] = min((rank[user] - 1 for user in users[node]), default=0)
    light = list(side)  # parameters, and what one of them is turned into for a single use
    for node in range(count):
        if len(sources[node]) == 1 and len(users[node]) == 1:
            light[node] |= all(light[source] for source in sources[node])
        heavy = [source for source in sources[node] if not light[source]]
        if not light[node] and len(heavy) >= len(users[node]) > 0 and heavy:
            rank[node] = min(rank[node], max(rank[source] for source in heavy) + 1)
    for node in reversed(range(count)):
        if light[node]:
            rank[node] = min((rank[user] - 1 for user in users[node]), default=0)
    top = min(rank, default=0)
    return [value - top for value in rank]


def _longest_span(rank: list[int], edges: Sequence[tuple[int, int]]) -> int:
    """The longest span that can be drawn, together with all shorter ones, in MOST_PLACES."""
    farthest: dict[int, set[int]] = {}
    for source, target in edges:
        farthest.setdefault(source, set()).add(rank[target] - rank[source])
    low, high = 1, max((max(spans) for spans in farthest.values()), default=1)
    while low < high:
        middle = (low + high + 1) // 2
        places = sum(max((s for s in spans if s <= middle), default=1) - 1 for spans in farthest.values())
        low, high = (middle, high) if places <= MOST_PLACES else (low, middle - 1)
    return low


class _Drawing:
    """Boxes and places in ranks, and the segments between neighbouring ranks."""

    def __init__(self, widths: list[float], side: list[bool], rank: list[int]) -> None:
        self.widths, self.side, self.rank = widths, side, rank
        self.boxes = len(widths)
        self.above: list[list[int]] = [[] for _ in widths]
        self.below: list[list[int]] = [[] for _ in widths]
        self.buses: dict[int, list[int]] = {}
        self.position: list[int] = []
        self.layers: list[list[int]] = []

    def route(self, source: int, target: int) -> list[int]:
        bus = self.buses.setdefault(source, [source])
        span = self.rank[target] - self.rank[source]
        while len(bus) < span:
            place = len(self.widths)
            self.widths.append(PLACE)
            self.side.append(False)
            self.rank.append(self.rank[bus[-1]] + 1)
            self.above.append([])
            self.below.append([])
            self._connect(bus[-1], place)
            bus.append(place)
        self._connect(bus[span - 1], target)
        return [*bus[:span], target]

    def _connect(self, upper: int, lower: int) -> None:
        if lower not in self.below[upper]:
            self.below[upper].append(lower)
            self.above[lower].append(upper)

    def order(self) -> None:
        """Sorts each rank by the mean position of its neighbours, down and up in turn, and keeps the best."""
        self.layers = [[] for _ in range(max(self.rank, default=-1) + 1)]
        for node in self._by_depth():
            self.layers[self.rank[node]].append(node)
        self.position = [0] * len(self.widths)
        self._number()
        best, fewest = [layer[:] for layer in self.layers], self._crossings()
        for sweep in range(SWEEPS):
            if not fewest:
                break
            down = sweep % 2 == 0
            for layer in self.layers[1:] if down else self.layers[-2::-1]:
                near = self.above if down else self.below
                layer.sort(key=lambda node: self._mean(node, near[node]))
                for place, node in enumerate(layer):
                    self.position[node] = place
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [layer[:] for layer in self.layers], crossings
        self.layers = best
        self._number()

    def _by_depth(self) -> list[int]:
        """From the outputs up, depth first: what belongs together starts together."""
        seen = [False] * len(self.widths)
        found = []
        stack = [node for node in reversed(range(self.boxes)) if not self.below[node]]
        stack.reverse()
        while stack:
            node = stack.pop()
            if not seen[node]:
                seen[node] = True
                found.append(node)
                stack += reversed(self.above[node])
        return found

    def _number(self) -> None:
        for layer in self.layers:
            for place, node in enumerate(layer):
                self.position[node] = place

    def _mean(self, node: int, neighbours: list[int]) -> float:
        if not neighbours:
            return float(self.position[node])
        return sum(self.position[other] for other in neighbours) / len(neighbours)

    def _crossings(self) -> int:
        """Pairs of segments that cross: inversions between the order above and the order below."""
        total = 0
        for layer in self.layers[:-1]:
            met: list[int] = []
            for node in layer:
                ends = sorted(self.position[other] for other in self.below[node])
                total += sum(len(met) - bisect_left(met, end + 1) for end in ends)
                for end in ends:
                    met.insert(bisect_left(met, end), end)
        return total

    def coordinates(self) -> list[float]:
        """Chains of boxes that stand exactly under each other become blocks, and blocks are pushed together."""
        block = self._blocks()
        number = max(block, default=-1) + 1
        right: list[dict[int, float]] = [{} for _ in range(number)]  # block -> least distance
        for layer in self.layers:
            for left_node, node in pairwise(layer):
                distance = (self.widths[left_node] + self.widths[node]) / 2 + GAP
                one, two = block[left_node], block[node]
                right[one][two] = max(right[one].get(two, 0.0), distance)
        left: list[dict[int, float]] = [{} for _ in range(number)]
        for one, others in enumerate(right):
            for two, distance in others.items():
                left[two][one] = distance
        order = _sorted(right, left)
        x = [0.0] * number
        for one in order:
            x[one] = max((x[other] + distance for other, distance in left[one].items()), default=0.0)
        self._pull(x, order, block, left, right)
        return [x[block[node]] for node in range(len(self.widths))]

    def _blocks(self) -> list[int]:
        """Which nodes share an x: chosen segments become vertical, most important first, where they do not cross."""
        spine = self._spine()
        up: list[int | None] = [None] * len(self.widths)
        for layer in self.layers[:-1]:
            segments = [(node, other) for node in layer for other in self.below[node]]
            segments.sort(key=lambda segment: self._importance(segment[0], segment[1], spine))
            taken: list[tuple[int, int]] = []  # positions (above, below), sorted
            for upper, lower in segments:
                pair = self.position[upper], self.position[lower]
                place = bisect_left(taken, pair)
                before = place == 0 or (taken[place - 1][0] < pair[0] and taken[place - 1][1] < pair[1])
                after = place == len(taken) or (pair[0] < taken[place][0] and pair[1] < taken[place][1])
                if before and after:
                    taken.insert(place, pair)
                    up[lower] = upper
        block = [-1] * len(self.widths)
        number = 0
        for layer in self.layers:
            for node in layer:
                above = up[node]
                block[node] = number if above is None else block[above]
                number += above is None
        return block

    def _spine(self) -> set[int]:
        """The longest chain of boxes down to the last one: it becomes one straight line."""
        depth = [0] * len(self.widths)
        for layer in self.layers:
            for node in layer:
                ahead = max((depth[other] for other in self.above[node]), default=0)
                depth[node] = ahead + (node < self.boxes and not self.side[node])
        spine: set[int] = set()
        next_up = list(range(self.boxes))
        while next_up:
            node = max(next_up, key=lambda other: depth[other])
            spine.add(node)
            next_up = self.above[node]
        return spine

    def _importance(self, upper: int, lower: int, spine: set[int]) -> int:
        """Of a vertical segment, 0 first: the spine, between operators, passing by, at the ends of a long line."""
        if upper in spine and lower in spine:
            return 0
        if self.side[upper]:
            return 4
        passing = (upper >= self.boxes) + (lower >= self.boxes)
        return {0: 1, 2: 2, 1: 3}[passing]

    def _pull(
        self, x: list[float], order: list[int], block: list[int], left: list[dict[int, float]],
        right: list[dict[int, float]],
    ) -> None:  # fmt: skip
        """Moves each block towards what it is connected to, as far as its neighbours leave room."""
        pulls: list[list[tuple[int, float]]] = [[] for _ in x]
        for node, others in enumerate(self.below):
            for other in others:
                if block[node] != block[other]:
                    weight = 1.0 if self.side[node] else 4.0
                    pulls[block[node]].append((block[other], weight))
                    pulls[block[other]].append((block[node], weight))
        for sweep in range(4 * SWEEPS):
            for one in reversed(order) if sweep % 2 == 0 else order:
                if not pulls[one]:
                    continue
                wanted = sum(x[other] * weight for other, weight in pulls[one]) / sum(w for _, w in pulls[one])
                low = max((x[other] + distance for other, distance in left[one].items()), default=-math.inf)
                high = min((x[other] - distance for other, distance in right[one].items()), default=math.inf)
                x[one] = max(low, min(wanted, high))


def _sorted(right: list[dict[int, float]], left: list[dict[int, float]]) -> list[int]:
    """Blocks from left to right."""
    waiting = [len(others) for others in left]
    order = [one for one, count in enumerate(waiting) if not count]
    for one in order:
        for other in right[one]:
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    return order

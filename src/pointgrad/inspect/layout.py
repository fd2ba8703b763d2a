"""Layered drawing of a directed acyclic graph (Sugiyama's method): positions of boxes and lines.

The steps are: assign ranks, order each rank to reduce crossings, assign coordinates. A line that spans several ranks
passes through a waypoint in each rank between. All lines from one node share their waypoints, so that a tensor that is
used many times does not fill the picture.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP = 18.0  # between adjacent boxes in a rank
WAYPOINT_WIDTH = 6.0
MAX_WAYPOINTS = 10_000  # with more, the longest lines are not drawn
SWEEPS = 8


@dataclass(frozen=True)
class Layout:
    """A layout: the center x of each box, its rank (0 at the top), and the (x, rank) points of each edge.

    The points run from source to target; None if the edge is too long to be drawn.
    """

    x: list[float]
    rank: list[int]
    lines: list[list[tuple[float, int]] | None]


def layered(widths: Sequence[float], edges: Sequence[tuple[int, int]], side: Sequence[bool]) -> Layout:
    """Lay out boxes so that lines run downwards and are mostly straight.

    Args:
        widths: Widths of the boxes.
        edges: (source, target) pairs with source < target.
        side: Marks boxes (parameters) that are placed beside the main line and do not determine which lines are
            straight.
    """
    count = len(widths)
    rank = _ranks(count, edges, side)
    longest = _longest_span(rank, edges)
    kept = [rank[target] - rank[source] <= longest for source, target in edges]
    drawing = _Drawing(list(widths), list(side), list(rank))
    routes = [drawing.route(*edge) if keep else None for edge, keep in zip(edges, kept, strict=True)]
    drawing.order()
    x = drawing.coordinates()
    lines = [None if route is None else [(x[node], drawing.rank[node]) for node in route] for route in routes]
    return Layout(x[:count], rank, lines)


def _ranks(count: int, edges: Sequence[tuple[int, int]], side: Sequence[bool]) -> list[int]:
    """Place each box right before its first use, or right after its sources if that does not add length to its lines.

    The latter keeps parallel branches that join only at the end from collecting in the last ranks.
    """
    users: list[set[int]] = [set() for _ in range(count)]
    sources: list[set[int]] = [set() for _ in range(count)]
    for source, target in edges:
        users[source].add(target)
        sources[target].add(source)
    rank = [0] * count
    for node in reversed(range(count)):
        rank[node] = min((rank[user] - 1 for user in users[node]), default=0)
    light = list(side)  # parameters, and operators on a parameter alone with a single use
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
    """The longest span such that lines up to this span need at most MAX_WAYPOINTS."""
    farthest: dict[int, set[int]] = {}
    for source, target in edges:
        farthest.setdefault(source, set()).add(rank[target] - rank[source])
    low, high = 1, max((max(spans) for spans in farthest.values()), default=1)
    while low < high:
        middle = (low + high + 1) // 2
        waypoints = sum(max((s for s in spans if s <= middle), default=1) - 1 for spans in farthest.values())
        low, high = (middle, high) if waypoints <= MAX_WAYPOINTS else (low, middle - 1)
    return low


class _Drawing:
    """Nodes (boxes, then waypoints) in ranks, and the segments between adjacent ranks."""

    def __init__(self, widths: list[float], side: list[bool], rank: list[int]) -> None:
        self.widths, self.side, self.rank = widths, side, rank
        self.boxes = len(widths)
        self.above: list[list[int]] = [[] for _ in widths]
        self.below: list[list[int]] = [[] for _ in widths]
        self.buses: dict[int, list[int]] = {}
        self.position: list[int] = []
        self.layers: list[list[int]] = []

    def route(self, source: int, target: int) -> list[int]:
        """The nodes along an edge, adding waypoints where needed."""
        bus = self.buses.setdefault(source, [source])
        span = self.rank[target] - self.rank[source]
        while len(bus) < span:
            waypoint = len(self.widths)
            self.widths.append(WAYPOINT_WIDTH)
            self.side.append(False)
            self.rank.append(self.rank[bus[-1]] + 1)
            self.above.append([])
            self.below.append([])
            self._connect(bus[-1], waypoint)
            bus.append(waypoint)
        self._connect(bus[span - 1], target)
        return [*bus[:span], target]

    def _connect(self, upper: int, lower: int) -> None:
        if lower not in self.below[upper]:
            self.below[upper].append(lower)
            self.above[lower].append(upper)

    def order(self) -> None:
        """Sort each rank by the mean position of adjacent nodes, alternating down and up, and keep the best order."""
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
                adjacent = self.above if down else self.below
                layer.sort(key=lambda node: self._mean(node, adjacent[node]))
                for position, node in enumerate(layer):
                    self.position[node] = position
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [layer[:] for layer in self.layers], crossings
        self.layers = best
        self._number()

    def _by_depth(self) -> list[int]:
        """Nodes from the outputs up, depth first, so that connected nodes start close together."""
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
            for position, node in enumerate(layer):
                self.position[node] = position

    def _mean(self, node: int, adjacent: list[int]) -> float:
        if not adjacent:
            return float(self.position[node])
        return sum(self.position[other] for other in adjacent) / len(adjacent)

    def _crossings(self) -> int:
        """The number of crossing segments: inversions between the orders of adjacent ranks."""
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
        """The x of each node: vertically aligned nodes form blocks, and blocks are packed from left to right."""
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
        """The block of each node: segments become vertical in order of importance, unless they cross another."""
        spine = self._spine()
        up: list[int | None] = [None] * len(self.widths)
        for layer in self.layers[:-1]:
            segments = [(node, other) for node in layer for other in self.below[node]]
            segments.sort(key=lambda segment: self._importance(segment[0], segment[1], spine))
            taken: list[tuple[int, int]] = []  # positions (above, below), sorted
            for upper, lower in segments:
                pair = self.position[upper], self.position[lower]
                at = bisect_left(taken, pair)
                before = at == 0 or (taken[at - 1][0] < pair[0] and taken[at - 1][1] < pair[1])
                after = at == len(taken) or (pair[0] < taken[at][0] and pair[1] < taken[at][1])
                if before and after:
                    taken.insert(at, pair)
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
        """The longest chain of boxes that ends in the last one, which is drawn as a straight line."""
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
        """Priority of a vertical segment, 0 first: the spine, between boxes, between waypoints, mixed, parameters."""
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
        """Move each block towards the blocks that it is connected to, as far as adjacent blocks allow."""
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
    """The blocks in topological order, from left to right."""
    waiting = [len(others) for others in left]
    order = [one for one, count in enumerate(waiting) if not count]
    for one in order:
        for other in right[one]:
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    return order

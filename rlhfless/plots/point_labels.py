"""Places names beside points so that they overlap neither each other nor the points, as far as there is room.

Inputs are positions in pixels of a plot of about the usual size. Points that lie on each other get one name together. Each name
tries places around its point, near ones first; where all are taken, it takes the one with the least overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LETTER_PX, LINE_PX = 6.6, 15.0  # of 12 px text
TOGETHER_PX = 7.0  # points closer than this cannot be distinguished
MARK_PX = 9.0  # half the size of a marker, with some room
RINGS = (16.0, 30.0, 48.0, 70.0, 96.0)  # distances of a name from its point

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of something, in pixels to the right and down."""


class PointLabel(NamedTuple):
    """A name of one or more points.

    Attributes:
        points: which ones. dx, dy: of the middle of the text from the first point, in pixels to the right and down.
    """

    points: tuple[int, ...]
    text: str
    dx: float
    dy: float


def place_labels(
    x_px: ArrayLike,
    y_px: ArrayLike,
    names: Sequence[str],
    width_px: float,
    height_px: float,
    marks_px: Sequence[tuple[float, float]] = (),
    stretches: Sequence[float] = (1.0,),
) -> tuple[PointLabel, ...]:
    """Return a place for every name.

    Args:
        x_px, y_px: (N,) positions, to the right and down. names: (N,) texts without markup.
        width_px, height_px: of the plot; names stay within it where they fit.
        marks_px: further points (x, y) that no name shall cover.
        stretches: how many times as wide the plot may be drawn, the narrowest first; a place suits all of them.
    """
    at = np.column_stack([np.asarray(x_px, dtype=float), np.asarray(y_px, dtype=float)])
    groups = list(_together(at))
    texts = [" = ".join(names[i] for i in group) for group in groups]
    firsts = [(float(at[group[0]][0]), float(at[group[0]][1])) for group in groups]
    marks = [*((float(x), float(y)) for x, y in at), *marks_px]
    places = place_texts(firsts, texts, width_px, height_px, marks, stretches)
    return tuple(PointLabel(group, text, dx, dy) for group, text, (dx, dy) in zip(groups, texts, places, strict=True))


def line_marks(
    x_px: ArrayLike, y_px: ArrayLike, width_px: float, height_px: float, *, stepped: bool = True
) -> Iterator[tuple[float, float]]:
    """Yield points along a line within the plot, about a letter apart, so that no name is written over it.

    Args:
        x_px, y_px: (N,) its corners, to the right and down. width_px, height_px: of the plot.
        stepped: the line goes across before it goes up or down, as plotly's shape ``hv``.
    """
    corners = list(zip(np.asarray(x_px, dtype=float).tolist(), np.asarray(y_px, dtype=float).tolist(), strict=True))
    if stepped:
        corners = [at for first, then in pairwise(corners) for at in (first, (then[0], first[1]))] + corners[-1:]
    for (x, y), (next_x, next_y) in pairwise(corners):
        for share in np.arange(0.0, 1.0, min(1.0, LINE_PX / max(float(np.hypot(next_x - x, next_y - y)), 1e-9))):
            at = x + share * (next_x - x), y + share * (next_y - y)
            if 0 <= at[0] <= width_px and 0 <= at[1] <= height_px:
                yield at
    yield from corners[-1:]


def place_texts(
    at_px: Sequence[tuple[float, float]],
    texts: Sequence[str],
    width_px: float,
    height_px: float,
    marks_px: Sequence[tuple[float, float]] = (),
    stretches: Sequence[float] = (1.0,),
) -> list[tuple[float, float]]:
    """Return how far the middle of each text is from its point, in pixels to the right and down.

    Args:
        at_px: the points (x, y), to the right and down. texts: without markup but ``<br>``, which breaks lines.
        width_px, height_px, stretches: see ``place_labels``. marks_px: the points (x, y) that no text shall cover.
    """
    plots = [_Plot(stretch, width_px * stretch, height_px, marks_px) for stretch in stretches]
    found = []
    for (x, y), text in zip(at_px, texts, strict=True):
        lines = text.split("<br>")
        half = 0.5 * LETTER_PX * max(map(len, lines)) + 2, 0.5 * LINE_PX * len(lines)
        dx, dy = min(
            _places(*half), key=lambda place: sum(plot.cost(x, y, place[:2], half) for plot in plots) + place[2]
        )[:2]  # fmt: skip
        found.append((dx, dy))
        for plot in plots:
            plot.take(x, y, (dx, dy), half)
    return found


class _Plot:
    """What is taken of a plot of one width, ``stretch`` times the narrowest."""

    def __init__(self, stretch: float, width_px: float, height_px: float, points: Sequence[Sequence[float]]) -> None:
        self._stretch, self._width_px, self._height_px = stretch, width_px, height_px
        self._taken = [(stretch * x - MARK_PX, y - MARK_PX, stretch * x + MARK_PX, y + MARK_PX) for x, y in points]

    def cost(self, x: float, y: float, place: tuple[float, float], half: tuple[float, float]) -> float:
        """Return the overlap of a text beside a point of the narrowest plot; ``half`` of its width and of its height."""
        return _cost(self._box(x, y, place, half), self._taken, self._width_px, self._height_px)

    def take(self, x: float, y: float, place: tuple[float, float], half: tuple[float, float]) -> None:
        """Note that a text is there."""
        self._taken.append(self._box(x, y, place, half))

    def _box(self, x: float, y: float, place: tuple[float, float], half: tuple[float, float]) -> Box:
        middle_x, middle_y = self._stretch * x + place[0], y + place[1]
        return middle_x - half[0], middle_y - half[1], middle_x + half[0], middle_y + half[1]


def _together(at: NDArray[np.float64]) -> Iterator[tuple[int, ...]]:
    """Yield groups of points that lie on each other, from the top down."""
    left = sorted(range(len(at)), key=lambda i: (at[i][1], at[i][0]))
    while left:
        first = left[0]
        group = tuple(i for i in left if np.hypot(*(at[i] - at[first])) <= TOGETHER_PX)
        yield group
        left = [i for i in left if i not in group]


def _places(half_width: float, half_height: float) -> Iterator[tuple[float, float, float]]:
    """Yield (dx, dy, penalty) around a point: right, left, above, below and between them, near ones first."""
    taller = half_height - 0.5 * LINE_PX  # than a line
    for far, ring in enumerate(RINGS):
        for turn, (side, up) in enumerate(((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1))):
            beside = side * (half_width + (ring if not up else 0.5 * ring))
            yield beside, up * (ring + taller), 30.0 * far + turn


def _cost(box: Box, taken: Sequence[Box], width: float, height: float) -> float:
    """Return the area that a text shares with what is there, and that is outside the plot."""
    left, top, right, bottom = box
    shared = sum(
        max(0.0, min(right, r) - max(left, l)) * max(0.0, min(bottom, b) - max(top, t))
        for l, t, r, b in taken  # noqa: E741
    )
    outside = max(0.0, -left) + max(0.0, right - width) + max(0.0, -top) + max(0.0, bottom - height)
    return 10.0 * shared + 200.0 * outside

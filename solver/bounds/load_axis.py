"""The responses of a workload along an axis of their loads, the longest first, cut into cells of similar length.

Units here: one second is the base time ``a`` of an iteration, and one token is the longest response's length. A token with
context k has the load ``(b + c k) / a``. A response has the mean load of its tokens; relative loads are multiples of that mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.model.workload import FloatArray

LEVELS = 12  # relative loads at which prices of a cell's tokens are read
MIN_WIDTH, WIDTH_PER_LOAD, WIDEST_FROM_LOAD = (
    0.003,
    0.03,
    2.0,
)  # a cell at load w: MIN_WIDTH + WIDTH_PER_LOAD * min(w, WIDEST_FROM_LOAD)
CELLS_PER_E_FOLD = 12.0  # cells while lengths fall by a factor of e
MAX_CELLS, MAX_CELLS_PER_RESPONSE = 110, 8  # cells at most, in all and per response


@dataclass(frozen=True, eq=False)
class LoadAxis:
    """Responses of similar length in cells, the longest first.

    Attributes:
        width: (G,) sum of the responses' mean loads. length: (G,) their mean length, weighted by load.
        tokens: (G, ``LEVELS``) tokens times mean load, split over the relative loads ``level`` so that a concave price is
            never read too high. level: (G, ``LEVELS``).
        indivisible: (G,) cells of one response of which no batch takes a share, because all responses have the same load.
        start, pieces: (C,) first response of C <= G groups, and into how many cells of equal width each is cut.
        mean, first, lengths: (N,) mean load, load of the first token and length of every response. growth: of a load, per unit
            of length. token: one token in the unit of lengths.
        work: the load of all tokens.
    """

    width: FloatArray
    length: FloatArray
    tokens: FloatArray
    level: FloatArray
    indivisible: NDArray[np.bool_]
    start: NDArray[np.int64]
    pieces: NDArray[np.int64]
    mean: FloatArray
    first: FloatArray
    growth: float
    lengths: FloatArray
    token: float
    work: float

    @classmethod
    def of(cls, length: FloatArray, context: FloatArray, minorant: tuple[float, float, float], finer: float = 1) -> LoadAxis:
        """Return the axis of (N,) positive lengths and contexts for ``minorant`` (a, b, c); loads must be above 0. Cells are
        ``finer`` times as many."""
        a, b, c = minorant
        order = np.lexsort((context, -length))
        length, context = length[order], context[order]
        first, last = (b + c * context) / a, (b + c * (context + length - 1)) / a
        mean = (first + last) / 2
        cells = min(MAX_CELLS * finer, MAX_CELLS_PER_RESPONSE * len(mean))
        starts = _groups(mean, length, cells, finer)
        count = np.diff(np.append(starts, len(mean)))
        group = np.repeat(np.arange(len(starts)), count)
        low, high = np.minimum.reduceat(first / mean, starts), np.maximum.reduceat(last / mean, starts)
        level = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, LEVELS)
        tokens = np.zeros_like(level)
        np.add.at(tokens, group, _split(first / mean, c / a / mean, length, level[group]) * (mean / length[0])[:, None])
        width, group_load = np.add.reduceat(mean, starts), np.add.reduceat(mean * length, starts) / length[0]
        indivisible = (count == 1) & bool(last.max() - first.min() <= 1e-12 * last.max())
        load_before = np.cumsum(width) - width
        cells_wanted = width / (MIN_WIDTH + WIDTH_PER_LOAD * np.minimum(load_before, WIDEST_FROM_LOAD)) * finer
        pieces = np.where(indivisible, 1, np.maximum(np.rint(cells_wanted * min(1.0, cells / cells_wanted.sum())), 1)).astype(
            np.int64
        )
        return cls(
            np.repeat(width / pieces, pieces), np.repeat(group_load / width, pieces),
            np.repeat(tokens / pieces[:, None], pieces, axis=0), np.repeat(level, pieces, axis=0),
            np.repeat(indivisible, pieces), starts, pieces, mean, first, c / a * float(length[0]),
            length / length[0], 1 / float(length[0]), float(group_load.sum()),
        )  # fmt: skip

    def relative_loads(
        self, begin_s: float = 0.0, end_s: float = np.inf, max_s: float = np.inf
    ) -> tuple[FloatArray, FloatArray]:
        """Return the least and largest relative load, (G,) each, of a token that is decoded between two moments. The schedule
        takes at most ``max_s``.

        A response has decoded at most ``end / (1 + first load)`` tokens by then, and the rest still has to fit into the time
        left.
        """
        rate, all_but_one = 1 / (1 + self.first), self.lengths - self.token
        earliest = np.clip(all_but_one - (max_s - begin_s) * rate, 0.0, None) if np.isfinite(max_s) else 0.0 * rate
        latest = np.minimum(all_but_one, end_s * rate)
        low, high = (self.first + self.growth * tokens for tokens in (earliest, np.maximum(latest, earliest)))
        min_load, max_load = np.minimum.reduceat(low / self.mean, self.start), np.maximum.reduceat(high / self.mean, self.start)
        return np.repeat(min_load, self.pieces), np.repeat(max_load, self.pieces)


def _groups(mean: FloatArray, length: FloatArray, cells: float, finer: float) -> NDArray[np.int64]:
    """Return the first response of each group."""
    load_before = np.cumsum(mean) - mean
    capped = np.minimum(load_before, WIDEST_FROM_LOAD)
    measure = np.log1p(capped * WIDTH_PER_LOAD / MIN_WIDTH) / WIDTH_PER_LOAD + (load_before - capped) / (
        MIN_WIDTH + WIDTH_PER_LOAD * WIDEST_FROM_LOAD
    )
    measure = finer * (measure + CELLS_PER_E_FOLD * np.log(length[0] / length))
    cell = np.floor(measure / max(1.0, (measure[-1] + 1) / cells))
    return np.flatnonzero(np.append(True, np.diff(cell) > 0))


def _split(first: FloatArray, growth: FloatArray, length: FloatArray, level: FloatArray) -> FloatArray:
    """Return (N, ``LEVELS``) weights of each response's tokens, of relative loads ``first + growth * j``, on the levels around
    them: what linear interpolation between levels gives to each."""
    width = (level[:, -1] - level[:, 0])[:, None] / (LEVELS - 1)
    tokens = length[:, None]
    flat = width <= 1e-12
    steps = np.where(growth > 0, growth, 1.0)[:, None]
    begin = np.clip(np.ceil((level - first[:, None]) / steps), 0, tokens)
    above = (tokens - begin) * (first[:, None] - level) + growth[:, None] * (tokens - begin) * (begin + tokens - 1) / 2
    falls = np.diff(above, axis=1) / np.where(flat, 1.0, width)
    weights = np.diff(np.concatenate([-tokens, falls, np.zeros_like(tokens)], axis=1), axis=1)
    flat_weights = np.zeros_like(weights)
    flat_weights[:, 0] = length
    return np.where(flat, flat_weights, weights)

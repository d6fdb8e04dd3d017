"""Lower bound on the seconds of all iterations of any schedule with drafts, with whole actors, in expectation.

The configuration bound of ``solver.bounds.exact_clairvoyant`` with passes in place of tokens. A pass of load u earns the
price of its load. ``solver.bounds.pricing`` bounds by mu what a configuration earns per second, for all loads that a pass
can have: from those of a pass without drafts to those with the most drafts. So all loads and base times of a schedule that
decodes for X add up to at least ``sum over its passes of (u + price) - mu X``. Both rise with u and are concave in it. So a
token with context q counts with ``min_n (u(n, q - n) + price(u(n, q - n))) / e(n)``, as in
``solver.bounds.clairvoyant_drafted``.

Prices are those of the configuration linear programme for passes whose drafts are a third of the longest ones. Any prices
give a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from solver.bounds.configuration_lp import ConfigurationLP
from solver.bounds.exact_clairvoyant import BLEND, MIN_LAM, MIN_SPARE, ROUNDING_MARGIN
from solver.bounds.load_axis import LoadAxis
from solver.bounds.pricing import PriceCurve, max_earnings_per_s
from solver.model.workload import FloatArray, IntArray

SPARES = (1.0, 0.1, 4.0, 0.02)  # times of the programme: longest response alone, plus so many times its time
SAMPLES = 8  # contexts of a response at which its passes are priced; between them a line is below the concave price


@dataclass(frozen=True, eq=False)
class DraftedPrices:
    """Responses with drafts, for one minorant.

    Attributes:
        minorant: a, b, c. tokens_per_pass: (N + 1,) e(n). context, length: (R,), all lengths above 0.
    """

    minorant: tuple[float, float, float]
    tokens_per_pass: FloatArray
    context: FloatArray
    length: FloatArray

    def lines(self) -> list[tuple[float, float]]:
        """Return pairs (seconds, mu): all iterations take at least ``seconds - mu X``."""
        a, b, c = self.minorant
        if not len(self.length) or a <= 0 or b < c or float((b + c * self.context).min()) <= 1e-9 * a:
            return []
        return list(self._lines_of(len(self.tokens_per_pass) // 3))

    def _lines_of(self, draft_tokens: int) -> Iterator[tuple[float, float]]:
        """Yield lines of the prices that suit passes with this draft."""
        a, b, c = self.minorant
        passes = np.maximum(self.length / self.tokens_per_pass[draft_tokens], 1.0)
        axis = LoadAxis.of(passes, self.context, (a, b * (1 + draft_tokens), c))
        axis = replace(axis, indivisible=np.zeros_like(axis.indivisible))
        order = np.lexsort((self.context, -passes))
        program, loads = ConfigurationLP(axis), self._relative_loads(axis, order)
        longest_alone = float((axis.lengths * (1 + axis.mean)).max())
        for time in (longest_alone * (1 + spare) for spare in SPARES):
            dual = program.solve(time)
            if dual is None:
                continue
            spare = 1 / np.maximum(time / axis.length - 1, MIN_SPARE)
            closed_form, fluid = (1 + spare) ** 2 - 1, PriceCurve.fluid()
            candidates = [(PriceCurve(dual.batches[:, 0], dual.batches[:, 1]), dual.price)]
            candidates += [(fluid, share * dual.price + (1 - share) * closed_form) for share in (0.0, BLEND, 1.0)]
            for curve, price in candidates:
                lam = np.maximum.accumulate(curve.multipliers(price)[::-1])[::-1]
                lam = np.maximum(lam, MIN_LAM * max(float(lam[0]), MIN_LAM))
                mu = max_earnings_per_s(axis, curve, lam, loads)
                yield self._paid_s(axis, order, curve, lam) * (1 - ROUNDING_MARGIN), mu * (1 + ROUNDING_MARGIN)

    def _relative_loads(self, axis: LoadAxis, order: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the least and largest relative load, (G,) each, of a pass with any draft."""
        a, b, c = self.minorant
        context, last = self.context[order], (self.context + self.length - 1)[order]
        low, high = (b + c * context) / (a * axis.mean), (b * len(self.tokens_per_pass) + c * last) / (a * axis.mean)
        least, most = np.minimum.reduceat(low, axis.start), np.maximum.reduceat(high, axis.start)
        return np.repeat(least, axis.pieces), np.repeat(most, axis.pieces)

    def _paid_s(self, axis: LoadAxis, order: IntArray, curve: PriceCurve, lam: FloatArray) -> float:
        """Return the least seconds of loads and prices of all tokens. A response is priced in each cell of its group, and
        counts with the mean."""
        a, b, c = self.minorant
        count = np.diff(np.append(axis.start, len(order)))
        group = np.repeat(np.arange(len(axis.start)), count)  # of each response
        pieces = axis.pieces[group]
        response = np.repeat(np.arange(len(order)), pieces)
        first_cell = np.cumsum(axis.pieces) - axis.pieces
        cell = np.arange(len(response)) - np.repeat(np.cumsum(pieces) - pieces - first_cell[group], pieces)
        context, length = self.context[order], self.length[order]
        node = np.floor(context[:, None] + (length - 1)[:, None] * np.linspace(0, 1, SAMPLES))
        weight, price_of = axis.mean[response, None], lam[cell, None]
        least = np.full((len(response), SAMPLES), math.inf)
        for n, tokens in enumerate(self.tokens_per_pass.tolist()):
            load = ((b * (1 + n) + c * (node - n)) / a)[response]
            paid = load + weight * price_of * curve.at(load / (weight * price_of))
            np.minimum(least, paid / tokens, out=least)
        steps = np.diff(node, axis=1)[response]
        between = steps * (least[:, :-1] + least[:, 1:]) / 2 - np.diff(least, axis=1) / 2 * (steps > 0)
        return a * float(((between.sum(axis=1) + least[:, -1]) / pieces[response]).sum())

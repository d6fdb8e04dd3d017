"""Lower bound on the cost of any plan within a makespan, over all sequences of whole actors on any offers (late opening).

Input: ``Items``. A linear relaxation would count with fractions of actors; this bound counts whole ones.

**Statement.** Fix a makespan M and a measure u_i >= 0 of items (sorted, longest first; ``Items`` says what they are and why
loads w_i add up on an actor). Item i is n_i iterations long, has N_i iterations in all its responses and occupies h_i KV tokens
times iterations. Take an actor of offer r, ready after R, whose longest item is the one at position q. It takes items from q on
only, of measure at most

    cap_r(q) = max over p <= q of min((M - R - a n_p) / rho, (M - R) / sigma, (M - R) / kappa)

with rho, sigma, kappa the least of w_i / u_i, (w_i + a N_i / s) / u_i and (w_i + a h_i / K) / u_i over i >= p: it ends by M
and runs at least n_p, (sum N) / s and (sum h) / K iterations. The maximum over p makes cap_r rise with q. Hence in any plan
within M, whatever k: the caps of the actors that open among the k longest items add up to at least u_1 + ... + u_k, for each of
several measures at once. Positions may be blocks of items: a block counts as covered when all of it is, and has the least n,
w / u and so on of its items, which makes caps larger and openings cheaper.

*Claim.* Let a plan's actors, in order of opening, be of offers r_1, r_2, ... . Opening each next actor of this sequence at the
first position that the caps so far do not cover (for any measure) opens none earlier than the plan does, and covers everything.
*Proof* by induction: if the first j - 1 open no earlier than in the plan, their caps are no smaller there. Where they do not
cover k items, the plan, whose caps are no larger, has a further actor among these k. Start, sync and a times the longest item
are then no larger than in the plan. An actor that takes the measure u runs for at least max(a n_q + rho u, sigma u) seconds
besides R, with the least rho and sigma of all items: a convex function of u, so that what all actors cost is at least the least
over all ways to divide the measure among them within their caps. A plan may have further actors, which the cover does not need
but which take work at a lower price. There are as many of each offer as the pools have room for besides the sequence. Each
takes at most its largest cap u and runs for at least R + max(a n + rho u, sigma u), with n of the shortest, so a unit that it
takes costs at least rate * max(rho + (R + a n) / cap, sigma + R / cap). So take the least cost over all sequences that the
pools allow, such further actors included. It is a lower bound of the cost of every plan within M. No sequence that covers
everything means no plan. Sequences are built one actor at a time. Of two with the same actors in another order, one that is no
worse in caps and cost in every measure replaces the other. The same sum for a sequence that does not cover everything yet is
below the cost of all that it can become. Actors that it still needs are further actors, too. So sequences need not be followed
to the end: the least of their sums and of the costs of those that were is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.bounds.late_opening import CostBound
from solver.model.workload import FloatArray, IntArray
from solver.timing.items import Items

WIDTH = 300  # labels of a layer that are followed
NEIGHBOURS = 8  # labels with the same actors, next cheaper ones, that a label is compared with
SLACK = 1e-10  # relative: every comparison errs on the side of a lower bound
SINGLES = 64  # longest items that are positions of their own
BLOCKS, LEAST_BLOCKS = 6144, 256  # of the others: for all offers together, and for each at least
MOST_MEASURES = 16


@dataclass(frozen=True, eq=False)
class Measures:
    """F measures of the items that need an iteration, in B blocks, on R offers. All items measure 1 together.

    A block counts as short as its shortest item and as cheap as its cheapest; its measure is that of all its items.

    Attributes:
        length: (B,) iterations of each block's shortest item.
        covered: (F, B+1) measure of the items before each block, and of all.
        rho, sigma: (R, F, B) the least over a block and all behind it of w_i / u_i, and of what an item adds per u_i to an
            actor whose slots (or whose memory, the larger of the two) are full.
    """

    length: FloatArray
    covered: FloatArray
    rho: FloatArray
    sigma: FloatArray

    @classmethod
    def of(cls, items: Items) -> Measures:
        """Return iterations and the loads of all offers as measures, with their shares of slots and memory where those bind."""
        count = int(items.works.sum())
        loads, steps = items.load[:, :count], items.steps[:count]
        slot_loads = loads + items.base_s[:, None] * steps / items.slots[:, None]
        kv_loads = loads + items.base_s[:, None] * items.occupied[:count] / items.kv_tokens[:, None]
        memory = float(items.held.max(initial=0.0)) * np.minimum(len(items.order), items.slots) > items.kv_tokens
        refills = int((items.problem.workload.iterations > 0).sum()) > int(items.slots.min())
        rows = [steps, *loads, *(slot_loads if refills else []), *(kv_loads if memory.any() else [])]
        scaled = [np.maximum(row / max(float(row.sum()), 1e-300), 1e-15) for row in rows]
        measures = np.array(_different(scaled)[:MOST_MEASURES])  # alike offers have the same measure
        measures = measures / measures.sum(axis=1, keepdims=True)
        wide = max(1, -(-(count - SINGLES) // max(LEAST_BLOCKS, BLOCKS // len(items.offers))))
        first: IntArray = np.concatenate([np.arange(min(SINGLES, count)), np.arange(SINGLES, count, wide)])
        last = np.concatenate([first[1:], np.full(min(1, count), count)]) - 1
        covered = np.concatenate([np.zeros((len(measures), 1)), np.cumsum(measures, axis=1)[:, last]], axis=1)

        def least_after(per: FloatArray) -> FloatArray:
            """Return (R, F, B) least of per_i / u_i over a block and all behind it."""
            if not count:
                return np.zeros((len(per), len(measures), 0))
            ratio = np.minimum.reduceat(per[:, None, :] / measures[None, :, :], first, axis=2)
            return np.asarray(np.minimum.accumulate(ratio[:, :, ::-1], axis=2)[:, :, ::-1])

        # slots and memory as one: both divide the same room, so the larger of the two counts
        sigma = np.maximum(least_after(slot_loads), least_after(kv_loads) if memory.any() else 0.0)
        return cls(items.length[:count].astype(float)[last], covered, least_after(loads), sigma)


def _different(rows: list[FloatArray]) -> list[FloatArray]:
    """Return the rows without those that repeat an earlier one."""
    kept: list[FloatArray] = []
    for row in rows:
        if not any(np.abs(row - other).max(initial=0.0) < 1e-15 for other in kept):
            kept.append(row)
    return kept


class SequenceBound(CostBound):
    """The bound for any offers.

    Args:
        width: labels of a layer that are followed; fewer take less time and bound less tightly. The others count with a lower
            bound on the cost of what they can become.
    """

    def __init__(self, items: Items, least_actors: int | None = None, width: int = WIDTH) -> None:
        super().__init__(items, least_actors)
        self.width = width
        # a source is an offer, started cold or prewarmed
        sources = [(r, 1.0) for r in range(len(items.offers))]
        sources += [(r, 0.0) for r, offer in enumerate(items.offers) if offer.prewarmed]
        self.offer_of = np.array([r for r, _ in sources], dtype=np.int64)
        self.cold = np.array([cold for _, cold in sources])
        of = self.offer_of
        self.ready = items.least_ready_s[of] + self.cold * items.start_s[of]
        self.step = items.base_s[of]
        self.rate = items.rate[of]
        measures = Measures.of(items)
        self.length, self.covered = measures.length, measures.covered
        self.blocks = len(self.length)
        self.rho, self.sigma = measures.rho[of], measures.sigma[of]
        # cost of a unit of measure: (S, F) by loads beside a * longest, and by loads with the iterations that slots make
        none = np.zeros((len(of), len(self.covered)))
        self.by_load = self.rate[:, None] * (self.rho[:, :, 0] if self.blocks else none)
        self.by_slots = self.rate[:, None] * (self.sigma[:, :, 0] if self.blocks else none)
        least = np.maximum(self.by_load, self.by_slots).min(axis=0)
        # all measure at the least of all prices
        self.floor = float((self.covered[:, -1] * least).max(initial=0.0)) * (1 - SLACK)
        self.weights, self.limits = self._rooms()

    def at(self, makespan_s: float, stop_above: float = math.inf, low_s: float = 0.0) -> float:
        """See ``CostBound``."""
        if self.blocks == 0:
            return self._idle(low_s)
        if self.done and self.floor >= stop_above:
            return stop_above * (1 - 1e-9)
        rooms = (makespan_s * (1 + SLACK) - self.ready)[:, None]
        of, total, count = self.offer_of, self.covered[:, -1], self.blocks
        alone = rooms - self.step[:, None] * self.length
        caps = np.maximum(alone, 0.0)[:, None, :] / np.maximum(self.rho, 1e-300)
        caps = np.minimum(caps, np.maximum(rooms, 0.0)[:, :, None] / np.maximum(self.sigma, 1e-300))
        caps = np.maximum.accumulate(np.minimum(caps, 2.0), axis=2) * (1 + SLACK)  # everything measures 1
        # up to `light` of the measure its longest item decides an actor's iterations, beyond it slots and memory do
        steeper = np.maximum(self.sigma[:, :, :1] - self.rho[:, :, :1], 1e-300)
        light = np.minimum(caps, (self.step[:, None] * self.length)[:, None, :] / steeper)
        if self.done:
            opening = self.rate[:, None] * (self.ready[:, None] + self.step[:, None] * self.length)
        else:
            opening = np.broadcast_to((self.rate * (low_s + self.after_s))[:, None], alone.shape)
        sources, measures = len(of), len(total)
        # labels: position, caps per measure, caps per part, source and measure, what opening costs, actors per source
        position: IntArray = np.zeros(1, dtype=np.int64)
        cover: FloatArray = np.zeros((1, measures))
        by_source: FloatArray = np.zeros((1, 2, sources, measures))  # the light part, and all
        cost: FloatArray = np.zeros(1)
        number: IntArray = np.zeros((1, sources), dtype=np.int64)
        best = left = np.inf  # the least cost of a sequence that covers everything; the least bound of labels not followed
        more = np.minimum(caps[:, :, -1], 1.0)  # what one more actor can take of the whole
        further = self._further(opening[:, -1], more)
        unsorted = np.concatenate([self.by_load, np.maximum(self.by_slots, self.by_load), further]).T
        by_price = np.argsort(unsorted, axis=1, kind="stable")
        prices = np.take_along_axis(unsorted, by_price, axis=1)
        while len(position):
            # every label with every source
            allowed = np.all((number[:, None, :] + np.eye(sources, dtype=np.int64)) @ self.weights.T <= self.limits, axis=2)
            allowed &= alone[:, position].T >= 0
            parent, source = np.nonzero(allowed)
            if not len(parent):
                break
            label, where = np.arange(len(parent)), position[parent]
            added = caps[source, :, where]
            cover = cover[parent] + added
            by_source = by_source[parent]
            by_source[label, 0, source] += light[source, :, where]
            by_source[label, 1, source] += added
            cost = cost[parent] + opening[source, where]
            number = number[parent]
            number[label, source] += 1
            nearly = cover * (1 + SLACK)
            reached = [np.searchsorted(self.covered[f], nearly[:, f], side="right") - 1 for f in range(measures)]
            position = np.minimum(np.min(reached, axis=0), count)
            least = self._priced(cost, by_source, number, by_price, prices, more)
            full = position >= count
            if full.any():
                # actors that are missing cost their opening, which `least` may count already as a share of the work
                extra = np.maximum(self.least_actors - number[full].sum(axis=1), 0) * self._idle(low_s)
                best = min(best, float(np.maximum(least[full], cost[full] + self._cheapest(total) + extra).min()))
            going = np.flatnonzero(~full & (least < min(best, stop_above, left if best < np.inf else np.inf)))
            going = going[self._undominated(number[going], by_source[going], cost[going])]
            if len(going) > self.width:
                order = np.argsort(least[going], kind="stable")
                left = min(left, float(least[going[order[self.width]]]))
                going = np.sort(going[order[: self.width]])
            position, cover, by_source = position[going], cover[going], by_source[going]
            cost, number = cost[going], number[going]
        return min(best, stop_above, left) * (1 - 1e-9)

    def _rooms(self) -> tuple[IntArray, IntArray]:
        """Return (L, S) weights of a source's actors in every limit on their numbers, and the (L,) limits.

        These are the GPUs of each pool in parts of every size, prewarmed actors, and the number of all actors.
        """
        items, of = self.items, self.offer_of
        rows: list[tuple[IntArray, int]] = []
        for i, pool in enumerate(items.pools):
            inside = items.pool[of] == i
            for d in range(1, pool.gpus_per_node + 1):
                row = np.where(inside, items.gpus[of] // d, 0)
                if row.any():
                    rows.append((row, pool.nodes * (pool.gpus_per_node // d)))
            if pool.prewarmed:
                rows.append((np.where(inside, 1 - self.cold, 0).astype(np.int64), pool.prewarmed))
        most = items.problem.max_actors
        rows.append((np.ones(len(of), dtype=np.int64), len(items) if most is None else most))
        table = np.unique(np.column_stack([np.array([row for row, _ in rows]), np.array([n for _, n in rows])]), axis=0)
        return table[:, :-1], table[:, -1]

    def _cheapest(self, total: FloatArray) -> float:
        """Return the cost of all work at the least of all prices."""
        return float((total * self.by_load.min(axis=0)).max()) if self.done else 0.0

    def _idle(self, low_s: float) -> float:
        """Return the least cost of one more actor."""
        least = self.items.sync_s[self.offer_of] + self.cold * self.items.start_s[self.offer_of]
        return float((self.rate * (least if self.done else low_s + self.after_s)).min())

    def _further(self, opening: FloatArray, caps: FloatArray) -> FloatArray:
        """Return the (S, F) least price of a unit of measure on an actor beyond the open ones; ``opening`` and ``caps`` are
        those at the last position.

        Such an actor is allocated for R + max(a n + rho u, sigma u) with u at most its largest cap.
        """
        most = np.maximum(caps, 1e-300)
        ready = (self.rate * self.ready)[:, None]
        return np.asarray(np.maximum(self.by_load + opening[:, None] / most, self.by_slots + ready / most))

    def _priced(
        self, cost: FloatArray, by_source: FloatArray, number: IntArray, order: IntArray, prices: FloatArray, caps: FloatArray
    ) -> FloatArray:
        """Return the (labels,) least cost of the actors opened and of any that may open later, needed or not.

        All measure is divided at the least price among the open actors and as many more of each source as the pools allow.

        Args:
            number: (labels, S) actors that are open. order, prices: (F, 3 S) rising prices of the light and the other part of
                open actors and of further ones, and which of them. caps: (S, F) room of one more actor.
        """
        if not self.done:
            return cost
        free = self.limits - number @ self.weights.T
        more = np.full(number.shape, np.inf)
        for weights, room in zip(self.weights, free.T, strict=True):
            takes = weights > 0
            more[:, takes] = np.minimum(more[:, takes], room[:, None] // weights[takes])
        light, whole = by_source[:, 0], by_source[:, 1]
        rooms = np.concatenate([light, whole - light, more[:, :, None] * caps], axis=1)  # (labels, 3 S, F)
        rooms = rooms.transpose(0, 2, 1)[:, np.arange(len(order))[:, None], order]  # (labels, F, 3 S), cheapest first
        before = np.cumsum(rooms, axis=2)
        total = self.covered[:, -1, None]
        taken = np.clip(total - (before - rooms), 0.0, rooms)
        rest = np.maximum(total[:, 0] - before[:, :, -1], 0.0)
        paid = np.einsum("lfs,fs->lf", taken, prices) + rest * prices[:, -1]
        return np.asarray(cost + paid.max(axis=1))

    def _undominated(self, number: IntArray, by_source: FloatArray, cost: FloatArray) -> IntArray:
        """Return the indices of labels without those that another label with the same actors beats in everything.

        Only the next cheaper labels and the cheapest are compared.
        """
        count = len(number)
        if count < 2:
            return np.arange(count)
        order = np.lexsort((cost, *number.T))
        number, flat = number[order], by_source[order].reshape(count, -1)
        fresh = np.concatenate([[True], (number[1:] != number[:-1]).any(axis=1)])
        start = np.maximum.accumulate(np.where(fresh, np.arange(count), 0))
        beaten = np.zeros(count, dtype=bool)
        for back in range(NEIGHBOURS + 1):
            other = np.arange(count) - back if back else start
            asked = np.flatnonzero((other >= start) & (other < np.arange(count)) & ~beaten)
            beaten[asked] = (flat[other[asked]] >= flat[asked]).all(axis=1)
        return np.sort(order[~beaten])

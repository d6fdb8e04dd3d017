"""Lower bound on the cost of any plan within a makespan on several offers, over all sequences of whole actors (late opening).

Input: ``MixedWork``. It counts whole actors where the linear relaxation (``lp_bound``) uses fractions, and treats the
differences between offers more coarsely.

**Statement.** Fix a makespan M and a measure u_i >= 0 of items (sorted, longest first; ``MixedWork`` says what they are and why
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

from dataclasses import replace

import numpy as np

from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray, Workload
from solver.planning.bound import CostBound, PlanLimits
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.load_measures import Measures
from solver.planning.work_budget import WorkBudget

WIDTH = 300  # labels of a layer that are followed
NEIGHBOURS = 8  # labels with the same actors, next cheaper ones, that a label is compared with
SLACK = 1e-10  # relative: every comparison errs on the side of a lower bound
# what a layer of labels takes, and an entry of its largest array (see ``work_budget``)
LAYER_S, ENTRY_S = 6e-4, 2.5e-8


class Sequences:
    """Computes lower bounds of ``work`` from sequences of whole actors.

    Implements ``solver.planning.bound.Bound``.
    """

    def __init__(self, work: MixedWork, limits: PlanLimits | None = None, work_budget: WorkBudget | None = None) -> None:
        self.work, self.work_budget = work, work_budget or WorkBudget()
        self.plan_limits = limits or PlanLimits()
        self.done = self.plan_limits.release == "done"
        ready = work.least_ready_s
        sources = [(r, 1.0) for r in range(len(work.offers))]
        sources += [(r, 0.0) for r, offer in enumerate(work.offers) if work.pools[offer.pool].prewarmed]
        self.offer_of = np.array([r for r, _ in sources], dtype=np.int64)
        self.cold = np.array([cold for _, cold in sources])
        of = self.offer_of
        self.ready = ready[of] + self.cold * work.start_s[of]
        self.step = work.base_s[of]
        self.rate = work.rate[of]
        measures = Measures.of(work, self.work_budget)
        self.first, self.length, self.covered = measures.first, measures.length, measures.covered
        self.blocks = len(self.first)
        self.rho, self.sigma = measures.rho[of], measures.sigma[of]
        # cost of a unit of measure: (S, F) by loads beside a * longest, and by loads with the iterations that slots make
        none = np.zeros((len(of), len(self.covered)))
        self.by_load = self.rate[:, None] * (self.rho[:, :, 0] if self.blocks else none)
        self.by_slots = self.rate[:, None] * (self.sigma[:, :, 0] if self.blocks else none)
        least = np.maximum(self.by_load, self.by_slots).min(axis=0)
        # all measure at the least of all prices
        self.floor = float((self.covered[:, -1] * least).max(initial=0.0)) * (1 - SLACK)
        most = []
        weights = []
        for i, pool in enumerate(work.pools):
            inside = work.pool[of] == i
            for d in range(1, pool.gpus_per_node + 1):
                row = np.where(inside, work.gpus[of] // d, 0)
                if row.any():
                    weights.append(row)
                    most.append(pool.nodes * (pool.gpus_per_node // d))
            if pool.prewarmed:
                weights.append(np.where(inside, 1 - self.cold, 0).astype(np.int64))
                most.append(pool.prewarmed)
        weights.append(np.ones(len(of), dtype=np.int64))
        most.append(len(work) if self.plan_limits.max_actors is None else self.plan_limits.max_actors)
        table = np.unique(np.column_stack([np.array(weights), np.array(most)]), axis=0)
        self.weights, self.limits = table[:, :-1], table[:, -1]

    @classmethod
    def of_case(
        cls, problem: PlanningProblem, case: Workload, work_budget: WorkBudget, work: MixedWork | None = None
    ) -> Sequences:
        """Return the bound of one scenario of a problem, given its ``work`` if that is known.

        Plans are made for the predicted lengths, in which less may have anything to generate than in the scenario.
        """
        single = replace(problem, workload=case)
        limits = PlanLimits.of_problem(single, min(problem.needed_actors, single.needed_actors))
        return cls(work or MixedWork.of(single), limits, work_budget)

    @property
    def shortest_makespan_s(self) -> float:
        """Return a lower bound on the makespan: every item takes its time alone."""
        return self.work.shortest_makespan_s

    @property
    def longest_makespan_s(self) -> float:
        """Return the makespan of everything one after the other on the slowest actor."""
        return self.work.longest_makespan_s

    def at(self, makespan_s: float, stop_above: float = np.inf, low_s: float = 0.0) -> CostBound:
        """Return the least cost for ``makespan_s``, or ``stop_above`` where it is at least that.

        If there are too many sequences or the work budget ends, those not followed count with a lower bound on their cost.
        ``low_s`` is the least makespan of the plans in question; it matters where GPUs are held until the end.
        """
        self.work_budget.spend(LAYER_S)
        rooms = (makespan_s * (1 + SLACK) - self.ready)[:, None]
        of, total, count = self.offer_of, self.covered[:, -1], self.blocks
        if count == 0:
            return CostBound(self._idle(low_s))
        if self.done and self.floor >= stop_above:
            return CostBound(stop_above * (1 - 1e-9))
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
            opening = np.broadcast_to((self.rate * (low_s + self.plan_limits.after_s))[:, None], alone.shape)
        sources, measures = len(of), len(total)
        # labels: position, caps per measure, caps per part, source and measure, what opening costs, actors per source
        position: IntArray = np.zeros(1, dtype=np.int64)
        cover: FloatArray = np.zeros((1, measures))
        by_source: FloatArray = np.zeros((1, 2, sources, measures))  # the light part, and all
        cost: FloatArray = np.zeros(1)
        number: IntArray = np.zeros((1, sources), dtype=np.int64)
        history: list[tuple[IntArray, IntArray, IntArray]] = []
        best, best_at = np.inf, (-1, -1)
        left = np.inf  # the least bound of labels that are not followed
        more = np.minimum(caps[:, :, -1], 1.0)  # what one more actor can take of the whole
        further = self._further(opening[:, -1], more)
        least = self._priced(cost, by_source, total, number, further, more)
        self.work_budget.spend(2 * ENTRY_S * caps.size)
        while len(position):
            if self.work_budget.over:
                left = min(left, float(least.min()))
                break
            # every label with every source
            allowed = np.all((number[:, None, :] + np.eye(sources, dtype=np.int64)) @ self.weights.T <= self.limits, axis=2)
            allowed &= alone[:, position].T >= 0
            parent, source = np.nonzero(allowed)
            self.work_budget.spend(LAYER_S + ENTRY_S * 2 * len(parent) * sources * measures)
            if not len(parent):
                break
            where = position[parent]
            added = caps[source, :, where]
            cover = cover[parent] + added
            by_source = by_source[parent]
            by_source[np.arange(len(parent)), 0, source] += light[source, :, where]
            by_source[np.arange(len(parent)), 1, source] += added
            cost = cost[parent] + opening[source, where]
            number = number[parent]
            number[np.arange(len(parent)), source] += 1
            nearly = cover * (1 + SLACK)
            position = np.min(
                [np.searchsorted(self.covered[f], nearly[:, f], side="right") - 1 for f in range(measures)], axis=0
            )
            position = np.minimum(position, count)
            least = self._priced(cost, by_source, total, number, further, more)
            full = position >= count
            history.append((parent, source, self.first[where]))
            if full.any():
                # actors that are missing cost their opening, which `least` may count already as a share of the work
                extra = np.maximum(self.plan_limits.min_actors - number.sum(axis=1), 0) * self._idle(low_s)
                whole = np.where(full, np.maximum(least, cost + self._cheapest(total) + extra), np.inf)
                j = int(np.argmin(whole))
                if whole[j] < best:
                    best, best_at = float(whole[j]), (len(history) - 1, j)
            going = np.flatnonzero(~full & (least < min(best, stop_above, left if best < np.inf else np.inf)))
            going = going[self._undominated(number[going], by_source[going], cost[going])]
            if len(going) > WIDTH:
                order = np.argsort(least[going], kind="stable")
                left = min(left, float(least[going[order[WIDTH]]]))
                going = np.sort(going[order[:WIDTH]])
            position, cover, by_source = position[going], cover[going], by_source[going]
            cost, number, least = cost[going], number[going], least[going]
            history.append((going, np.full(len(going), -1), np.zeros(len(going), dtype=np.int64)))
        return CostBound(min(best, stop_above, left) * (1 - 1e-9), left < min(best, stop_above), self._actors(history, best_at))

    def _cheapest(self, total: FloatArray) -> float:
        """Return the cost of all work at the least of all prices."""
        return float((total * self.by_load.min(axis=0)).max()) if self.done else 0.0

    def _idle(self, low_s: float) -> float:
        """Return the least cost of one more actor."""
        least = self.work.sync_s[self.offer_of] + self.cold * self.work.start_s[self.offer_of]
        return float((self.rate * (least if self.done else low_s + self.plan_limits.after_s)).min())

    def _further(self, opening: FloatArray, caps: FloatArray) -> FloatArray:
        """Return the (S, F) least price of a unit of measure on an actor beyond the open ones; ``opening`` and ``caps`` are
        those at the last position.

        Such an actor is allocated for R + max(a n + rho u, sigma u) with u at most its largest cap.
        """
        most = np.maximum(caps, 1e-300)
        ready = (self.rate * self.ready)[:, None]
        return np.asarray(np.maximum(self.by_load + opening[:, None] / most, self.by_slots + ready / most))

    def _priced(
        self,
        cost: FloatArray,
        by_source: FloatArray,
        total: FloatArray,
        number: IntArray,
        further: FloatArray,
        caps: FloatArray,
    ) -> FloatArray:
        """Return the (labels,) least cost of the actors opened and of any that may open later, needed or not.

        All measure is divided at the least price among the open actors and as many more of each source as the pools allow.

        Args:
            number: (labels, S) actors that are open; further, caps: (S, F) price and room of one more.
        """
        if not self.done:
            return cost
        free = self.limits - number @ self.weights.T
        more = np.full(number.shape, np.inf)
        for weights, room in zip(self.weights, free.T, strict=True):
            takes = weights > 0
            more[:, takes] = np.minimum(more[:, takes], room[:, None] // weights[takes])
        bound = cost
        for f in range(len(total)):
            prices = np.concatenate([self.by_load[:, f], np.maximum(self.by_slots[:, f], self.by_load[:, f]), further[:, f]])
            order = np.argsort(prices, kind="stable")
            light, whole = by_source[:, 0, :, f], by_source[:, 1, :, f]
            room = np.concatenate([light, whole - light, more * caps[:, f]], axis=1)[:, order]
            before = np.cumsum(room, axis=1)
            taken = np.clip(total[f] - (before - room), 0.0, room)
            rest = np.maximum(total[f] - before[:, -1], 0.0)
            bound = np.maximum(bound, cost + taken @ prices[order] + rest * float(prices.max()))
        return bound

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
        self.work_budget.spend(ENTRY_S * flat.size)
        return np.sort(order[~beaten])

    def _actors(self, history: list[tuple[IntArray, IntArray, IntArray]], at: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        """Return offers and opening positions along the way to a label."""
        layer, j = at
        chosen: list[tuple[int, int]] = []
        while layer >= 0:
            parent, source, where = history[layer]
            if source[j] >= 0:
                chosen.append((int(self.offer_of[source[j]]), int(where[j])))
            j = int(parent[j])
            layer -= 1
        return tuple(reversed(chosen))

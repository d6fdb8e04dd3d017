"""Lower bound on the cost of any plan within a makespan on several offers, from a linear programme.

Inputs: length classes, offers and pools. Notation: items (see ``MixedWork``) fall into classes, 0 the longest. On an actor of
offer r an iteration takes a + b * batch + c * KV tokens and item i brings the load w_ir. The actor has s slots, K KV tokens of
memory and costs ``rate`` a second. It decodes R seconds after its GPUs are allocated: start unless prewarmed, sync, first
prefill call. The model, for plans with makespan at most M:

    c_rm    actors of offer r whose longest item is of class m (apart for cold and prewarmed ones)
    e_rm    iterations of these actors together; x_rm, h_rm: response iterations, KV tokens times iterations of theirs
    y_jr    share of cell j that offer r takes

    (time)    v_rm := (M - R) c_rm - a e_rm  >=  0           (length)  e_rm >= L_m c_rm, L_m the shortest of class m
    (slots)   x_rm <= s e_rm,  beta x_rm <= v_rm             (memory)  h_rm <= K e_rm,  gamma h_rm <= v_rm
    (cover)   sum_r y_jr = 1,  and for every r and k, sums over m <= k and cells of classes up to k:
              sum v_rm >= sum load_jr y_jr,   sum x_rm >= sum tokens_jr y_jr,   sum h_rm >= sum kv_jr y_jr
    (pools)   sum over the offers of a pool of floor(g_r / d) c_rm <= nodes * floor(G / d) for every whole d <= G
    (count)   sum_r c_r0 >= 1, least actors <= sum c_rm <= most actors, prewarmed ones as many as there are

    cost = sum of rate_r (R c_rm + a e_rm) + sum of rate_r load_jr y_jr .

**Every plan within M is a solution that costs no more than the plan.** Put an actor into the class m of its longest item. Let I
be its iterations and W the load of its items. Its batch never exceeds s nor its memory K, so I is at least its longest item,
(sum n) / s and (sum h) / K. It ends by M, so R + a I + W <= M, a call of prefill being in R where every actor makes one. Add up
over the actors of (r, m): (time) holds with v at least their loads. x and h are the sums of their items. beta and gamma are
least loads of items of class m or shorter: per iteration, and per KV token times iteration. An item of class up to k lies on an
actor whose longest is of class up to k. That is (cover): v, x and h of those actors contain it. A share of a cell brings at
least the share times the cell's least numbers (see ``Classes``). (pools): floor is superadditive and an actor's GPUs lie in one
node of G. The actor is held for at least R + a I + W. Where GPUs are held until the end, an actor costs its rate times M_low,
and (time) stays as it is. M_low is the least makespan that the bound is asked for. Dropping that c is whole, or asking for c
within a box only, keeps it a relaxation of the plans in the box.

To stay solvable at every M, shares and counts may fall short at a penalty. A plan within M costs at most the price of all GPUs
for M seconds. So a bound above that proves that there is no plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.model.workload import FloatArray
from solver.planning.bound import PlanLimits
from solver.planning.bound_search import Box
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.length_classes import Classes
from solver.planning.mixed_kinds.parametric_lp import INFINITE, LinearModel
from solver.planning.work_budget import WorkBudget


@dataclass(frozen=True, eq=False)
class LpRelaxed:
    """The relaxation at one makespan.

    ``cost`` is a lower bound (infinite when no plan keeps the makespan); ``actors`` (R, K) their fractional number; ``shares``
    (R, J) of every cell.
    """

    cost: float
    actors: FloatArray
    shares: FloatArray


class Relaxation:
    """The linear programme of the module docstring, built once and solved at many makespans and in many boxes.

    Args:
        classes: the resolution of ``work``.
    """

    def __init__(
        self,
        work: MixedWork,
        classes: Classes,
        limits: PlanLimits | None = None,
        work_budget: WorkBudget | None = None,
    ) -> None:
        self.work, self.classes, self.plan_limits = work, classes, limits or PlanLimits()
        self.done = self.plan_limits.release == "done"
        self.model = LinearModel(work_budget)
        self.top_s = work.longest_makespan_s
        self.whole_rate = sum(
            float(pool.gpus * (work.rate / work.gpus)[work.pool == i].max(initial=0.0)) for i, pool in enumerate(work.pools)
        )
        # a rough cost of everything on the best offer: only how fast shortfalls show depends on it
        self.penalty = 30.0 * float(
            np.min(work.rate * (work.least_ready_s + work.load.sum(axis=1) + work.base_s * work.length[0]))
        )
        self.penalty = max(self.penalty, 1e-3)
        self._rows: dict[tuple[int, int], int] = {}
        self._set: Box = ()
        self._counts: list[list[list[int]]] = []  # [offer][class] -> columns, cold and prewarmed
        self._shares: list[list[int]] = []
        self._build()

    def _build(self) -> None:
        work, classes, model = self.work, self.classes, self.model
        unit = max(1.0, float(work.length[0]))  # iterations are counted in lengths of the longest item
        done, limits = self.done, self.plan_limits
        cells = [np.flatnonzero(classes.class_of == k).tolist() for k in range(len(classes))]
        slots_bind = len(work.order) > int(work.slots.min())
        ready = work.least_ready_s
        for r, offer in enumerate(work.offers):
            a, rate = float(work.base_s[r]), float(work.rate[r])
            warm = work.pools[offer.pool].prewarmed > 0
            readies = [float(ready[r] + work.start_s[r]), *([float(ready[r])] if warm else [])]
            held = float(work.held.max()) * min(len(work.order), int(work.slots[r])) > work.kv_tokens[r]
            families = [(classes.tokens[r], classes.load_per_token[r], float(work.slots[r]))] if slots_bind else []
            if held:
                families.append((classes.kv[r], classes.load_per_kv[r], float(work.kv_tokens[r])))
            most_time = offer.max_actors * self.top_s
            shares = [
                model.column(0.0, float(classes.allowed[r, j]), rate * float(classes.load[r, j]) if done else 0.0)
                for j in range(len(classes.class_of))
            ]
            counts: list[list[int]] = []
            before: list[int] = []
            for k in range(len(classes)):
                length = float(classes.least[k])
                top = float(offer.max_actors) if work.allowed[r, classes.edges[k] : classes.edges[k + 1]].any() else 0.0
                count = [model.column(0.0, top, rate * (R + a * length) if done else 0.0) for R in readies]
                counts.append(count)
                # iterations beyond L_m c, which only slots and memory can ask for
                more = model.column(0.0, most_time / max(a, 1e-9) / unit if families else 0.0, rate * a * unit if done else 0.0)
                free = [(c, -R - a * length, 1.0) for c, R in zip(count, readies, strict=True)] + [(more, -a * unit, 0.0)]
                rest = [model.column(0.0, most_time)]
                model.row(
                    0.0, 0.0,
                    free + [(j, -float(classes.load[r, c]), 0.0) for c in cells[k] for j in [shares[c]]]
                    + [(rest[0], -1.0, 0.0)] + ([(before[0], 1.0, 0.0)] if before else []),
                )  # fmt: skip
                if not families:
                    model.row(0.0, INFINITE, free)
                for f, (amounts, per_load, room) in enumerate(families):
                    # amounts are counted in what one actor could do at most in a unit of iterations
                    scale = unit * room
                    most_amount = most_time / max(a, 1e-9) / unit
                    taken = model.column(0.0, most_amount)
                    rest.append(model.column(0.0, most_amount))
                    model.row(0.0, INFINITE, [(taken, -1.0, 0.0), (more, 1.0, 0.0), *((c, length / unit, 0.0) for c in count)])
                    model.row(0.0, INFINITE, [*free, (taken, -float(per_load[k]) * scale, 0.0)])
                    model.row(
                        0.0, 0.0,
                        [(taken, 1.0, 0.0), (rest[-1], -1.0, 0.0)]
                        + [(shares[c], -float(amounts[c]) / scale, 0.0) for c in cells[k]]
                        + ([(before[f + 1], 1.0, 0.0)] if before else []),
                    )  # fmt: skip
                before = rest
            self._shares.append(shares)
            self._counts.append(counts)
        offers = range(len(work.offers))
        for j in range(len(classes.class_of)):
            short = model.column(0.0, 1.0, self.penalty)
            model.row(1.0, 1.0, [(short, 1.0, 0.0), *((self._shares[r][j], 1.0, 0.0) for r in offers)])
        for i, pool in enumerate(work.pools):
            of_pool = [r for r in offers if work.pool[r] == i]
            seen = set()
            for d in range(1, pool.gpus_per_node + 1):
                weights = tuple(int(work.gpus[r]) // d for r in of_pool)
                room = pool.nodes * (pool.gpus_per_node // d)
                if any(weights) and (weights, room) not in seen:
                    seen.add((weights, room))
                    model.row(-INFINITE, room, [(c, float(g), 0.0) for r, g in zip(of_pool, weights, strict=True)
                                                for cs in self._counts[r] for c in cs if g])  # fmt: skip
            if pool.prewarmed:
                model.row(-INFINITE, pool.prewarmed, [(cs[1], 1.0, 0.0) for r in of_pool for cs in self._counts[r]])
        self._limit((-1, 0), 1.0, INFINITE)
        self._limit((-1, len(classes) - 1), float(max(1, limits.min_actors)), float(limits.max_actors or INFINITE))
        self._always = {key: self.model.sides(row) for key, row in self._rows.items()}

    def _limit(self, key: tuple[int, int], low: float, high: float) -> None:
        """Limit the number of actors of an offer (-1: of all) whose longest item is of a class up to the given one."""
        if key not in self._rows:
            short = self.model.column(0.0, 1e3, self.penalty)
            offers = range(len(self.work.offers)) if key[0] < 0 else [key[0]]
            entries = [(c, 1.0, 0.0) for r in offers for cs in self._counts[r][: key[1] + 1] for c in cs]
            self._rows[key] = self.model.row(low, high, [(short, 1.0, 0.0), *entries])
        else:
            self.model.set_row(self._rows[key], low, high)

    def at(self, makespan_s: float, box: Box = (), low_s: float = 0.0) -> LpRelaxed:
        """Return the least cost of plans with makespan at most ``makespan_s``, and at least ``low_s``, whose counts
        are in ``box``."""
        work, classes = self.work, self.classes
        for key, _ in self._set:
            self._limit(key, *self._always.get(key, (-INFINITE, INFINITE)))
        for key, (low, high) in box:
            least, most = self._always.get(key, (-INFINITE, INFINITE))
            self._limit(key, max(low, least), min(high, most))
        self._set = box
        makespan_s = min(makespan_s, self.top_s)
        ready = work.least_ready_s
        for r, offer in enumerate(work.offers):
            for k, columns in enumerate(self._counts[r]):
                for column, extra in zip(columns, (float(work.start_s[r]), 0.0), strict=False):
                    # an actor needs time for one item of its class; beside rounding, an exact bound on the column
                    fits = makespan_s * (1 + 1e-9) >= ready[r] + extra + work.base_s[r] * classes.least[k]
                    fits = fits and work.allowed[r, classes.edges[k] : classes.edges[k + 1]].any()
                    self.model.set_column(column, 0.0, float(offer.max_actors) if fits else 0.0)
                    if not self.done:
                        self.model.set_cost(column, float(work.rate[r]) * (low_s + self.plan_limits.after_s))
        solved = self.model.solve(makespan_s * (1 + 1e-12))
        cost = max(0.0, solved.bound)
        held_s = makespan_s if self.done else math.inf
        if held_s < self.top_s and cost > self.whole_rate * held_s * (1 + 1e-9):
            cost = math.inf
        values = solved.values
        actors = np.array([[sum(values[c] for c in cs) for cs in counts] for counts in self._counts])
        return LpRelaxed(cost, actors, np.array([values[shares] for shares in self._shares]))

"""Few items on few actors: CP-SAT assigns single items, with a bound.

    x[i,j]   whether actor j takes item i;  lead[j] iterations of its longest item;  busy[j], makespan
    lead[j] >= n_i x[i,j]
    busy[j] >= ready + a lead[j] + sum w x,  >= ready + sum (w + a N / s) x,  >= ready + sum (w + a h / K) x

Actors that refill their slots may take longer than this. So the model is a relaxation, and plans are timed exactly afterwards.
Its bound holds for every plan if no other number of actors is left out.

**A product as objective.** ``T^w C^(1-w)`` is at most ``w T / T_0 + (1-w) C / C_0`` times ``T_0^w C_0^(1-w)``, with equality at
T_0 and C_0 (weighted means). The sum is minimised with time and cost of the best plan so far as T_0 and C_0. So a plan whose
sum is below 1 is better than that plan. Where every plan's sum is at least L, time at least T_1 and cost at least C_1, the
product is least at an end of the line on which the sum is L, because it is concave along it: at T_1 or at C_1. That is the
bound.

All coefficients are rounded so that the model stays a relaxation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from solver.generation.plan_values import ValuedPlan
from solver.generation.repairs import ItemsOf
from solver.model.cp_sat import cp_solver
from solver.model.workload import IntArray
from solver.timing.items import Items
from solver.timing.step_cost import StepObjective

MOST_ITEMS, MOST_PAIRS, MOST_ACTORS = 64, 260, 8
UNIT = 1 << 24  # parts into which the longest makespan, divided by the number of actors, is divided
WHOLE = 10_000  # the largest coefficient of a sum of costs
LARGEST = 1 << 60
SECONDS = 0.3  # of CP-SAT's deterministic time


def actor_counts(items: Items, plan: ValuedPlan) -> tuple[list[int], bool] | None:
    """Return how many actors of each offer CP-SAT may start, and whether these are all that may be; None if it is too much."""
    problem = items.problem
    if len(items) > MOST_ITEMS or problem.release != "done":
        return None
    limit = len(items) if problem.max_actors is None else min(len(items), problem.max_actors)
    most = [min(offer.max_actors, limit) for offer in problem.offers]
    counts = most
    if sum(most) > MOST_ACTORS:
        used = [sum(r == offer for offer, _ in plan.actors) for r in range(len(most))]
        counts = [min(m, n + 1) for m, n in zip(most, used, strict=True)]
    if sum(counts) > MOST_ACTORS or len(items) * sum(counts) > MOST_PAIRS:
        return None
    return counts, counts == most


class FewItems:
    """The model of one problem.

    Args:
        counts: how many actors of each offer there may be. plan: the best plan so far, where the search begins.
    """

    def __init__(self, items: Items, goal: StepObjective, counts: list[int], plan: ValuedPlan, of: ItemsOf) -> None:
        from ortools.sat.python import cp_model

        self._cp, self.items, self.goal, self.best, self.of = cp_model, items, goal, plan, of
        self.actors = [r for r, n in enumerate(counts) for _ in range(n)]
        self.scale = UNIT / max(items.longest_makespan_s / max(1, len(self.actors)), 1e-9)
        self.model = cp_model.CpModel()
        self.top = int(items.longest_makespan_s * self.scale) + 1
        self.takes: list[list[Any]] = []
        self.opened: list[Any] = []
        self.busy: list[Any] = []
        self.makespan = self.model.new_int_var(0, self.top, "makespan")
        self._add_actors(plan)
        self._add_limits()

    def _units(self, seconds: float) -> int:
        """Return seconds in the model's unit, rounded down."""
        return math.floor(seconds * self.scale)

    def _add_actors(self, plan: ValuedPlan) -> None:
        items, model, problem = self.items, self.model, self.items.problem
        hints = sorted(((r, self.of.of(group)) for r, group in plan.actors), key=lambda one: (one[0], int(one[1][0])))
        for j, r in enumerate(self.actors):
            k = next((k for k, (offer, _) in enumerate(hints) if offer == r), None)
            mine = set() if k is None else set(hints.pop(k)[1].tolist())
            x, on = [model.new_bool_var("") for _ in range(len(items))], model.new_bool_var("")
            base = float(items.base_s[r])
            lead = model.new_int_var(0, self._units(base * items.length[0]) + 1, "")
            warm = problem.cluster.pools[int(items.pool[r])].prewarmed > 0
            ready = self._units(items.least_ready_s[r] + (0.0 if warm else items.start_s[r]))
            busy = model.new_int_var(0, self.top, "")
            for i, take in enumerate(x):
                model.add_implication(take, on)
                model.add(lead >= self._units(base * items.length[i])).only_enforce_if(take)
                if not items.allowed[r, i]:
                    model.add(take == 0)
                model.add_hint(take, i in mine)
            model.add_bool_or([*x, on.negated()])
            model.add_hint(on, bool(mine))
            sums: list[tuple[Any, Any]] = [(items.load[r], lead)]
            if len(items.order) > items.slots[r]:
                sums.append((items.load[r] + base * items.steps / items.slots[r], 0))
            if items.held.max() * min(len(items.order), items.slots[r]) > items.kv_tokens[r]:
                sums.append((items.load[r] + base * items.occupied / items.kv_tokens[r], 0))
            for seconds, more in sums:
                parts = self._cp.LinearExpr.weighted_sum(x, [self._units(s) for s in seconds])
                model.add(busy >= ready * on + more + parts)
            model.add(self.makespan >= busy)
            if j and self.actors[j - 1] == r:  # actors of an offer are alike
                model.add_implication(on, self.opened[j - 1])
            self.takes.append(x)
            self.opened.append(on)
            self.busy.append(busy)
        for i in range(len(items)):
            model.add_exactly_one([x[i] for x in self.takes])

    def _add_limits(self) -> None:
        items, problem = self.items, self.items.problem
        for i, pool in enumerate(problem.cluster.pools):
            for size in sorted({1, *items.gpus[items.pool == i].tolist()}):
                weights = [int(items.gpus[r] // size) if items.pool[r] == i else 0 for r in self.actors]
                if any(weights):
                    most = pool.nodes * (pool.gpus_per_node // size)
                    self.model.add(self._cp.LinearExpr.weighted_sum(self.opened, weights) <= most)
        most_actors = len(self.actors) if problem.max_actors is None else problem.max_actors
        self.model.add_linear_constraint(sum(self.opened), problem.needed_actors, most_actors)

    def _sum(self, parts: list[tuple[float, Any]]) -> tuple[Any, float]:
        """Return a whole-numbered sum of seconds times rates, rounded down, and what one of its units is worth."""
        unit = max(rate for rate, _ in parts) / WHOLE
        return sum(math.floor(rate / unit * (1 + 1e-12)) * variable for rate, variable in parts), unit / self.scale

    def solve(self) -> tuple[list[tuple[int, IntArray]] | None, float]:
        """Return the (offer, items) of the actors, None if no plan was found, and a lower bound on the value of the step.

        The bound is infinite if no plan keeps the limit.
        """
        goal, objective = self.goal, self.goal.objective
        rest, w = goal.phases.seconds, objective.time_weight
        rates = [(float(self.items.rate[r]), busy) for r, busy in zip(self.actors, self.busy, strict=True)]
        if goal.learner_rate:
            rates.append((goal.learner_rate, self.makespan))
        cost, cost_unit = self._sum(rates)
        fixed = goal.learner_rate * rest  # cost of the learner beside generation
        least: Any
        bound_of: Callable[[float], float]
        if objective.deadline_s is not None:
            within_s = objective.generation_within_s(goal.phases)
            if within_s < self.items.longest_makespan_s:
                self.model.add(self.makespan <= self._units(within_s) + 1)
            least, bound_of = cost, lambda b: b * cost_unit + fixed
        elif objective.budget is not None:
            left = (objective.budget * (1 + 1e-8) - fixed) / cost_unit
            if left < LARGEST:  # whole numbers of the model are no larger
                self.model.add(cost <= math.ceil(left))
            least, bound_of = self.makespan, lambda b: b / self.scale + rest
        elif w == 1.0:
            least, bound_of = self.makespan, lambda b: (b / self.scale + rest) / goal.norms[0]
        elif w == 0.0:
            least, bound_of = cost, lambda b: (b * cost_unit + fixed) / goal.norms[1]
        else:
            time_s, paid = (float(np.mean(amount)) for amount in goal.step(self.best.makespan_s, self.best.cost))
            least, unit = self._sum(
                [(w / time_s + (1 - w) / paid * goal.learner_rate, self.makespan)]
                + [((1 - w) / paid * rate, busy) for rate, busy in rates[: len(self.actors)]]
            )
            known = w / time_s * rest + (1 - w) / paid * fixed
            bound_of = lambda b: self._product(b * unit + known, time_s, paid)  # noqa: E731
        self.model.minimize(least)
        solver = cp_solver(SECONDS)
        solver.parameters.cp_model_probing_level, solver.parameters.symmetry_level = 0, 0
        status = solver.solve(self.model)
        if status == self._cp.INFEASIBLE:
            return None, math.inf
        bound = max(0.0, bound_of(solver.best_objective_bound) * (1 - 1e-9))
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return None, bound
        chosen = [
            (r, np.flatnonzero([solver.boolean_value(v) for v in x])) for r, x in zip(self.actors, self.takes, strict=True)
        ]
        return [(r, taken) for r, taken in chosen if len(taken)], bound

    def _product(self, least_sum: float, time_s: float, paid: float) -> float:
        """Return a lower bound on the value where ``w T / time_s + (1-w) C / paid`` is at least ``least_sum``."""
        goal, w = self.goal, self.goal.objective.time_weight
        shortest_s = goal.phases.step_time_s(self.items.shortest_makespan_s)
        cheapest = self.items.least_cost + goal.learner_rate * shortest_s
        ends = [
            (shortest_s, max(cheapest, (least_sum - w * shortest_s / time_s) / (1 - w) * paid)),
            (max(shortest_s, (least_sum - (1 - w) * cheapest / paid) / w * time_s), cheapest),
        ]
        return min(goal.objective.value(*end, goal.norms) for end in ends)

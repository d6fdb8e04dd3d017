"""OR-Tools (CP-SAT) model of few actors: how many items of each length class each actor takes.

Variables, for actors j (in order of falling longest length) and classes k (items of similar length and load, longest first):
    opened[j]    actor j is started
    takes[j, k]  how many items of class k it generates
    from_[j, k]  whether it takes any of the classes up to k
    longest[j]   iterations of its longest item
    busy[j]      its time from start to its last response
    makespan     the latest of them
An actor is busy for at least each of the three sums of ``relaxation``. They are its longest item with all loads, all loads with
their share of slots, and all loads with their share of memory. Times are integers of 0.1 microseconds, every coefficient is
rounded down, and lengths and loads of a class are at their least. So the model is a relaxation of the planning problem, with
slots and without. Its bound holds for every plan of at most the model's number of actors. Redundant: all actors together are
busy for at least the exact sums of all items.

Inputs are the sorted work and the best plan so far (the warm start, which hints every variable). What the model finds is made
of whole items, which the planner orders and times exactly. One worker that stops by deterministic time: the same problem gives
the same plan.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from solver.model.workload import IntArray
from solver.planning.single_kind.items import SortedWork
from solver.timing.group_times import Split
from solver.timing.step_cost import Pricing

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar, LinearExpr

UNITS_PER_S = 10_000_000
WEIGHT = 10_000  # objective coefficients are integers of 1 / WEIGHT
MOST_CLASSES = 160
MOST_ACTORS, LEAST_GAP = 6, 1e-5  # beyond these the model moves nothing, or hardly anything
MOST_ITEMS, MOST_IN_SLOTS = 200, 600  # where all fit into one batch, and where they refill slots


@dataclass(frozen=True)
class ModelOutcome:
    """Result of the model.

    Attributes:
        groups: items of every actor, in their sorted order; None when nothing was found.
        lower_bound: in units of the objective, below every plan of at most the model's actors. It is infinite if no such plan
            meets the limit. stopped: whether the clock ended the model before its deterministic time.
    """

    groups: list[IntArray] | None
    lower_bound: float
    stopped: bool


def load() -> None:
    """Import OR-Tools, which takes a few tenths of a second the first time."""
    import ortools.sat.python.cp_model  # noqa: F401


def actors_of_model(work: SortedWork, warm_actors: int) -> int:
    """Return the most actors of a model that starts from a plan of ``warm_actors``: one more, if there are as many."""
    return min(work.max_actors, max(work.min_actors, warm_actors + 1))


def is_asked(work: SortedWork, pricing: Pricing, warm_actors: int, gap: float) -> bool:
    """Return whether planning asks the model: only in the classes of problems where it has moved values or bounds.

    These are the problems in which it moves something, by ``tests/benchmarks/solver_moves.py``. It finds plans for deadlines
    that only a perfect packing keeps, raises the bound of few actors that refill slots, and finds other plans for scenarios.
    With more actors or items, or where all responses of many are decoded at once, it moves next to nothing.

    Args:
        warm_actors: of the best plan so far. gap: that the search leaves, 1 where no plan meets the limit.
    """
    actors = actors_of_model(work, warm_actors)
    any_order = work.prewarmed == 0 or work.prewarmed >= actors or work.start_s == 0  # else the longest need not start first
    few = actors <= MOST_ACTORS and len(work) <= (MOST_IN_SLOTS if work.refills else MOST_ITEMS)
    return few and gap > LEAST_GAP and any_order and pricing.release == "done"


def groups_of_items(work: SortedWork, split: Split) -> list[IntArray]:
    """Return the sorted items of every group, in order of their longest.

    The split must not break up items; a random split of responses never does.
    """
    item_of = np.empty(len(work.order), dtype=np.int64)
    item_of[work.order] = np.repeat(np.arange(len(work)), np.diff(work.edge))
    return sorted((np.unique(item_of[group]) for group in split.groups()), key=lambda group: int(group[0]))


class ClassModel:
    """The model of all items on at most ``actors`` actors.

    Args:
        warm: items of every actor of a plan, in order of their longest.
    """

    def __init__(self, work: SortedWork, pricing: Pricing, warm: list[IntArray], actors: int) -> None:
        from ortools.sat.python import cp_model

        self.work, self.pricing, self.actors = work, pricing, actors
        self._sums = [np.diff(sums) for sums in (work.load, work.slot_load, work.kv_load)]
        self._edges = self._class_edges()
        classes = list(itertools.pairwise(self._edges))
        self._length = [int(work.length[b - 1]) for _, b in classes]
        self._step = int(work.base_s * UNITS_PER_S)
        calls = (work.call_least_s, 0.0 if work.call_shares_s > 0 else work.call_least_s, work.call_least_s)
        self._ready = [[int((work.ready_of(j) + call) * UNITS_PER_S) for j in range(actors)] for call in calls]
        units = [[int(part[a:b].min() * UNITS_PER_S) for a, b in classes] for part in self._sums]
        horizon = int(2 * work.longest_makespan_s * UNITS_PER_S) + actors

        self.model = model = cp_model.CpModel()
        weighted = cp_model.LinearExpr.weighted_sum
        self._opened = [model.new_bool_var(f"opened_{j}") for j in range(actors)]
        self._longest = [model.new_int_var(0, int(work.length[0]), f"longest_{j}") for j in range(actors)]
        self._busy = [model.new_int_var(0, horizon, f"busy_{j}") for j in range(actors)]
        self._makespan = model.new_int_var(0, horizon, "makespan")
        self._takes: list[list[IntVar]] = []
        self._from: list[list[IntVar]] = []
        drops = [a - b for a, b in itertools.pairwise([*self._length, 0])]  # of the length, after each class
        for j in range(actors):
            takes = [model.new_int_var(0, b - a, f"takes_{j}_{k}") for k, (a, b) in enumerate(classes)]
            begun = [model.new_bool_var(f"from_{j}_{k}") for k in range(len(classes))]
            for k, (a, b) in enumerate(classes):
                model.add(takes[k] <= (b - a) * begun[k])
                model.add_implication(begun[k], begun[k + 1] if k + 1 < len(classes) else self._opened[j])
            model.add(self._longest[j] >= weighted(begun, drops))
            for part, ready in enumerate(self._ready):
                alone = self._step * self._longest[j] if part == 0 else 0
                model.add(self._busy[j] >= ready[j] * self._opened[j] + alone + weighted(takes, units[part]))
            model.add(self._makespan >= self._busy[j])
            self._takes.append(takes)
            self._from.append(begun)
        for k, (a, b) in enumerate(classes):
            model.add(sum(takes[k] for takes in self._takes) == b - a)
        for part, ready in enumerate(self._ready):  # redundant; busy times of real plans are rounded down, too
            alone = self._step * sum(self._longest) if part == 0 else 0
            exact = int(self._sums[part].sum() * UNITS_PER_S) - actors
            model.add(sum(self._busy) >= weighted(self._opened, ready) + alone + exact)
        for j in range(actors - 1):  # symmetry: actors in order of falling longest length
            model.add(self._longest[j] >= self._longest[j + 1])
            model.add_implication(self._opened[j + 1], self._opened[j])
        for j in range(work.min_actors):
            model.add(sum(self._takes[j]) >= 1)
        self._scale, self._constant = self._minimise(sum(self._busy))
        self._hint(warm)

    def solve(self, deterministic_s: float, stop_at: float = math.inf) -> ModelOutcome:
        """Solve the model.

        Args:
            deterministic_s: CP-SAT's deterministic seconds, which last up to three seconds each.
            stop_at: time of the clock (``perf_counter``) at which it stops in any case.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        left_s = math.inf if math.isinf(stop_at) else max(0.0, stop_at - time.perf_counter())
        solver.parameters.max_time_in_seconds = left_s
        solver.parameters.max_deterministic_time = deterministic_s
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.cp_model_probing_level = 0  # probing and symmetry take most of a short time and move no bound
        solver.parameters.symmetry_level = 0
        solver.parameters.catch_sigint_signal = False  # it would leave Ctrl-C to the system, which then ends the whole kernel
        status = solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return ModelOutcome(None, math.inf, False)
        assert status != cp_model.MODEL_INVALID, self.model.validate()
        stopped = status != cp_model.OPTIMAL and solver.wall_time >= 0.99 * left_s
        bound = self._scale * solver.best_objective_bound + self._constant
        if status == cp_model.UNKNOWN:
            return ModelOutcome(None, bound, stopped)
        first = self._edges[:-1].copy()
        groups: list[IntArray] = []
        for takes in self._takes:
            chosen: list[int] = []
            for k, variable in enumerate(takes):
                count = solver.value(variable)
                chosen.extend(range(first[k], first[k] + count))
                first[k] += count
            if chosen:
                groups.append(np.array(chosen, dtype=np.int64))
        return ModelOutcome(groups, bound, stopped)

    def _class_edges(self) -> list[int]:
        """Return where classes begin among the sorted items, and the end.

        Equal items are together if they are few. Else an edge follows where length has fallen, or items have passed, by a share
        of all. So there are many classes where lengths differ much.
        """
        length, total = self.work.length, len(self.work)
        differ = np.diff(length) != 0
        for part in self._sums:
            differ |= np.abs(np.diff(part)) > 1e-12
        if differ.sum() >= MOST_CLASSES:
            passed = np.arange(total) / total + (length[0] - length) / max(1, int(length[0] - length[-1]))
            differ = np.diff(np.floor(passed / 2 * MOST_CLASSES)) != 0
        return [0, *(np.flatnonzero(differ) + 1).tolist(), total]

    def _minimise(self, busy: LinearExpr) -> tuple[float, float]:
        """Set the objective and its limit; return the factor and the constant that make it the value of a plan."""
        objective, pricing, model = self.pricing.objective, self.pricing, self.model
        # cost in units of the objective per second is unit * (actors' busy time + learner * makespan)
        unit, learner = pricing.actor_rate, pricing.learner_rate / pricing.actor_rate
        held = WEIGHT * busy + int(learner * WEIGHT) * self._makespan
        rest_cost = pricing.learner_rate * pricing.phases.seconds
        if objective.deadline_s is not None:
            model.add(self._makespan <= int(objective.generation_within_s(pricing.phases) * UNITS_PER_S))
            model.minimize(held)
            return unit / (WEIGHT * UNITS_PER_S), rest_cost
        if objective.budget is not None:
            model.add(held <= int((objective.budget * (1 + 1e-8) - rest_cost) / unit * WEIGHT * UNITS_PER_S))
            model.minimize(self._makespan)
            return 1.0 / UNITS_PER_S, pricing.phases.seconds
        # coefficients are relative to the largest, so that rounding them down costs at most 1 / WEIGHT of it
        per_cost = (1 - objective.time_weight) / pricing.norms[1]
        per_time = objective.time_weight / pricing.norms[0] + per_cost * pricing.learner_rate
        one = max(per_time, per_cost * unit) / WEIGHT
        model.minimize(int(per_time / one) * self._makespan + int(per_cost * unit / one) * busy)
        return one / UNITS_PER_S, objective.time_weight / pricing.norms[0] * pricing.phases.seconds + per_cost * rest_cost

    def _hint(self, warm: list[IntArray]) -> None:
        """Hint every variable: CP-SAT may lose a partial hint."""
        latest = 0
        for j in range(self.actors):
            items = warm[j] if j < len(warm) else np.empty(0, dtype=np.int64)
            counts = np.histogram(items, self._edges)[0]
            longest = self._length[int(np.flatnonzero(counts)[0])] if len(items) else 0
            sums = [math.ceil(part[items].sum() * UNITS_PER_S) for part in self._sums]
            busy = max(ready[j] + units for ready, units in zip(self._ready, sums, strict=True)) if len(items) else 0
            busy = max(busy, self._ready[0][j] + self._step * longest + sums[0]) if len(items) else 0
            latest = max(latest, busy)
            self.model.add_hint(self._opened[j], bool(len(items)))
            self.model.add_hint(self._longest[j], longest)
            self.model.add_hint(self._busy[j], busy)
            for k, (takes, begun) in enumerate(zip(self._takes[j], self._from[j], strict=True)):
                self.model.add_hint(takes, int(counts[k]))
                self.model.add_hint(begun, bool(counts[: k + 1].any()))
        self.model.add_hint(self._makespan, latest)

"""Improves a split with an OR-Tools (CP-SAT) model: how many items of each length class each actor takes.

Inputs are the sorted work and the best split so far (the warm start). The planner keeps plan and bound.

Variables, for actors j (in order of falling longest length) and classes k (items of similar length and load):
    open[j]      actor j is started
    takes[j, k]  how many items of class k it generates
    has[j, k]    whether it takes any
    longest[j]   iterations of its longest item
    busy[j]      its time from start to its last response
    makespan     the latest of them
Times are integers of 0.1 microseconds, every coefficient rounded down and class lengths and loads at their least, so the
model is a relaxation of the planning problem and its bound is a bound of the problem wherever the slots cannot bind, over
plans of at most the model's number of actors (the warm start's and one more). What it finds is rebuilt from whole responses
and evaluated exactly by the planner. One worker that stops by deterministic time: the same problem gives the same plan.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np

from solver.model.workload import IntArray
from solver.planning.single_kind.items import SortedWork
from solver.timing.group_times import Split
from solver.timing.step_cost import Pricing

UNITS_PER_S = 10_000_000
MOST_TERMS = 6000  # actors x classes: building a larger model takes longer than it gains
WEIGHT = 10_000  # objective coefficients are integers of 1 / WEIGHT
LEAST_S = 0.1  # what has to be left, of which building the model takes about half
DETERMINISTIC_SHARE = 0.25  # of the time limit, in CP-SAT's deterministic seconds, which last up to three seconds each here


@dataclass(frozen=True)
class CpSatOutcome:
    """Result of the CP-SAT model.

    The split is None when nothing was found. The bound, in units of the objective, is below every plan of at most ``actors``
    actors. ``status`` is CP-SAT's status name. ``stopped`` says whether the clock ended the model before its deterministic time
    was over.
    """

    split: Split | None
    lower_bound: float
    status: str
    actors: int = 0
    stopped: bool = False


def load() -> None:
    """Import OR-Tools, which takes a few tenths of a second the first time."""
    import ortools.sat.python.cp_model  # noqa: F401


def _classes(work: SortedWork, most: int, edges: set[int]) -> list[tuple[int, int]]:
    """Return ranges of sorted positions: equal responses together if they are few, else about ``most`` ranges of equal count.

    The ranges respect ``edges``, where the warm start's groups end.
    """
    load = np.diff(work.load)
    differ = (np.diff(work.length) != 0) | (np.abs(np.diff(load)) > 1e-12) | (np.diff(np.diff(work.edge)) != 0)
    cuts = [0, *(np.flatnonzero(differ) + 1).tolist(), len(work)]
    if len(cuts) - 1 > most:
        even = np.linspace(0, len(work), max(2, most - len(edges)) + 1).round().astype(int)
        cuts = sorted({0, len(work), *even.tolist(), *edges})
    return list(itertools.pairwise(cuts))


def improve(
    work: SortedWork, warm: Split, pricing: Pricing, norms: tuple[float, float], time_limit_s: float, stop_at: float
) -> CpSatOutcome:
    """Solve the model, with a hint from ``warm`` for every variable.

    Args:
        time_limit_s: of the whole planning, of which the model gets a share in deterministic seconds.
        stop_at: time of the clock (perf_counter) at which it stops in any case.
    """
    from ortools.sat.python import cp_model

    if stop_at - time.perf_counter() < LEAST_S:
        return CpSatOutcome(None, 0.0, "NO_TIME", stopped=True)
    objective, phases = pricing.objective, pricing.phases
    warm_groups = _items(work, warm)
    actors = min(work.max_actors, max(work.min_actors, len(warm_groups) + 1))
    edges = {int(g[-1]) + 1 for g in warm_groups}
    classes = _classes(work, max(8, min(64, MOST_TERMS // actors)), edges if len(edges) < 32 else set())
    class_of = np.repeat(np.arange(len(classes)), [b - a for a, b in classes])
    size = [b - a for a, b in classes]
    load = np.diff(work.load)
    units = np.array([np.floor(load[a:b].min() * UNITS_PER_S) for a, b in classes]).astype(int).tolist()
    count = [int(np.diff(work.edge)[a:b].min()) for a, b in classes]  # responses of an item, at least
    length = [int(work.length[b - 1]) for _, b in classes]  # the shortest of the class
    step = int(work.step_s * UNITS_PER_S)
    ready = [int((work.ready_of(j) + work.call_least_s) * UNITS_PER_S) for j in range(actors)]
    horizon = int(work.longest_makespan_s * UNITS_PER_S) + 1
    slots = max(work.slots, max(count))

    model = cp_model.CpModel()
    takes: dict[tuple[int, int], cp_model.IntVar] = {}
    has: dict[tuple[int, int], cp_model.IntVar] = {}
    opened, longest, busy = [], [], []
    makespan = model.new_int_var(0, horizon, "makespan")
    for j in range(actors):
        opened.append(model.new_bool_var(f"open_{j}"))
        longest.append(model.new_int_var(0, int(work.length[0]), f"longest_{j}"))
        busy.append(model.new_int_var(0, horizon, f"busy_{j}"))
        for k in range(len(classes)):
            takes[j, k] = model.new_int_var(0, size[k], f"takes_{j}_{k}")
            has[j, k] = model.new_bool_var(f"has_{j}_{k}")
            model.add(takes[j, k] <= size[k] * has[j, k])
            model.add(longest[j] >= length[k] * has[j, k])
            model.add_implication(has[j, k], opened[j])
        row = [takes[j, k] for k in range(len(classes))]
        model.add(cp_model.LinearExpr.weighted_sum(row, count) <= slots)  # at once; the warm start may refill, see `exact`
        model.add(busy[j] >= ready[j] * opened[j] + step * longest[j] + cp_model.LinearExpr.weighted_sum(row, units))
        model.add(makespan >= busy[j])
    for k in range(len(classes)):
        model.add(sum(takes[j, k] for j in range(actors)) == size[k])
    for j in range(actors - 1):  # symmetry: actors in order of falling longest length
        model.add(longest[j] >= longest[j + 1])
        model.add_implication(opened[j + 1], opened[j])
    for j in range(work.min_actors):
        model.add(sum(takes[j, k] for k in range(len(classes))) >= 1)

    # cost in units of the objective per second is unit * (actors' busy time + learner * makespan)
    unit, learner = pricing.actor_rate, pricing.learner_rate / pricing.actor_rate
    share = int(learner * WEIGHT)  # rounded down
    held = WEIGHT * sum(busy) + share * makespan
    rest_cost = pricing.learner_rate * phases.seconds
    if objective.deadline_s is not None:
        model.add(makespan <= int(objective.generation_within_s(phases) * UNITS_PER_S))
        model.minimize(held)
        scale, constant = unit / (WEIGHT * UNITS_PER_S), rest_cost
    elif objective.budget is not None:
        model.add(held <= int((objective.budget - rest_cost) / unit * WEIGHT * UNITS_PER_S))
        model.minimize(makespan)
        scale, constant = 1.0 / UNITS_PER_S, phases.seconds
    else:
        # coefficients are relative to the largest, so that rounding them down costs at most 1 / WEIGHT of it
        per_cost = (1 - objective.time_weight) / norms[1]
        per_time = objective.time_weight / norms[0] + per_cost * pricing.learner_rate
        one = max(per_time, per_cost * unit) / WEIGHT
        model.minimize(int(per_time / one) * makespan + int(per_cost * unit / one) * sum(busy))
        scale = one / UNITS_PER_S
        constant = objective.time_weight / norms[0] * phases.seconds + per_cost * rest_cost

    counts = np.zeros((actors, len(classes)), dtype=int)
    for j, group in enumerate(warm_groups):
        np.add.at(counts[j], class_of[group], 1)
    latest = 0
    for j in range(actors):
        taken = np.flatnonzero(counts[j])
        top = max((length[k] for k in taken), default=0)
        time_units = ready[j] * bool(len(taken)) + step * top + int(np.dot(counts[j], units))
        latest = max(latest, time_units)
        model.add_hint(opened[j], bool(len(taken)))
        model.add_hint(longest[j], top)
        model.add_hint(busy[j], time_units)
        for k in range(len(classes)):
            model.add_hint(takes[j, k], int(counts[j, k]))
            model.add_hint(has[j, k], bool(counts[j, k]))
    model.add_hint(makespan, latest)

    solver = cp_model.CpSolver()
    left_s = stop_at - time.perf_counter()
    if left_s <= 0.02:
        return CpSatOutcome(None, 0.0, "NO_TIME", stopped=True)
    solver.parameters.max_time_in_seconds = left_s * 0.9
    solver.parameters.max_deterministic_time = DETERMINISTIC_SHARE * time_limit_s
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.catch_sigint_signal = False  # it would leave Ctrl-C to the system, which then ends the whole kernel
    status = solver.solve(model)
    stopped = status != cp_model.OPTIMAL and solver.wall_time >= left_s * 0.89
    # a relaxation of the whole problem only where slots cannot bind and the order of prewarmed actors does not matter
    exact = len(work.order) <= work.slots and (work.prewarmed == 0 or work.prewarmed >= actors or work.start_s == 0)
    bound = scale * solver.best_objective_bound + constant if exact and status != cp_model.MODEL_INVALID else 0.0
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return CpSatOutcome(None, bound if status != cp_model.INFEASIBLE else 0.0, solver.status_name(status), actors, stopped)
    next_of = [a for a, _ in classes]
    groups: list[IntArray] = []
    for j in range(actors):
        chosen: list[int] = []
        for k in range(len(classes)):
            taken_of_class = solver.value(takes[j, k])
            chosen.extend(range(next_of[k], next_of[k] + taken_of_class))
            next_of[k] += taken_of_class
        if chosen:
            groups.append(work.responses(np.array(chosen, dtype=np.int64)))
    split = Split(np.concatenate(groups), np.cumsum([0, *map(len, groups)]))
    return CpSatOutcome(split, bound, solver.status_name(status), actors, stopped)


def _items(work: SortedWork, split: Split) -> list[IntArray]:
    """Return the sorted items of every group, in order of their longest.

    The split must not break up items; a random split of responses never does.
    """
    item_of = np.empty(len(work.order), dtype=np.int64)
    item_of[work.order] = np.repeat(np.arange(len(work)), np.diff(work.edge))
    return sorted((np.unique(item_of[group]) for group in split.groups()), key=lambda g: int(g[0]))

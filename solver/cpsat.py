"""The OR-Tools (CP-SAT) model over the warm start: how many responses of each length class each actor takes.

Knows the sorted workload and the best plan so far; keeps neither plan nor bound (the planner does, see its history).

Variables, for actors j (in order of falling longest length) and classes k (responses of similar length and prompt):
    open[j]      actor j is started
    takes[j, k]  how many responses of class k it generates
    has[j, k]    whether it takes any
    longest[j]   iterations of its longest response
    busy[j]      its time from start to its last response
    makespan     the latest of them
Times are integers of 0.1 microseconds, every coefficient rounded down and class lengths and loads at their least, so the
model is a relaxation of the planning problem and its bound is a bound of the problem wherever the slots cannot bind, over
plans of at most the model's number of actors (the warm start's and one more). What it finds is rebuilt from whole responses
and evaluated exactly by the planner.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np

from solver.cluster import Cluster
from solver.objective import Objective, StepRest
from solver.plan import Plan
from solver.relaxation import SortedWork
from solver.workload import IntArray

UNITS_PER_S = 10_000_000
MOST_TERMS = 6000  # actors x classes: building a larger model takes longer than it gains
WEIGHT = 10_000  # objective coefficients are integers of 1 / WEIGHT


@dataclass(frozen=True)
class Outcome:
    """Groups of responses (None when nothing was found), a bound in units of the objective below every plan of at most
    ``actors`` actors, and CP-SAT's status name."""

    groups: list[IntArray] | None
    lower_bound: float
    status: str
    actors: int = 0


def load() -> None:
    """Import OR-Tools, which takes a few tenths of a second the first time."""
    import ortools.sat.python.cp_model  # noqa: F401


def _classes(work: SortedWork, most: int, edges: set[int]) -> list[tuple[int, int]]:
    """Ranges of sorted positions: equal responses together if they are few, else about ``most`` ranges of equal count that
    respect ``edges`` (where the warm start's groups end)."""
    load = np.diff(work.load)
    new = np.flatnonzero((np.diff(work.length) != 0) | (np.abs(np.diff(load)) > 1e-12)) + 1
    cuts = [0, *new.tolist(), len(work.order)]
    if len(cuts) - 1 > most:
        even = np.linspace(0, len(work.order), max(2, most - len(edges)) + 1).round().astype(int)
        cuts = sorted({0, len(work.order), *even.tolist(), *edges})
    return list(itertools.pairwise(cuts))


def improve(
    work: SortedWork,
    warm: Plan,
    cluster: Cluster,
    objective: Objective,
    rest: StepRest,
    reference: tuple[float, float],
    time_limit_s: float,
) -> Outcome:
    """Solve the model, hinted in every variable with ``warm``, within ``time_limit_s`` (loading OR-Tools and building the model
    included)."""
    began = time.perf_counter()
    from ortools.sat.python import cp_model

    position = np.empty(len(work.order), dtype=np.int64)
    position[work.order] = np.arange(len(work.order))
    warm_groups = sorted((np.sort(position[list(a.responses)]) for a in warm.actors), key=lambda g: int(g[0]))
    actors = min(cluster.max_actors, len(warm_groups) + 1, len(work.order))
    edges = {int(g[-1]) + 1 for g in warm_groups}
    classes = _classes(work, max(8, min(64, MOST_TERMS // actors)), edges if len(edges) < 32 else set())
    class_of = np.repeat(np.arange(len(classes)), [b - a for a, b in classes])
    size = [b - a for a, b in classes]
    load = np.diff(work.load)
    units = np.array([np.floor(load[a:b].min() * UNITS_PER_S) for a, b in classes]).astype(int).tolist()
    length = [int(work.length[b - 1]) for _, b in classes]  # the shortest of the class
    step, ready = int(work.step_s * UNITS_PER_S), int(work.ready_s * UNITS_PER_S)
    horizon = int(work.longest_makespan_s * UNITS_PER_S) + 1
    slots = work.slots

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
        model.add(sum(row) <= slots)  # whole groups at once; the warm start may refill, see `exact`
        model.add(busy[j] >= ready * opened[j] + step * longest[j] + cp_model.LinearExpr.weighted_sum(row, units))
        model.add(makespan >= busy[j])
    for k in range(len(classes)):
        model.add(sum(takes[j, k] for j in range(actors)) == size[k])
    for j in range(actors - 1):  # symmetry: actors in order of falling longest length
        model.add(longest[j] >= longest[j + 1])
        model.add_implication(opened[j + 1], opened[j])

    gpus = cluster.gpus_per_actor
    held = gpus * sum(busy) + rest.learner_gpus * makespan
    rest_gpu_s = rest.learner_gpus * rest.seconds
    if objective.deadline_s is not None:
        model.add(makespan <= int((objective.deadline_s - rest.seconds) * UNITS_PER_S))
        model.minimize(held)
        scale, constant = 1.0 / UNITS_PER_S, rest_gpu_s
    elif objective.budget_gpu_s is not None:
        model.add(held <= int((objective.budget_gpu_s - rest_gpu_s) * UNITS_PER_S))
        model.minimize(makespan)
        scale, constant = 1.0 / UNITS_PER_S, rest.seconds
    else:
        # both coefficients are relative to the larger one, so that rounding them down costs at most 1 / WEIGHT of it
        per_time = objective.time_weight / reference[0]
        per_gpu_s = (1 - objective.time_weight) / reference[1]
        unit = max(per_time, per_gpu_s) / WEIGHT
        model.minimize(int(per_time / unit) * makespan + int(per_gpu_s / unit) * held)
        scale = unit / UNITS_PER_S
        constant = per_time * rest.seconds + per_gpu_s * rest_gpu_s

    counts = np.zeros((actors, len(classes)), dtype=int)
    for j, group in enumerate(warm_groups):
        np.add.at(counts[j], class_of[group], 1)
    latest = 0
    for j in range(actors):
        taken = np.flatnonzero(counts[j])
        top = max((length[k] for k in taken), default=0)
        time_units = ready * bool(len(taken)) + step * top + int(np.dot(counts[j], units))
        latest = max(latest, time_units)
        model.add_hint(opened[j], bool(len(taken)))
        model.add_hint(longest[j], top)
        model.add_hint(busy[j], time_units)
        for k in range(len(classes)):
            model.add_hint(takes[j, k], int(counts[j, k]))
            model.add_hint(has[j, k], bool(counts[j, k]))
    model.add_hint(makespan, latest)

    solver = cp_model.CpSolver()
    left_s = time_limit_s - (time.perf_counter() - began)
    if left_s <= 0.02:
        return Outcome(None, 0.0, "NO_TIME")
    solver.parameters.max_time_in_seconds = left_s * 0.9
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    exact = len(work.order) <= slots  # slots cannot bind, so the model is a relaxation of the whole problem
    bound = scale * solver.best_objective_bound + constant if exact and status != cp_model.MODEL_INVALID else 0.0
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Outcome(None, bound if status != cp_model.INFEASIBLE else 0.0, solver.status_name(status), actors)
    next_of = [a for a, _ in classes]
    groups: list[IntArray] = []
    for j in range(actors):
        chosen: list[int] = []
        for k in range(len(classes)):
            count = solver.value(takes[j, k])
            chosen.extend(range(next_of[k], next_of[k] + count))
            next_of[k] += count
        if chosen:
            groups.append(work.order[chosen])
    return Outcome(groups, bound, solver.status_name(status), actors)

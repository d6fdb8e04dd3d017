"""Plans on mixed clusters under uncertainty: the best plan over scenarios of lengths, with a lower bound for every plan.

``solver.planning.single_kind.scenarios`` proves that the bounds of single scenarios bound the value over all of them.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from solver.model.errors import PlanningError
from solver.model.objective import Objective
from solver.model.plan import Plan, Reference
from solver.model.workload import FloatArray
from solver.planning.mixed_kinds.history import SearchHistory
from solver.planning.mixed_kinds.infeasible import infeasibility_reason
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.parametric_lp import load
from solver.planning.mixed_kinds.planner import (
    BLAME,
    COUNTED,
    HURRY_S,
    LAST_S,
    PROVEN_GAP,
    MixedOutcome,
    room_to_try,
    search_mixed,
)
from solver.planning.mixed_kinds.problem import MixedProblem
from solver.planning.mixed_kinds.search import bound_of, floor_of
from solver.planning.mixed_kinds.step_value import PlanValue
from solver.planning.mixed_kinds.work_budget import WorkBudget
from solver.timing.build_plan import with_times
from solver.timing.evaluate import evaluate

SEARCH = 0.5  # of the time limit, less what timing two plans over the scenarios takes, for plans for the predicted lengths
COUNTED_HERE = 0.75  # share of the time limit that counted work may take; vectors and heaps are easier to foresee than searches
RESPONSE_S, BUILD_S = 6e-7, 3e-7  # what a response of a scenario takes to time, and to sort and sum (see ``work_budget``)
NEAREST, NEAR = 0.5, 3  # of the time for that search, for one towards the limit alone, and how many of its plans are timed
BOUNDS = 0.35  # of the work is kept for the bounds


def plan_mixed_over_scenarios(problem: MixedProblem, time_limit_s: float, *, explains: bool = True) -> Plan:
    """Return the best plan over the scenarios, among the random split and the best plans for the predicted lengths.

    All candidates are timed over the scenarios; the remaining work goes into the bound of every scenario. Under a deadline (a
    budget) the bound is that of the cost (the time) without any limit.

    Timing the split over all scenarios and a first plan for the predicted lengths come first, however little time is left. They
    take 0.5 to 2 microseconds (where memory binds, on a busy machine) for each response of each scenario, in addition to the
    times given in ``search_mixed``. A limit below that cannot be kept.

    The history holds values over the scenarios; that of the search for the predicted lengths, in its own values, is in
    ``notes["predicted"]``.

    Raises:
        PlanningError: no plan exists, or no plan found meets the limit over the scenarios.
    """
    if time_limit_s >= HURRY_S:
        load()  # once per process, before the clock starts
    began = time.perf_counter()
    workload, objective, phases, admission = problem.workload, problem.objective, problem.phases, problem.admission
    models, learner_rate, usd_rate = problem.latencies, problem.learner_rate(objective.cost), problem.learner_rate("usd")
    effort = WorkBudget(COUNTED_HERE * time_limit_s, problem.stop_after(began, LAST_S * time_limit_s))
    cases = workload.cases()
    once_s = RESPONSE_S * len(workload) * len(cases)

    def over_scenarios(plan: Plan) -> tuple[Plan, FloatArray, FloatArray]:
        """Return the plan with its times over the scenarios, and time and cost of the step in each."""
        effort.spend(once_s)
        taken = evaluate(plan, workload, models, phases, admission=admission)
        time_s = taken.makespans_s + phases.seconds
        cost = taken.gpu_seconds_of if objective.cost == "gpu_s" else taken.cost_usd_of
        return with_times(plan, taken), time_s, cost + learner_rate * time_s

    search_s = max(0.1 * time_limit_s, SEARCH * time_limit_s - 2 * once_s)
    points = replace(problem, workload=workload.points)
    # without a plan that keeps the limit over the scenarios: what comes nearest to it keeps it, or says how far it is missed
    nearest = replace(points, objective=Objective(0.0 if objective.deadline_s is None else 1.0, cost=objective.cost))
    near: MixedOutcome | None = None
    try:
        outcome = search_mixed(points, search_s, explains=False)
    except PlanningError:
        if not objective.limited:
            raise
        outcome = near = search_mixed(nearest, NEAREST * search_s)
    effort.spend(COUNTED * search_s)
    *others, dealt = [outcome.plan, *outcome.candidates[1:]]
    before = time.perf_counter()
    found = [over_scenarios(dealt)]
    took_s = time.perf_counter() - before
    split = found[0][0]

    def over() -> bool:
        """Return whether no time is left to evaluate one more plan."""
        effort.late |= effort.left_s > 0 and time.perf_counter() + took_s > effort.stop_at
        return effort.over

    split_s = phases.step_time_s(split.makespan_s)
    reference = Reference(
        len(split.actors), split_s, phases.step_gpu_s(split.makespan_s, split.gpu_seconds), split.cost_usd + usd_rate * split_s
    )
    norms = reference.norms(objective.cost)
    history = SearchHistory(began)

    def value_of(plan: Plan, time_s: FloatArray, cost: FloatArray) -> float:
        """Return the value; infinite with too few actors, which is possible for the random split."""
        return objective.value_over(time_s, cost, norms) if len(plan.actors) >= problem.needed_actors else math.inf

    values = [value_of(*found[0])]

    def look_at(plan: Plan, cause: str) -> None:
        """Time a plan over the scenarios, and record the result."""
        found.append(over_scenarios(plan))
        values.append(value_of(*found[-1]))
        history.note(cause, min(values), 0.0)

    history.note("random split", values[0], 0.0)
    if others and (not over() or math.isinf(values[0])):
        look_at(others.pop(0), _cause(outcome.plan))
    free, unit = objective, norms
    if objective.deadline_s is not None:
        free, unit = Objective(0.0, cost=objective.cost), (1.0, 1.0)  # then values are costs themselves, or seconds
    elif objective.budget is not None:
        free, unit = Objective(1.0, cost=objective.cost), (1.0, 1.0)
    worth = PlanValue(free, phases, learner_rate, unit, problem.release)
    bounds = np.zeros(len(cases))
    single: list[MixedProblem] = []  # every scenario as if it were known
    works: list[MixedWork] = []
    while len(works) < len(cases) and not effort.over:
        single.append(replace(problem, workload=cases[len(works)]))
        work = MixedWork.of(single[-1])
        bounds[len(works)] = floor_of(work, worth)
        works.append(work)
        effort.spend(BUILD_S * len(workload))
    for plan in others:
        # some of the work is kept for the bounds, once a plan keeps the limit
        if over() or (math.isfinite(min(values)) and effort.left_s < BOUNDS * effort.most_s):
            break
        look_at(plan, "other actors")
    if math.isinf(min(values)) and near is None:
        near = search_mixed(nearest, NEAREST * search_s)
        for plan in near.candidates[:NEAR]:
            look_at(plan, "near the limit")
    best = int(np.argmin(values))
    value = values[best]
    history.note("loads of the scenarios", value, min(objective.risk(bounds), value))
    if math.isinf(value):
        best_found = min(objective.risk(t if objective.deadline_s is not None else c) for _, t, c in found)
        room = room_to_try(problem, time_limit_s, began, plan_mixed_over_scenarios) if explains else ""
        works += [MixedWork.of(replace(problem, workload=case)) for case in cases[len(works) :]]
        worth = replace(worth, objective=objective)
        blame_s = BLAME * time_limit_s
        least_effort = WorkBudget(blame_s, problem.stop_after(time.perf_counter(), blame_s))
        raise PlanningError(infeasibility_reason(problem, works, worth, best_found, least_effort, room))
    chosen, times, costs = found[best]
    for s, work in enumerate(works):
        if effort.over:
            break
        share = WorkBudget(effort.left_s / (len(works) - s), effort.stop_at)
        paid = free.value(float(times[s]), float(costs[s]), unit)
        # plans are made for the predicted lengths, in which less may have anything to generate
        least = min(problem.needed_actors, single[s].needed_actors)
        better = bound_of(work, worth, paid, share, min_actors=least, max_actors=problem.max_actors)
        bounds[s] = max(bounds[s], better)
        effort.spend(share.spent_s)
        effort.late |= share.late
        history.note("sequences of the scenarios", value, min(objective.risk(bounds), value))
    bound = min(objective.risk(bounds), value)
    proven = value - bound <= PROVEN_GAP * max(abs(value), 1e-12)
    stopped = effort.late or outcome.plan.status == "stopped"
    return replace(
        chosen,
        policy="solver",
        reference=reference,
        value=value,
        lower_bound=bound,
        status="optimal" if proven else "stopped" if stopped else "feasible",
        history=tuple(history.lines),
        solve_s=time.perf_counter() - began,
        notes={**chosen.notes, "predicted": [_without_clock(line) for line in (near or outcome).plan.to_dict()["history"]]},
    )


def _cause(plan: Plan) -> str:
    """Return the name of the method that found a plan for the predicted lengths."""
    return next(line.solver for line in plan.history if line.value == plan.value)


def _without_clock(line: dict[str, Any]) -> dict[str, Any]:
    """Return a history line without its time, so that the same problem has the same notes."""
    return {name: value for name, value in line.items() if name != "at_s"}

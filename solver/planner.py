"""``plan_generation``: the search over makespans first, then an OR-Tools model hinted with what it found.

Knows the parts and their order; the mathematics lives in ``relaxation``, ``rounding``, ``search`` and ``cpsat``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from solver.assemble import assemble, check_fits, timed
from solver.cluster import Cluster
from solver.errors import PlanningError
from solver.evaluate import admission_of, ready_s
from solver.latency import LatencyModel
from solver.objective import Objective, StepRest
from solver.plan import Improvement, Plan, Reference
from solver.reference import random_split, reference_of, step_of
from solver.relaxation import SortedWork
from solver.rounding import next_fit
from solver.search import Groups, MakespanSearch
from solver.workload import IntArray, Workload

SMALLEST_MODEL_S = 0.2  # a CP-SAT model alone takes 50 ms: below this time limit it is not worth building
LEAST_MODEL_S = 0.05  # what has to be left for the model
GOOD_GAP = 1e-3  # the search stops here; the model may go on
PROVEN_GAP = 1e-6


def plan_generation(
    workload: Workload,
    cluster: Cluster,
    latency: LatencyModel,
    objective: Objective = Objective(),  # noqa: B008 (frozen)
    rest: StepRest = StepRest(),  # noqa: B008 (frozen)
    time_limit_s: float = 1.0,
    *,
    admission: str = "reserve",
    seed: int = 0,
) -> Plan:
    """Choose the number of actors and the responses of each, with a bound.

    Args:
        workload: predicted lengths; cluster, latency: where and how fast; objective: what is best. With scenarios, plans are
            searched and bounded for the predicted lengths (``value``, ``lower_bound``); of the best plan for every number of
            actors and the random split that is right-sized for the scenarios, the one with the best mean over them is taken,
            and times, costs and reference are such means.
        rest: the step outside generation, which time, cost, deadline and budget include.
        time_limit_s: seconds for everything but loading OR-Tools (once per process); under 0.2 s no model is built.
        admission: ``reserve`` or ``preempt``, the rule that the engines will use.
        seed: of the random split that serves as reference.

    Returns:
        The best plan found, never worse than the right-sized random split, with ``lower_bound``, ``gap``, ``status``
        (``optimal`` or ``feasible``) and ``history``.

    Raises:
        PlanningError: no plan exists; the message names the limit to blame and by how much it is missed.
    """
    if time_limit_s >= SMALLEST_MODEL_S:
        from solver.cpsat import improve, load

        load()  # once per process, before the clock starts
    began = time.perf_counter()
    stop_at = began + time_limit_s
    check_fits(workload, cluster, latency)
    model = latency.affine
    uncertain, workload = workload, workload.points
    split = random_split(workload, cluster, model, objective, rest, seed=seed, admission=admission)
    reference = reference_of(split, rest)
    norms = (reference.time_s, reference.gpu_s)
    rule = admission_of(model, None, admission)
    work = SortedWork.of(workload, model, rule, ready_s(model), cluster.max_actors)

    def assembled(groups: list[IntArray]) -> Plan:
        return assemble("solver", groups, workload, cluster, model, rest, admission=admission)

    def value_of(plan: Plan) -> float:
        return objective.value(*step_of(plan, rest), norms)

    plans: dict[tuple[int, ...], Plan] = {}

    def value_of_groups(groups: Groups) -> float:
        plan = assembled([work.order[a:b] for a, b in groups])
        plans[tuple(b for _, b in groups)] = plan
        return value_of(plan)

    history: list[Improvement] = []

    def note(name: str, value: float, bound: float) -> None:
        history.append(Improvement(name, time.perf_counter() - began, value, bound))

    best = replace(split, policy="solver")
    best_value = value_of(best)
    note("random split", best_value, 0.0)
    search = MakespanSearch(work, cluster.gpus_per_actor, objective, rest, norms, value_of_groups, best_value)
    search.run(GOOD_GAP, stop_at)
    if search.best_groups is not None:
        best, best_value = plans[tuple(b for _, b in search.best_groups)], search.best_value
    bound = min(search.lower_bound, best_value)
    note("makespan search", best_value, bound)

    left_s = stop_at - time.perf_counter()
    if uncertain.scenarios is not None:
        left_s /= 2  # the other half is for choosing under uncertainty
    unproven = math.isinf(best_value) or best_value - bound > PROVEN_GAP * abs(best_value)
    if time_limit_s >= SMALLEST_MODEL_S and left_s > LEAST_MODEL_S and unproven and not math.isinf(bound):
        outcome = improve(work, best, cluster, objective, rest, norms, left_s)
        if outcome.groups is not None:
            candidate = assembled(outcome.groups)
            if value_of(candidate) < best_value:
                best, best_value = candidate, value_of(candidate)
        if outcome.lower_bound > bound:
            beyond = search.bound_beyond(outcome.actors, outcome.lower_bound)
            bound = max(bound, min(outcome.lower_bound, beyond))
        bound = min(bound, best_value)
        note("CP-SAT", best_value, bound)
    if math.isinf(best_value):
        raise PlanningError(_blame(work, cluster, objective, rest, [split, *plans.values()]))
    if uncertain.scenarios is not None:
        sized = random_split(uncertain, cluster, model, objective, rest, seed=seed, admission=admission)
        reference = reference_of(sized, rest)
        sized = timed(sized, workload, cluster, model, rest, admission=admission)
        candidates = [best, sized, *_best_per_count(plans.values(), value_of)]
        best, best_value = _choose(
            candidates, uncertain, cluster, model, objective, rest, reference, value_of, admission, stop_at
        )
        note("scenarios", best_value, bound)
    proven = best_value - bound <= PROVEN_GAP * max(abs(best_value), 1e-12)
    return replace(
        best,
        policy="solver",
        reference=reference,
        value=best_value,
        lower_bound=bound,
        status="optimal" if proven and uncertain.scenarios is None else "feasible",
        history=tuple(history),
        solve_s=time.perf_counter() - began,
    )


def _best_per_count(plans: Iterable[Plan], value_of: Callable[[Plan], float]) -> list[Plan]:
    """The best plan for every number of actors, best first."""
    best: dict[int, tuple[float, Plan]] = {}
    for plan in plans:
        value, count = value_of(plan), len(plan.actors)
        if count not in best or value < best[count][0]:
            best[count] = (value, plan)
    return [plan for _, plan in sorted(best.values(), key=lambda pair: pair[0])]


def _choose(
    candidates: list[Plan],
    uncertain: Workload,
    cluster: Cluster,
    model: LatencyModel,
    objective: Objective,
    rest: StepRest,
    reference: Reference,
    value_of: Callable[[Plan], float],
    admission: str,
    stop_at: float,
) -> tuple[Plan, float]:
    """The candidate with the best mean over the scenarios, timed by it, and its value for the predicted lengths.

    The first two candidates are always looked at, the others while there is time. Grouping by predicted length only pays
    where predictions tell responses apart, and this is where that is found out.
    """
    norms = (reference.time_s, reference.gpu_s)
    chosen: tuple[float, Plan, float] | None = None
    missed: list[tuple[float, float]] = []  # time and GPU-seconds of the whole step, of candidates that break the limit
    for i, candidate in enumerate(candidates):
        if i > 1 and time.perf_counter() > stop_at:
            break
        plan = timed(candidate, uncertain, cluster, model, rest, admission=admission)
        taken = step_of(plan, rest)
        mean = objective.value(*taken, norms)
        if math.isinf(mean):
            missed.append(taken)
        elif chosen is None or mean < chosen[0]:
            chosen = (mean, plan, value_of(candidate))
    if chosen is None:
        what, unit, limit, found = (
            ("deadline", "s", objective.deadline_s, min(time_s for time_s, _ in missed))
            if objective.deadline_s is not None
            else ("budget", "GPU-seconds", objective.budget_gpu_s, min(gpu_s for _, gpu_s in missed))
        )
        raise PlanningError(
            f"no plan found keeps the {what} of {limit:.3f} {unit} in the mean over the scenarios of lengths, and the best one "
            f"takes {found:.3f} {unit}; raise the {what} to {math.ceil(found * 1000) / 1000:.3f} {unit} or add GPUs"
        )
    return chosen[1], chosen[2]


def _blame(work: SortedWork, cluster: Cluster, objective: Objective, rest: StepRest, plans: list[Plan]) -> str:
    """Which limit makes the problem infeasible, and how far it is from the best plan known; ``plans`` are those found."""
    low, high = work.shortest_makespan_s, work.longest_makespan_s
    if objective.deadline_s is not None:
        least = rest.step_time_s(_least(low, high, lambda m: work.relaxed(m) is not None))
        found = rest.step_time_s(
            min([_least(low, high, lambda m: next_fit(work, m) is not None), *(p.makespan_s for p in plans)])
        )
        limit, where, remedy = objective.deadline_s, f" on {cluster.max_actors} actors", " or add GPUs"
        what, unit = "deadline", "s"
    else:
        assert objective.budget_gpu_s is not None
        relaxed = work.relaxed(high)
        least = rest.step_gpu_s(low, cluster.gpus_per_actor * (relaxed.actor_s if relaxed else 0.0))
        found = min(rest.step_gpu_s(p.makespan_s, p.gpu_seconds) for p in plans)
        limit, where, remedy = objective.budget_gpu_s, "", ""
        what, unit = "budget", "GPU-seconds"
    return (
        f"no plan found for the {what} of {limit:.3f} {unit}: the step needs at least {least:.3f} {unit}{where}, and the best "
        f"plan found takes {found:.3f}; raise the {what} by {math.ceil((found - limit) * 1000) / 1000:.3f} {unit}{remedy}"
    )


def _least(low: float, high: float, feasible: Callable[[float], bool]) -> float:
    """The least feasible number between ``low`` and ``high`` by bisection; ``high`` when none below it is."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return high

"""``plan_generation``: the search over makespans first, then an OR-Tools model hinted with what it found.

Knows the parts and their order; the mathematics lives in ``relaxation``, ``rounding``, ``search`` and ``cpsat``.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace


from solver.assemble import assemble, check_fits
from solver.cluster import Cluster
from solver.errors import PlanningError
from solver.evaluate import admission_of, ready_s
from solver.latency import LatencyModel
from solver.objective import Objective, StepRest
from solver.plan import Improvement, Plan
from solver.reference import random_split, reference_of
from solver.relaxation import SortedWork
from solver.search import Groups, MakespanSearch
from solver.workload import IntArray, Workload

SMALLEST_MODEL_S = 0.2  # a CP-SAT model alone takes 50 ms: below this time limit it is not worth building
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
        workload: predicted lengths; cluster, latency: where and how fast; objective: what is best.
        rest: the step outside generation, which time, cost, deadline and budget include.
        time_limit_s: seconds for everything; under 0.2 s no OR-Tools model is built.
        admission: ``reserve`` or ``preempt``, the rule that the engines will use.
        seed: of the random split that serves as reference.

    Returns:
        The best plan found, never worse than the right-sized random split, with ``lower_bound``, ``gap``, ``status``
        (``optimal`` or ``feasible``) and ``history``.

    Raises:
        PlanningError: no plan exists; the message names the limit to blame and by how much it is missed.
    """
    began = time.perf_counter()
    stop_at = began + time_limit_s
    check_fits(workload, cluster, latency)
    model = latency.affine
    split = random_split(workload, cluster, model, objective, rest, seed=seed, admission=admission)
    reference = reference_of(split, rest)
    norms = (reference.time_s, reference.gpu_s)
    rule = admission_of(model, None, admission)
    work = SortedWork.of(workload, model, rule, ready_s(model), cluster.max_actors)

    def assembled(groups: list[IntArray]) -> Plan:
        return assemble("solver", groups, workload, cluster, model, rest, admission=admission)

    def value_of(plan: Plan) -> float:
        gpu_s = rest.step_gpu_s(plan.makespan_s, plan.gpu_seconds)
        return objective.value(rest.step_time_s(plan.makespan_s), gpu_s, norms)

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
    search = MakespanSearch(work, cluster.gpus_per_actor, objective, rest, norms, value_of_groups)
    search.run(GOOD_GAP, stop_at)
    if search.best_groups is not None and search.best_value < best_value:
        best, best_value = plans[tuple(b for _, b in search.best_groups)], search.best_value
    bound = min(search.lower_bound, best_value)
    note("makespan search", best_value, bound)

    left_s = stop_at - time.perf_counter()
    if time_limit_s >= SMALLEST_MODEL_S and left_s > 0.1 and best_value - bound > PROVEN_GAP * abs(best_value):
        from solver.cpsat import improve

        outcome = improve(work, best, cluster, objective, rest, norms, left_s)
        if outcome.groups is not None:
            candidate = assembled(outcome.groups)
            if value_of(candidate) < best_value:
                best, best_value = candidate, value_of(candidate)
        bound = min(max(bound, outcome.lower_bound), best_value)
        note("CP-SAT", best_value, bound)
    if math.isinf(best_value):
        raise PlanningError(_blame(work, cluster, objective, rest, split))
    proven = best_value - bound <= PROVEN_GAP * max(abs(best_value), 1e-12)
    return replace(
        best,
        policy="solver",
        reference=reference,
        value=best_value,
        lower_bound=bound,
        status="optimal" if proven else "feasible",
        history=tuple(history),
        solve_s=time.perf_counter() - began,
    )


def _blame(work: SortedWork, cluster: Cluster, objective: Objective, rest: StepRest, split: Plan) -> str:
    """Which limit makes the problem infeasible, and by how much."""
    if objective.deadline_s is not None:
        fastest = _least_feasible(work)
        return (
            f"no plan found for the deadline of {objective.deadline_s:.3f} s: the step needs at least "
            f"{rest.step_time_s(fastest):.3f} s on {cluster.max_actors} actors; raise it by "
            f"{max(0.0, rest.step_time_s(fastest) - objective.deadline_s):.3f} s or add GPUs"
        )
    assert objective.budget_gpu_s is not None
    relaxed = work.relaxed(work.longest_makespan_s)
    least = rest.step_gpu_s(work.shortest_makespan_s, cluster.gpus_per_actor * (relaxed.actor_s if relaxed else 0.0))
    return (
        f"no plan found for the budget of {objective.budget_gpu_s:.3f} GPU-seconds: the step needs at least {least:.3f} "
        f"({rest.step_gpu_s(split.makespan_s, split.gpu_seconds):.3f} by a random split)"
    )


def _least_feasible(work: SortedWork) -> float:
    """The shortest makespan that the relaxation allows on the actors there are."""
    low, high = work.shortest_makespan_s, work.longest_makespan_s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if work.relaxed(middle) is not None else (middle, high)
    return high

"""Schedules pipeline training: the fastest schedule first, then one with little memory that is as fast."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given, is_number
from solver.pipeline.bounds import latency_bound
from solver.pipeline.compiled import is_compiled
from solver.pipeline.evaluate import evaluate_orders
from solver.pipeline.listing import Orders
from solver.pipeline.memory import lower_memory
from solver.pipeline.operations import INPUTS, WEIGHTS, Operations
from solver.pipeline.order_search import earlier
from solver.pipeline.plan import OBJECTIVES, PipelinePlan, SearchReport, judged
from solver.pipeline.problem import PipelineProblem, whole
from solver.pipeline.search import Work, find_fastest

RULES_SHARE = 0.5  # of the time limit, for the fastest schedule by rules; compiled changes of orders have the rest


def schedule_pipeline(
    problem: PipelineProblem,
    memory: ArrayLike | None = None,
    objective: str = "latency",
    deadline: float | None = None,
    time_limit_s: float = 5.0,
    seed: int = 0,
    workers: int = 1,
) -> PipelinePlan:
    """Return a schedule of a pipeline problem with the shortest latency found, and lower bounds on latency and memory.

    Args:
        memory: capacity of each device, or one number for all; the problem's when None. No plan exceeds it.
        objective: ``latency``; ``latency_then_memory``: also minimise peak memory, without making the schedule slower;
            ``memory_within``: minimise peak memory with a latency of at most ``deadline``.
        deadline: latest latency, in the problem's time.
        time_limit_s: of the search, in counted seconds of the reference machine, so that the plan is always the same.
        seed: of random changes. workers: threads of CP-SAT, which take turns; one was fastest.

    Raises:
        PlanningError: an argument is out of range, the deadline is below the bound, or no schedule within it was found.

    Example:
        >>> from solver.pipeline import fused, schedule_pipeline
        >>> plan = schedule_pipeline(fused(actor=(8, 5, 32), critic=(8, 2, 32)))
        >>> plan.latency, plan.status
        (702.0, 'optimal')
    """
    if not isinstance(problem, PipelineProblem):
        raise PlanningError(f"problem is {as_given(problem)}; a PipelineProblem is needed")
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise PlanningError(f"objective is {as_given(objective)}; choose one of {', '.join(OBJECTIVES)}")
    if not is_number(time_limit_s, 0):
        raise PlanningError(f"time_limit_s is {as_given(time_limit_s)}; a finite number of seconds of 0 or more is needed")
    whole("seed", seed, 0)
    whole("workers", workers, 1)
    problem = problem if memory is None else problem.with_memory(memory)
    ops = Operations.of(problem)
    bound = latency_bound(ops)
    latest = _latest(deadline, objective, bound, ops.unit)
    goal = bound if objective != "memory_within" else max(bound, latest)
    work = Work(time_limit_s * (RULES_SHARE if is_compiled((1 - RULES_SHARE) * time_limit_s) else 1.0))
    found = find_fastest(problem, work, int(seed), goal)
    work.most_s = time_limit_s
    orders = earlier(ops, found.orders if found.latency is not None else one_at_a_time(ops), goal, work, int(seed))
    latency_s, compiled, stopped = work.spent_s, False, work.over
    if objective != "latency" and not work.over:
        latest = max(latest, evaluate_orders(ops, orders).latency)
        lower = lower_memory(ops, orders, latest, work, (int(seed), int(workers)))
        orders, compiled, stopped = lower.orders, lower.compiled, not lower.finished
    report = SearchReport(objective, float(time_limit_s), latency_s, work.spent_s - latency_s, compiled, stopped)
    plan = judged(problem, orders, report)
    if deadline is not None and plan.latency > deadline:
        raise PlanningError(
            f"no schedule within the deadline of {deadline:g} was found in {time_limit_s:g} s; the bound is "
            f"{plan.latency_bound:g} and the best schedule takes {plan.latency:g}"
        )
    return plan


def _latest(deadline: float | None, objective: str, bound: int, unit: float) -> int:
    """Return the deadline in units of time; the bound where there is none."""
    if deadline is None:
        if objective == "memory_within":
            raise PlanningError("objective memory_within needs a deadline; give the latest latency")
        return bound
    if not is_number(deadline, 0):
        raise PlanningError(f"deadline is {as_given(deadline)}; a finite number is needed")
    latest = math.floor(deadline / unit * (1 + 1e-12))
    if latest < bound:
        raise PlanningError(f"the deadline is {deadline:g}, but no schedule ends before {bound * unit:g}; give at least that")
    return latest


def one_at_a_time(ops: Operations) -> Orders:
    """Return orders that run micro-batch after micro-batch, which needs the least memory and always ends."""
    found: Orders = [[] for _ in ops.on_device]
    for chain in range(len(ops.chains)):
        path = [i for i in ops.topological if ops.types[i].chain == chain]
        weights = {ops.types[i].stage: i for i in path if ops.types[i].kind == WEIGHTS}
        for _ in range(ops.count[path[0]]):
            for i in path:
                op = ops.types[i]
                if op.kind != WEIGHTS:
                    found[ops.device[i]].append(i)
                if op.kind == INPUTS:
                    found[ops.device[i]].append(weights[op.stage])
    return found

"""Chooses when a learner with given GPUs starts: as late as it can without ending the step later.

A learner that streams is idle until prompts are complete, and often in between. Started later it works without pauses and costs
less, until it becomes what the step waits for. The step is followed (``step_totals``) on every scenario of the lengths.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.plan import Plan, check_plan
from solver.model.problem import PlanningProblem, check_problem
from solver.step.cut_timeline import CutTimeline, Generated
from solver.step.follow import step_totals
from solver.step.token_work import TokenWork
from solver.step.work import PhaseWork

HALVINGS = 12  # of the interval in which the start is


class LateStart(NamedTuple):
    """When a learner starts, with the step that it is expected to make, beside one with a learner from the step's start.

    Attributes:
        from_s: when its GPUs are allocated, from the start of the step.
        time_s, gpu_seconds: of the whole step, means over scenarios. held_time_s, held_gpu_seconds: with ``from_s`` 0.
    """

    from_s: float
    time_s: float
    gpu_seconds: float
    held_time_s: float
    held_gpu_seconds: float


def latest_start(
    plan: Plan,
    problem: PlanningProblem,
    work: TokenWork,
    *,
    delay: float = 0.005,
    gpus_per_server: int | None = None,
    whole_groups: bool = False,
) -> LateStart:
    """Return the latest start of a learner with which the step is expected to end as early as with one from its start.

    It is found by bisection, to 1/4,096 of the step. A learner that starts later than the step loads its models first
    (``work.load_s``).

    Args:
        plan: its actors release their GPUs when they are done. A runtime rule counts as if it never acted.
        problem: workload (with scenarios, times are means over them), latency and admission.
        work: with ``learner_gpus``; its ``learner_from_s`` is what is chosen.
        delay: share of the step's time by which it may end later.
        gpus_per_server: of the learner, which runs one item at a time on each server; None: those of an actor.
        whole_groups: a group is prepared and learned from as one item on the learner, once all of it is complete.

    Raises:
        PlanningError: an argument is of the wrong type or out of its range, or the learner has no GPUs.

    Example:
        >>> import solver
        >>> from solver.step.late_start import latest_start
        >>> from solver.step.token_work import TokenWork
        >>> latency = solver.LatencyModel("mine", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([10] * 4, range(4), [50, 60, 70, 900])
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), latency)
        >>> plan = solver.random_split(problem, actors=1)
        >>> work = TokenWork(0.0, 0.01, unlock="group", learner_gpus=1, place="learner")
        >>> start = latest_start(plan, problem, work)
        >>> start.from_s > 5, start.time_s <= 1.005 * start.held_time_s, start.gpu_seconds < start.held_gpu_seconds
        (True, True, True)
    """
    check_plan(plan)
    check_problem(problem)
    if not isinstance(work, TokenWork):
        raise PlanningError(f"work is {as_given(work)}; a TokenWork is needed")
    if not is_whole(work.learner_gpus, 1):
        raise PlanningError(f"learner_gpus of the work is {as_given(work.learner_gpus)}; a learner of 1 GPU or more is needed")
    if not is_number(delay, 0):
        raise PlanningError(f"delay is {as_given(delay)}; a share of 0 or more is needed")
    cluster, latency = problem.one_kind
    size = cluster.gpus_per_actor if gpus_per_server is None else gpus_per_server
    cases = []
    for case in problem.workload.cases():
        generated, phases = CutTimeline(plan, case, latency.affine, problem.admission).uncut, work.of(case, size)
        cases.append(by_group(generated, phases) if whole_groups else (generated, phases))
    begin_s = np.array([actor.start_s for actor in plan.actors])

    def step(from_s: float) -> tuple[float, float]:
        times, costs = [], []
        for generated, phases in cases:
            started = replace(phases, learner_from_s=from_s)
            time_s, phases_gpu_s = step_totals(generated.completion_s, generated.free_s, started)
            times.append(time_s)
            costs.append(cluster.gpus_per_actor * float((generated.free_s - begin_s).sum()) + phases_gpu_s)
        return float(np.mean(times)), float(np.mean(costs))

    held = step(0.0)
    early, late, found = 0.0, held[0], held
    for _ in range(HALVINGS):
        middle = (early + late) / 2
        tried = step(middle)
        if tried[0] <= held[0] * (1 + delay):
            early, found = middle, tried
        else:
            late = middle
    return LateStart(early, *found, *held)


def by_group(generated: Generated, work: PhaseWork) -> tuple[Generated, PhaseWork]:
    """Return generation and work with one item for each group: when all of it is complete, it is prepared and learned from."""
    names, group = np.unique(work.group, return_inverse=True)
    completion_s, nothing = np.zeros(len(names)), np.zeros(len(names))
    np.maximum.at(completion_s, group, generated.completion_s)
    seconds = np.bincount(group, weights=work.prepare_s + work.learn_s)
    items = replace(work, prepare_s=nothing, learn_s=seconds, group=np.arange(len(names)), unlock="response")
    return replace(generated, completion_s=completion_s), items

"""Runs a ``StepPlan`` on the virtual clock for several steps: which call has which GPUs when, as a trace.

Generation that was planned is decoded by simulated engines, so responses may have other lengths than predicted. All other calls
take their planned seconds. When calls run is the arithmetic of the planner (``solver.layouts.times``), with the seconds of
this generation.

Every call has an allocation of its own in each step, on the GPUs of its mesh, and so has every reallocation. GPUs that an actor
released go to the next call. A call that runs into the next step keeps its own step number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor.dataflow.rows import PlannedStepRows
from rlhfless.executor.step.record import Row, StepRecord
from rlhfless.executor.virtual.executor import run_step
from solver.layouts.generation import StepGeneration, by_call
from solver.layouts.plan import GeneratedTimes, PlannedCall, StepPlan, options_of, plan_times
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, is_whole
from solver.model.plurals import counted
from solver.model.workload import Workload

if TYPE_CHECKING:
    from rlhfless.trace import Trace


@dataclass(frozen=True, eq=False)
class ExecutedSteps:
    """Several steps of a step plan on the virtual clock.

    Attributes:
        plan: the plan that was run.
        period_s: seconds per step in the steady state.
        periodic: whether steps repeat exactly; if not, ``period_s`` is a mean.
        rollouts, allocations, spans: rows of the trace's tables.
    """

    plan: StepPlan
    period_s: float
    periodic: bool
    rollouts: list[Row] = field(repr=False)
    allocations: list[Row] = field(repr=False)
    spans: list[Row] = field(repr=False)
    plans: list[Row] = field(repr=False)
    meta: Mapping[str, Any] = field(repr=False)

    @property
    def trace(self) -> Trace:
        """Return the steps as a trace in memory.

        Raises:
            PlanningError: no responses are known.
        """
        import pandas as pd

        from rlhfless.trace import Trace

        if not self.rollouts:
            raise PlanningError("a trace needs responses, and the step plan's lengths are fixed in its costs; give responses=")
        rollouts, allocations, spans = (pd.DataFrame(rows) for rows in (self.rollouts, self.allocations, self.spans))
        return Trace(rollouts, allocations, spans, plans=self.plans, meta=dict(self.meta))


def run_step_plan(
    plan: StepPlan,
    cluster: Cluster,
    *,
    generation: StepGeneration | Mapping[str, StepGeneration] | None = None,
    responses: Workload | None = None,
    steps: int = 8,
    run: str = "run",
) -> ExecutedSteps:
    """Run a step plan on the virtual clock.

    Args:
        cluster: the cluster that the plan was made for; its prices are billed.
        generation: the generation that the plan was made with; its workload may have the true lengths. None if lengths are
            fixed.
        responses: the responses of a step, for the trace, if the plan has no generation of its own.
        steps: number of steps in the trace. More are simulated if the period needs it.

    Raises:
        PlanningError: the cluster is another one, or an argument is missing or makes no sense.

    Example:
        >>> import solver
        >>> from rlhfless.executor import run_step_plan
        >>> from solver.layouts import CallMemory, grpo, plan_step
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> cluster = solver.Cluster(1, 4, 1)
        >>> done = run_step_plan(plan_step(grpo(), cluster, Costs()), cluster, responses=solver.Workload([9], [0, 0], [50, 70]))
        >>> done.period_s, len(done.trace.rollouts)
        (1.5, 16)
    """
    check_plan_cluster(plan, cluster)
    if not is_whole(steps, 1):
        raise PlanningError(f"steps is {as_given(steps)}; a whole number of 1 or more is needed")
    if responses is not None and not isinstance(responses, Workload):
        raise PlanningError(f"responses is {as_given(responses)}; a Workload is needed")
    records = _generated(plan, cluster, generation)
    took = {call.name: _times(records[call.name], call) for call in plan.calls if call.name in records}
    options = options_of(plan, took)
    rows = PlannedStepRows(plan, cluster, run, records, responses)
    times = plan_times(options, plan, int(steps))
    for step in range(int(steps)):
        rows.add(step, times.start_s[0, :, step].tolist(), times.end_s[0, :, step].tolist(), options.reallocated)
    meta = {"clock": "virtual", "charging": "profile", "policy": f"step plan of {plan.algorithm}", "cluster": vars(cluster)}
    return ExecutedSteps(
        plan, float(times.period_s[0]), bool(times.periodic[0]), rows.rollouts, rows.allocations, rows.spans, rows.plans, meta
    )


def check_plan_cluster(plan: StepPlan, cluster: Cluster) -> None:
    """Refuse a cluster that the step plan was not made for.

    Raises:
        PlanningError: the message names both clusters.
    """
    if not isinstance(plan, StepPlan):
        raise PlanningError(f"plan is {as_given(plan)}; a StepPlan, such as plan_step returns, is needed")
    if not isinstance(cluster, Cluster):
        raise PlanningError(f"cluster is {as_given(cluster)}; a Cluster is needed")
    if (plan.gpus, plan.gpus_per_node) != (cluster.gpus, cluster.gpus_per_node):
        made, given = (
            f"{counted(n, 'GPU')} in nodes of {of}"
            for n, of in ((plan.gpus, plan.gpus_per_node), (cluster.gpus, cluster.gpus_per_node))
        )
        raise PlanningError(f"the step plan was made for {made}, but the cluster has {given}; plan the step for this cluster")


def _generated(
    plan: StepPlan, cluster: Cluster, generation: StepGeneration | Mapping[str, StepGeneration] | None
) -> dict[str, StepRecord]:
    """Return one step of every planned generation, decoded by simulated engines from time 0 on."""
    planned = [call for call in plan.calls if call.generation is not None]
    if not planned:
        if generation is not None:
            raise PlanningError("generation is given, but the step plan takes its seconds from costs; leave it out")
        return {}
    if generation is None:
        names = ", ".join(call.name for call in planned)
        raise PlanningError(f"the step plan has generation plans of {names}; give the generation that it was planned with")
    given = by_call(plan.dataflow, generation)
    return {call.name: _decoded(call, given[call.name], cluster.gpus_per_node) for call in planned}


def _decoded(call: PlannedCall, generation: StepGeneration, gpus_per_node: int) -> StepRecord:
    problem = generation.problem(call.layout.mesh.gpus, gpus_per_node, call.layout.strategy.tp)
    if problem is None or call.generation is None:
        raise PlanningError(
            f"call {call.name!r} generates with tp {call.layout.strategy.tp}, but the generation has no latency model of it; "
            "give the generation that the step was planned with"
        )
    work = problem.workload
    requests = [
        Request(i, int(work.prompt_tokens[prompt]), work.max_response_tokens, target_tokens=tokens, prompt=prompt)
        for i, (prompt, tokens) in enumerate(zip(work.prompt_of.tolist(), work.response_tokens.tolist(), strict=True))
    ]
    return run_step(
        call.generation, requests, SimulatedEngine, problem.latency, problem.cluster, admission=generation.admission
    )


def _times(record: StepRecord, call: PlannedCall) -> GeneratedTimes:
    """Return what a generate call took."""
    release_s = [0.0] * call.layout.mesh.gpus
    for row in record.allocations:
        for gpu in row["gpu_ids"]:
            release_s[gpu] = max(release_s[gpu], row["end_s"])
    return GeneratedTimes(record.makespan_s, tuple(release_s))

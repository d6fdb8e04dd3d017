"""Charges a training step by a step plan: when each of its calls runs, on which GPUs, and what moving weights takes.

The loop runs the calls in the order of the graph, one after the other, whatever the plan says. So weights and responses do not
depend on the plan, and only the virtual clock does. Generation is planned for the GPUs of the plan's generate call and takes
what its engines take. When it is over, the other calls take their planned seconds, by the arithmetic of the planner. At the end
of the step the weights are sent to where the next step's calls need them. The next step starts after all of it: a call that the
plan runs beside the next generation is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlhfless.executor import WorkItem
from rlhfless.executor.dataflow.rows import call_item, reallocation_items
from rlhfless.executor.dataflow.run import check_plan_cluster
from rlhfless.training.config import TrainConfig, TrainError
from solver.layouts.graph import GENERATE, TRAIN, Call
from solver.layouts.plan import GeneratedTimes, PlannedCall, StepPlan, one_step_times, options_of
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem

Held = tuple[range, float]  # GPUs, and when they were released
PLANNED_CLOCK = "step plan"  # the source of seconds, in details of spans


def check_step_plan(plan: StepPlan, config: TrainConfig, cluster: Cluster, latency: LatencyModel, *, on_pool: bool) -> None:
    """Refuse a step plan that does not charge this run.

    Args:
        on_pool: the run is on the wall clock.

    Raises:
        PlanningError: it is no plan, or one for another cluster.
        TrainError: the run is on the wall clock, has another algorithm or size of actors, or options that the plan decides.
    """
    check_plan_cluster(plan, cluster)
    hardware = config.cluster
    if on_pool:
        raise TrainError("a step plan charges the virtual clock, but actors run on the wall clock; leave out executor")
    if plan.algorithm != config.algorithm.name:
        raise TrainError(
            f"the step plan is of {plan.algorithm!r}, but the algorithm is {config.algorithm.name!r}; plan that one"
        )
    decided = {"preparation": "after", "preparation_actors": 1, "learning": "batch", "charging": "profile"}
    for name, usual in decided.items():
        if getattr(hardware, name) != usual:
            raise TrainError(f"cluster.{name} is {getattr(hardware, name)!r}, but a step plan decides that; leave it out")
    tp = generate_call(plan).layout.strategy.tp
    if tp != latency.gpus_per_actor:
        raise TrainError(
            f"the step plan generates with tp {tp}, but an actor of profile {latency.name!r} has "
            f"{counted(latency.gpus_per_actor, 'GPU')}; give a profile of {tp}"
        )


def generate_call(plan: StepPlan) -> PlannedCall:
    """Return the call that generates.

    Raises:
        TrainError: there is none, or there are several.
    """
    found = [call for call in plan.calls if call.kind == GENERATE]
    if len(found) != 1:
        raise TrainError(f"the step plan has {len(found)} calls that generate; the training loop generates once per step")
    return found[0]


def generation_problem(problem: PlanningProblem, plan: StepPlan | None) -> PlanningProblem:
    """Return generation on the GPUs of the plan's generate call, counted from 0, with the plan's seconds outside generation.

    Without a plan it is the problem itself.
    """
    if plan is None:
        return problem
    cluster, gpus = problem.cluster, generate_call(plan).layout.mesh.gpus
    assert isinstance(cluster, Cluster), "training has one kind of GPUs"
    of_call = replace(cluster, nodes=max(1, gpus // cluster.gpus_per_node), gpus_per_node=min(gpus, cluster.gpus_per_node))
    return replace(problem, cluster=of_call, phases=plan.phases())


def on_mesh(generation: Plan, plan: StepPlan | None) -> Plan:
    """Return a plan of ``generation_problem`` on the GPUs of the generate call."""
    if plan is None:
        return generation
    first = generate_call(plan).layout.mesh.first
    node = first // plan.gpus_per_node
    actors = tuple(
        replace(actor, gpu_ids=tuple(first + gpu for gpu in actor.gpu_ids), node=node + actor.node)
        for actor in generation.actors
    )
    return replace(generation, actors=actors)


def planned_items(plan: StepPlan, generated_s: float, learned: Mapping[str, Any]) -> list[WorkItem]:
    """Return the calls after generation as work items, and the reallocations for the next step.

    Args:
        generated_s: when generation ended, in seconds from the start of the step.
        learned: details of the span of training: the algorithm's numbers.
    """
    options = options_of(plan, {generate_call(plan).name: GeneratedTimes(0.0, ())}, reallocates=False)
    times = one_step_times(options, plan)
    calls, graph = {call.name: call for call in plan.calls}, plan.dataflow
    work: list[WorkItem] = []
    held: list[Held] = []
    ended_s: dict[str, float] = {}
    for at, call in enumerate(graph.calls):
        begin_s, end_s = (float(generated_s + of_task[0, at, 0]) for of_task in (times.start_s, times.end_s))
        ended_s[call.name] = end_s
        if call.kind != GENERATE:
            work.append(call_item(calls[call.name], begin_s, end_s - begin_s, _detail(call, plan, learned)))
            held.append((_gpus(calls[call.name]), end_s))
    for at in options.reallocated:  # after the training, once the GPUs are free, one after the other
        train = graph.trained_by[at]
        assert train is not None, "only trained roles are reallocated"
        call_, trained = calls[graph.calls[at].name], calls[graph.calls[train].name]
        meshes = (_gpus(call_), _gpus(trained))
        begin_s = max([ended_s[trained.name], *(s for gpus, s in held if any(set(gpus) & set(mesh) for mesh in meshes))])
        work += reallocation_items(call_, trained, begin_s, call_.reallocate_s)
        held += [(mesh, begin_s + call_.reallocate_s) for mesh in meshes]
    return work


def _detail(call: Call, plan: StepPlan, learned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of a call's spans; those of the policy's training have the algorithm's numbers."""
    trains = call.kind == TRAIN and call.role == generate_call(plan).role
    return {"clock": PLANNED_CLOCK, **(learned if trains else {})}


def _gpus(call: PlannedCall) -> range:
    return range(call.layout.mesh.first, call.layout.mesh.last)

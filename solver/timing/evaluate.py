"""Computes time, GPU-seconds and dollars of every actor of a plan under its latency model.

Inputs: plan, workload and latency models. A plan with a runtime rule is evaluated as if the rule never acted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solver.model.admission import Admission
from solver.model.errors import PlanningError, check_flags
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases
from solver.model.offers import latency_of
from solver.model.plan import ActorPlan, Plan, check_plan
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray, IntArray, Workload
from solver.timing.batch import Batch
from solver.timing.timeline import busy_s

ActorSeconds = Callable[[Workload, ActorPlan, LatencyModel, Admission], float]
"""Seconds from when an actor can decode until its last response is complete."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Time and cost of a plan. Over S sets of lengths (the scenarios, or one), the scalars are means.

    Attributes:
        makespan_s, gpu_seconds, cost_usd: of generation. done_s: (N,) when each actor is done.
        makespans_s, gpu_seconds_of, cost_usd_of: (S,) of every set of lengths.
    """

    makespan_s: float
    gpu_seconds: float
    cost_usd: float
    done_s: FloatArray
    makespans_s: FloatArray
    gpu_seconds_of: FloatArray
    cost_usd_of: FloatArray


def ready_s(latency: LatencyModel, prewarmed: bool = False) -> float:
    """Return the seconds from allocating an actor's GPUs until it can decode: start (none when prewarmed) and weight sync."""
    return latency.sync_s if prewarmed else latency.start_s + latency.sync_s


def admission_of(latency: LatencyModel, max_batch: int | None = None, rule: str = "reserve") -> Admission:
    """Return slots and KV memory of an actor of this latency model, with fewer slots if ``max_batch`` says so."""
    slots = latency.max_batch if max_batch is None else min(max_batch, latency.max_batch)
    return Admission(slots, latency.kv_capacity_tokens, rule)


def cached_tokens(
    workload: Workload,
    responses: ArrayLike,
    prefixes: ArrayLike = (),
    prefix_tokens: ArrayLike = (),
    shares_prompts: bool = False,
) -> IntArray:
    """Return the (n,) KV tokens of each response's context that are already cached when it joins.

    Args:
        responses: (n,) of one actor, in admission order.
        prefixes, prefix_tokens: prompts of which the actor received a prefix, and the tokens of each.
        shares_prompts: the first response of a prompt computes the part of it that was not received; the later ones find all of
            it cached. A response of length 0 computes nothing for others.

    Raises:
        PlanningError: a prefix is longer than its prompt, or there is no such prompt.
    """
    chosen = np.asarray(responses, dtype=np.int64)
    prompt_of = workload.prompt_of[chosen]
    cached: IntArray = np.zeros(len(chosen), np.int64)
    if np.size(prefixes):
        received = np.zeros(len(workload.prompt_tokens), np.int64)
        prompts = np.asarray(prefixes, dtype=np.int64)
        if unknown := prompts[(prompts < 0) | (prompts >= len(received))].tolist():
            raise PlanningError(
                f"an actor receives a prefix of prompt {unknown[0]}; the workload has prompts 0 to {len(received) - 1}"
            )
        received[prompts] = prefix_tokens
        too_long = np.flatnonzero((received > workload.prompt_tokens) | (received < 0))
        if len(too_long):
            i = int(too_long[0])
            raise PlanningError(f"an actor receives {received[i]} tokens of prompt {i}, which has {workload.prompt_tokens[i]}")
        cached = received[prompt_of]
    if shares_prompts:
        later = np.ones(len(chosen), dtype=bool)
        needs_iterations = np.flatnonzero(workload.remaining_tokens[chosen] > 0)
        later[needs_iterations[np.unique(prompt_of[needs_iterations], return_index=True)[1]]] = False
        cached = np.where(later, workload.prompt_tokens[prompt_of], cached)
    return cached


def actor_busy_s(workload: Workload, actor: ActorPlan, latency: LatencyModel, admission: Admission) -> float:
    """Return the seconds from when the actor can decode until its last response is complete."""
    chosen = np.asarray(actor.responses, dtype=np.int64)
    cached = cached_tokens(workload, chosen, actor.prefixes, actor.prefix_tokens, actor.shares_prompts)
    return busy_s(Batch.of(workload, chosen, cached, admission), latency)


def generated_s(actors: tuple[ActorPlan, ...], done_s: ArrayLike) -> float:
    """Return when the last response is complete. Actors without responses, which only prefill, do not count."""
    works = np.array([len(a.responses) > 0 for a in actors], dtype=bool)
    return float(np.asarray(done_s, dtype=float)[works].max(initial=0.0))


def held_s(actors: tuple[ActorPlan, ...], done_s: ArrayLike, phases: NonGenerationPhases) -> FloatArray:
    """Return the (N,) seconds for which each actor occupies its GPUs: until it is done, or until its release if that
    is later."""
    makespan = generated_s(actors, done_s)
    until = {"generation": makespan, "step": makespan + phases.seconds}
    done = np.asarray(done_s, dtype=float).tolist()
    return np.array([max(until.get(a.release, d), d) - a.start_s for a, d in zip(actors, done, strict=True)])


def evaluate(plan: Plan, problem: PlanningProblem, *, table: bool = False) -> Evaluation:
    """Return the time and cost of ``plan`` on the workload of ``problem``.

    Args:
        plan: a plan with every response of the workload exactly once.
        problem: its workload has the lengths to evaluate with; predicted lengths reproduce the plan's own numbers. With
            scenarios, every number is the mean over them. Latency, phases and admission are used as in planning; release of
            GPUs and shared prefill are those of the plan.
        table: use the measured table instead of the linear fit that planning uses.

    Raises:
        PlanningError: an argument is of the wrong type, a response is missing, planned twice or not in the workload, or a kind
            has no latency model.

    Example:
        >>> evaluate(plan, dataclasses.replace(problem, workload=true_lengths), table=True).makespan_s
    """
    check_plan(plan)
    check_problem(problem)
    check_flags(table=table)
    check_complete(plan, len(problem.workload))
    models = [latency_of(problem.latency, a.kind, len(a.gpu_ids)) for a in plan.actors]
    return evaluated(plan, problem, models if table else [model.affine for model in models])


def evaluated(
    plan: Plan, problem: PlanningProblem, models: Sequence[LatencyModel], seconds: ActorSeconds = actor_busy_s
) -> Evaluation:
    """Return the time and cost of a plan that was checked, with a latency model per actor.

    Args:
        seconds: ``actor_busy_s``, or a function that knows some of its results.
    """
    workload, phases = problem.workload, problem.phases
    gpus = np.array([len(a.gpu_ids) for a in plan.actors], dtype=float)
    price = np.array([a.usd_per_gpu_s for a in plan.actors])
    done_of, gpu_s_of, usd_of = [], [], []
    for case in workload.cases():
        done = np.array(
            [
                a.start_s
                + ready_s(model, a.prewarmed)
                + a.receive_s
                + seconds(case, a, model, admission_of(model, a.max_batch, problem.admission))
                for a, model in zip(plan.actors, models, strict=True)
            ]
        )
        gpu_s = gpus * held_s(plan.actors, done, phases)
        done_of.append(done)
        gpu_s_of.append(float(gpu_s.sum()))
        usd_of.append(float((gpu_s * price).sum()))
    makespans = np.array([generated_s(plan.actors, done) for done in done_of])
    gpu_seconds, cost_usd = np.array(gpu_s_of), np.array(usd_of)
    return Evaluation(
        float(makespans.mean()), float(gpu_seconds.mean()), float(cost_usd.mean()), np.mean(done_of, axis=0),
        makespans, gpu_seconds, cost_usd,
    )  # fmt: skip


def check_complete(plan: Plan, responses: int) -> None:
    """Refuse a plan that does not contain each of the ``responses`` exactly once.

    Raises:
        PlanningError: the message names the first response that is wrong.
    """
    check_each_once([np.array(actor.responses, dtype=np.int64) for actor in plan.actors], responses)


def check_each_once(groups: Sequence[IntArray], responses: int) -> None:
    """Refuse groups that do not hold each of the ``responses`` exactly once (a PlanningError)."""
    planned: IntArray = np.concatenate([*groups, np.zeros(0, dtype=np.int64)])
    if unknown := planned[(planned < 0) | (planned >= responses)].tolist():
        raise PlanningError(f"the plan has response {unknown[0]}, but the workload has only responses 0 to {responses - 1}")
    counts = np.bincount(planned, minlength=responses)
    if np.any(counts != 1):
        wrong = int(np.flatnonzero(counts != 1)[0])
        raise PlanningError(
            f"response {wrong} is in the plan {counts[wrong]} times; "
            f"each of the {responses} responses must be in it exactly once"
        )

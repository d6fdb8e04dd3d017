"""Plans the rest of a step again when an actor is lost or slow: which actors take its responses, and which new ones start.

Inputs: what a rule may see, a forecast of lengths, latency models and free GPUs. Output: a ``RecoveryPlan``. There are two ways
to continue. Either the surviving actors take the responses over, as after a cut (``rlhfless.scheduling.rules``), or
``solver.plan`` plans them for a number of new actors. Each candidate is timed by the planning model together with
all running work. The best one for the objective is chosen, including the time and cost spent so far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import solver
from rlhfless.scheduling.rules import ReceiverRoom, hand_over
from solver.lengths.remaining import RemainingLengths
from solver.model.admission import Admission
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.objective import Objective
from solver.model.offers import Latencies, latency_of
from solver.model.plan import ActorPlan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView, StepState
from solver.model.workload import IntArray, Workload
from solver.timing.batch import Batch
from solver.timing.evaluate import admission_of, ready_s
from solver.timing.timeline import busy_s


@dataclass(frozen=True)
class Survivor:
    """A surviving actor: its view, and how many times as long as the others its iterations take."""

    view: ActorView
    plan: ActorPlan
    latency: LatencyModel
    admission: Admission
    slowness: float = 1.0


@dataclass(frozen=True)
class RemainingWork:
    """The remaining work of a step.

    Attributes:
        workload: of all R responses, each with a prompt of its own; a complete response has no tokens left.
        survivors: actors that can continue; free: GPUs on which actors may be started, as actors without responses, prewarmed
            where an actor waits already.
        passed_s, spent: seconds of the step so far and their cost, in the objective's unit.
        cold_start_s: the longest cold start that was measured; no new actor is assumed to start faster.
    """

    workload: Workload
    survivors: Sequence[Survivor]
    free: Sequence[ActorPlan]
    latency: Latencies
    admission: str
    objective: Objective
    passed_s: float = 0.0
    spent: float = 0.0
    cold_start_s: float = 0.0

    def model_of(self, place: ActorPlan) -> LatencyModel:
        """Return the latency model of an actor that is started on this place."""
        model = latency_of(self.latency, place.kind, len(place.gpu_ids))
        return replace(model, start_s=max(model.start_s, self.cold_start_s))


@dataclass(frozen=True)
class RecoveryPlan:
    """A way to continue: which response goes to which surviving actor, and actors to start, with their responses."""

    moves: Mapping[int, int]
    starts: tuple[ActorPlan, ...] = ()


def what_is_left(
    prompt_tokens: IntArray, tokens: IntArray, complete: np.ndarray, limit: int, forecast: RemainingLengths
) -> Workload:
    """Return the workload of a running step: for each unfinished response, the tokens that the forecast still expects.

    Args:
        prompt_tokens, tokens, complete: (R,) of every response; tokens are those that need not be generated again.
    """
    every = np.arange(len(tokens))
    expected = np.ceil(forecast.observe(tokens, complete).expected_tokens(every, tokens))
    predicted = np.where(complete, tokens, np.minimum(tokens + np.maximum(expected, 1), limit))
    return Workload(prompt_tokens, every, predicted, tokens, max_response_tokens=limit)


def resolve(homeless: Sequence[int], work: RemainingWork, slow_actor: Survivor | None = None) -> RecoveryPlan | None:
    """Return the best way to continue with the ``homeless`` responses.

    Args:
        slow_actor: the actor that has them, if they may also stay on it.

    Returns:
        None when staying is best, or, if they cannot stay, when no plan exists.
    """
    best = None if slow_actor is None else _key({}, (), work, slow_actor)
    recovery: RecoveryPlan | None = None
    for candidate in _recoveries(homeless, work):
        key = _key(candidate.moves, candidate.starts, work)
        if best is None or key < best:
            best, recovery = key, candidate
    return recovery


def _recoveries(homeless: Sequence[int], work: RemainingWork) -> Iterator[RecoveryPlan]:
    workload = work.workload
    ordered = sorted(homeless, key=lambda r: (-int(workload.remaining_tokens[r]), r))
    needs = int(workload.reserved_tokens[ordered].max())
    # an actor without free slots queues them, which the timing includes
    able = [
        replace(g.view, free_slots=len(ordered), free_kv_tokens=math.inf)
        for g in work.survivors
        if g.admission.kv_capacity_tokens >= needs
    ]
    prompt, tokens = workload.prompt_tokens[workload.prompt_of], workload.generated_tokens
    now = StepState.of(work.passed_s, able, tokens, np.zeros(len(tokens), bool), prompt)
    cut = hand_over(ActorView(-1, 0, 0, 0, (), tuple(ordered), (), 0), able, ReceiverRoom(now))
    if cut is not None:
        yield RecoveryPlan({move.response: move.to_actor for move in cut.moves})
    part = Workload(
        workload.prompt_tokens[ordered], range(len(ordered)), workload.response_tokens[ordered],
        workload.generated_tokens[ordered], workload.max_response_tokens,
    )  # fmt: skip
    places = sorted(work.free, key=lambda place: (*_alike(place), not place.prewarmed))
    for (kind, gpus, *_), alike in itertools.groupby(places, key=_alike):
        group = list(alike)
        model = work.model_of(group[0])
        for count in _counts(min(len(group), len(ordered))):
            try:
                problem = PlanningProblem(
                    part, Cluster(count, gpus, gpus, kind), model, Objective(work.objective.time_weight),
                    admission=work.admission, min_actors=count, max_actors=count,
                )  # fmt: skip
                plan = solver.plan(problem, quick=True)
            except PlanningError:  # a response that these actors cannot hold
                break
            starts = [
                replace(place, responses=tuple(ordered[i] for i in actor.responses))
                for place, actor in zip(group, plan.actors, strict=False)
            ]  # fmt: skip
            yield RecoveryPlan({}, tuple(starts))


def _alike(place: ActorPlan) -> tuple[str, int, str]:
    return place.kind, len(place.gpu_ids), place.market


def _counts(max_actors: int) -> list[int]:
    """Return the numbers of actors to try: powers of two, and the maximum."""
    return sorted({*(2**i for i in range(max_actors.bit_length()) if 2**i <= max_actors), max_actors} - {0})


def _key(
    moves: Mapping[int, int], starts: Sequence[ActorPlan], work: RemainingWork, slow_actor: Survivor | None = None
) -> tuple[float, float]:
    """Return what right-sizing minimises, for the whole step if it continues in this way."""
    workload, usd = work.workload, work.objective.cost == "usd"
    makespan_s, cost = 0.0, work.spent

    def enter(plan: ActorPlan, done_s: float) -> None:
        nonlocal makespan_s, cost
        makespan_s = max(makespan_s, done_s)
        cost += len(plan.gpu_ids) * done_s * (plan.usd_per_gpu_s if usd else 1.0)

    def busy(responses: Sequence[int], running: int, model: LatencyModel, admission: Admission) -> float:
        if not responses:
            return 0.0
        indices = np.array(responses, dtype=np.int64)
        context = workload.context_tokens[indices]
        prefill = np.where(np.arange(len(indices)) < running, 0, context)
        reserved = workload.reserved_tokens[indices]
        return busy_s(Batch(workload.remaining_tokens[indices], context, prefill, reserved, admission), model.affine)

    for g in (*work.survivors, *(() if slow_actor is None else (slow_actor,))):
        responses = [*g.view.unfinished, *g.view.arriving, *(r for r, to in moves.items() if to == g.view.actor)]
        enter(g.plan, g.slowness * busy(responses, len(g.view.running), g.latency, g.admission))
    for plan in starts:
        model = work.model_of(plan)
        admission = admission_of(model, plan.max_batch, work.admission)
        enter(plan, ready_s(model, plan.prewarmed) + busy(plan.responses, 0, model, admission))
    return work.objective.key(work.passed_s + makespan_s, cost)

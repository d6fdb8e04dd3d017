"""Starts the actors of a plan on the virtual clock: makes their engines, assigns their requests and records what they wait for.

Inputs: the plan, requests, latency models and an engine factory. Output: the running ``VirtualActor`` objects by index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rlhfless.engine.protocol import (
    Engine,
    Request,
    SupportsTokenArrays,
)  # fmt: skip
from rlhfless.engine.simulated.requests import Requests
from rlhfless.executor.step.actor_state import Actor, Allocation, reuses_prefixes, with_prefixes, without_prompt
from rlhfless.executor.step.plan_validation import ChecksRequests, check_before_prefill
from rlhfless.executor.step.prefixes import prefixes_of
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.shared_links import NodeLinks
from rlhfless.executor.step.startup import ActorStartup
from rlhfless.system.cleanup import clean_up
from solver.model.admission import Admission
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.offers import Latencies, latency_of
from solver.model.plan import Plan
from solver.model.workload import IntArray
from solver.timing.evaluate import admission_of

EngineFactory = Callable[[LatencyModel, Admission, float], Engine]
"""Makes the engine of one actor: its latency model, admission (slots, memory, rule) and the time at which it is ready."""


@runtime_checkable
class ComputesPrefixes(ChecksRequests, Protocol):
    """An engine factory that computes prefixes once for many responses."""

    def compute_prefixes(self, prefixes: Mapping[int, np.ndarray]) -> Mapping[int, Any]:
        """KV state of prefixes (token ids by prompt), for ``Request.prefix_kv``."""
        ...


@runtime_checkable
class StartsLate(Protocol):
    """An engine factory whose actors start later than their latency model predicts (fault injection)."""

    def start_delays_s(self, actors: int) -> Sequence[float]:
        """Return the extra start-up seconds of the first ``actors`` actors that it makes."""
        ...


@runtime_checkable
class EmulatesTogether(Protocol):
    """An engine factory whose engines decode in one process, which has to have room for all actors of a step."""

    def emulate(self, models: Sequence[LatencyModel], responses: int) -> None:
        """Start the process before engines are made, for actors with these latency models and the responses of a step."""
        ...


@runtime_checkable
class Closing(Protocol):
    """An engine factory that owns memory."""

    def close(self) -> None:
        """Free the memory. Idempotent."""
        ...


@dataclass
class VirtualActor(Actor):
    """An actor of the plan on the virtual clock."""

    engine: Engine = field(kw_only=True)
    pending: int = 0  # completions that are not known yet
    arriving: int = 0  # of ``expecting``: those on their way
    copied: int = 0  # in its batch, of responses that belong to others already
    before_move: tuple[list[int], list[int]] | None = None  # its batch and queue when a move made its engine run ahead
    trigger_s: float = -math.inf  # lower bound on its completion of the number ``trigger_for``
    trigger_for: int = 0
    ready_s: float = field(init=False)  # when its engine can decode
    arrays: SupportsTokenArrays | None = field(init=False)  # its engine, if it is one

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ready_s = self.engine.clock_s
        self.arrays = self.engine if isinstance(self.engine, SupportsTokenArrays) else None

    def changed(self) -> None:
        """Note that its engine was given, or lost, responses: what was known of its completions holds no more."""
        self.trigger_s = -math.inf

    def next_trigger_s(self, now_s: float) -> float:
        """Return a lower bound on the time of the completion at which the rule wants to be asked; infinite where there is none.

        The engine is asked again only when that time has passed, or something has changed.
        """
        count = self.trigger_completions
        if count is None:
            return math.inf
        if self.trigger_for != count or self.trigger_s <= now_s:
            self.trigger_s = self.engine.peek_next_event_s(max(1, count - self.completed - self.pending))
            self.trigger_for = count
        return self.trigger_s

    def token_arrays(self) -> tuple[IntArray, IntArray, int]:
        """Return the responses that its engine has, as ``SupportsTokenArrays`` does."""
        if self.arrays is not None:
            return self.arrays.token_arrays()
        running, tokens = self.engine.running(), self.engine.generated_tokens()
        responses = (*running, *self.engine.waiting())
        return np.array(responses, np.int64), np.array([tokens[r] for r in responses], np.int64), len(running)


def begin(
    plan: Plan,
    requests: Requests,
    engine_factory: EngineFactory,
    latency: Latencies,
    record: StepRecord,
    admission: str,
    links: NodeLinks | None = None,
) -> tuple[dict[int, VirtualActor], list[Allocation], ActorStartup]:
    """Start every actor of the plan.

    Returns the live actors by index, with their requests; the allocation of the prefill actor, if any; and the start-up times
    of all of them. Recorded are the cold start (none when prewarmed), the weight sync, which may have to share ``links``, and
    the wait for prefixes.

    Raises:
        PlanningError: a kind has no latency model, or the plan reuses prefixes where engines cannot or a response does not name
            its prompt. Then nothing was started.
        ValueError: a request cannot be decoded, such as one whose prompt is too long; its engines are closed.
    """
    models = [latency_of(latency, actor.kind, len(actor.gpu_ids)) for actor in plan.actors]
    late_s = None
    if isinstance(engine_factory, StartsLate):
        late_s = list(engine_factory.start_delays_s(len(plan.actors) - (plan.prefill_actor is not None)))
        if plan.prefill_actor is not None:
            late_s.insert(plan.prefill_actor, 0.0)
    startup = ActorStartup.of(plan, models, record.start_s, late_s, links)
    if isinstance(engine_factory, EmulatesTogether):
        engine_factory.emulate([model for i, model in enumerate(models) if i != plan.prefill_actor], len(requests))
    live: dict[int, VirtualActor] = {}
    for i, (actor, model, times) in enumerate(zip(plan.actors, models, startup.actors, strict=True)):
        if i != plan.prefill_actor:
            engine = engine_factory(model, admission_of(model, actor.max_batch, admission), times.ready_s)
            if not hasattr(engine, "advance"):
                raise PlanningError(
                    f"a {type(engine).__name__} has no method advance, so it does not decode on the virtual clock; give "
                    "Executor actor_pool=ProcessPool() as well"
                )
            count = len(actor.responses)
            live[i] = VirtualActor(i, actor, model, times.start_s, count, expecting=count, engine=engine)
    if (refusal := next(filter(None, (_refusal(started, requests) for started in live.values())), None)) is not None:
        refused = PlanningError(refusal)
        clean_up(*(started.engine.close for started in live.values()), after=refused)
        raise refused
    try:
        _add_requests(startup, requests, engine_factory, models, admission, live)
    except BaseException as error:
        clean_up(*(started.engine.close for started in live.values()), after=error)
        raise
    startup.record_spans(record)
    prefill = plan.prefill_actor
    if prefill is None:
        return live, [], startup
    times = startup.actors[prefill]
    return live, [Allocation(prefill, "prefill", plan.actors[prefill], times.start_s, times.ready_s)], startup


def _add_requests(
    startup: ActorStartup,
    requests: Requests,
    engine_factory: EngineFactory,
    models: Sequence[LatencyModel],
    admission: str,
    live: Mapping[int, VirtualActor],
) -> None:
    """Give the live actors their requests."""
    plan = startup.plan
    # requests that are all there from the beginning need no time stamp of their own: copies of thousands cost milliseconds
    available_s = requests.available_s
    as_they_are = not len(requests) or available_s.min() == available_s.max() <= startup.step_start_s
    prefix_kv = _computed_prefixes(plan, requests, engine_factory, models, admission)
    for i, actor in live.items():
        added, ready_s = with_prefixes(actor.plan, requests.take(actor.plan.responses), prefix_kv), startup.actors[i].ready_s
        actor.engine.add(added if as_they_are else [replace(r, available_s=ready_s) for r in added])


def _refusal(actor: VirtualActor, requests: Sequence[Request]) -> str | None:
    """Why the actor cannot run its part of the plan; None when it can."""
    if not reuses_prefixes(actor.plan):
        return None
    wants = "receives prefixes" if actor.plan.prefixes else "shares prompts between its responses"
    if not actor.engine.reuses_prefixes:
        name = type(actor.engine).__name__
        return f"actor {actor.index} of the plan {wants}, which {name} cannot; run the plan without deduplicated prefill"
    return without_prompt(actor.index, actor.plan, requests)


def _computed_prefixes(
    plan: Plan, requests: Requests, engine_factory: EngineFactory, models: Sequence[LatencyModel], admission: str
) -> Mapping[int, Any]:
    """Return KV state, by prompt, of the prefixes that the plan computes once, where engines are real."""
    if plan.prefill is None or not isinstance(engine_factory, ComputesPrefixes):
        return {}
    check_before_prefill(engine_factory, plan, requests, models, admission)
    return engine_factory.compute_prefixes(prefixes_of(plan, requests))

"""Deferred dispatch: responses wait in one queue, and each goes to an actor when that actor has a free slot.

Most frameworks dispatch all requests of a step at once, so a response that waits in an actor's queue cannot start elsewhere.
slime limits the requests in flight (``--sglang-server-concurrency``), AReaL the rollouts (``max_concurrent_rollouts``).

Which actor is free first depends on lengths that nobody knows beforehand. They are seen here only as an actor sees them: a
response is dispatched at the completion that frees its slot. The resulting queue of every actor is then executed as a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhfless.analysis.what_ifs.changed_generation import generated_s, whole_steps
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.requests import changed
from rlhfless.errors import InputError
from rlhfless.scheduling import PlanningOptions
from rlhfless.scheduling.policy import check_inputs
from solver.model.admission import Admission
from solver.model.errors import as_given, is_whole
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of

CHANGE = "Responses wait in one queue, and each goes to an actor when that has a free slot."


@dataclass(frozen=True)
class DeferredDispatch:
    """Dispatch responses in order, each to the actor with a free slot and the fewest in flight; start all actors.

    Attributes:
        in_flight: responses of an actor that are in flight at most; its slots when None.
        release: as of ``Random``.
    """

    in_flight: int | None = None
    release: str = "done"
    name: str = "deferred"
    clairvoyant: bool = True  # of the simulated engines alone: a response is dispatched at a completion

    def __post_init__(self) -> None:
        if self.in_flight is not None and not is_whole(self.in_flight, 1):
            raise InputError(f"in_flight is {as_given(self.in_flight)}; a whole number of at least 1, or None, is needed")

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        cluster, latency = problem.one_kind
        workload = problem.workload
        admission = admission_of(latency, self.in_flight, problem.admission)
        limit = workload.max_response_tokens
        requests = [
            Request(i, int(workload.prompt_tokens[owner]), limit, target_tokens=int(tokens))
            for i, (owner, tokens) in enumerate(zip(workload.prompt_of, workload.response_tokens, strict=True))
        ]
        actors = [_FreeSlots(SimulatedEngine(latency, admission), admission) for _ in range(cluster.max_actors)]
        dispatch(requests, actors)
        queues = [actor.dispatched for actor in actors if actor.dispatched]
        return assemble(self.name, queues, replace(problem, release=self.release), max_batch=self.in_flight)


class _FreeSlots:
    """An actor with its responses in flight.

    Attributes:
        dispatched: responses, in order. in_flight: how many are unfinished.
    """

    def __init__(self, engine: SimulatedEngine, admission: Admission) -> None:
        self._engine, self._admission = engine, admission
        self.dispatched: list[int] = []
        self._held: dict[int, int] = {}  # KV tokens of responses in flight, as far as they are reserved
        self._reserved_tokens = 0
        self._given: list[Request] = []  # at one moment; the engine takes them together, which is faster

    @property
    def in_flight(self) -> int:
        return len(self._held)

    @property
    def next_s(self) -> float:
        """When its next response is complete; infinite without one."""
        if self._given:
            self._engine.add(self._given)
            self._given = []
        return self._engine.peek_next_event_s() if self._held else math.inf

    def has_room(self, request: Request) -> bool:
        """Whether the response would join its batch at once; an actor without responses takes any."""
        return not self._held or self._admission.admits(len(self._held), self._reserved_tokens, self._needs(request))

    def _needs(self, request: Request) -> int:
        return request.prompt_tokens + request.max_tokens if self._admission.rule == "reserve" else 0

    def give(self, request: Request, now_s: float) -> None:
        """Dispatch a response to it."""
        self.dispatched.append(request.response)
        self._held[request.response] = self._needs(request)
        self._reserved_tokens += self._held[request.response]
        self._given.append(changed(request, available_s=now_s))

    def complete(self, to_s: float) -> None:
        """Go on to a time, and free the slots of what is complete by then."""
        for completion in self._engine.advance(to_s).completions:
            self._reserved_tokens -= self._held.pop(completion.response)


def dispatch(requests: Sequence[Request], actors: Sequence[_FreeSlots]) -> None:
    """Give every request, in order, to the first actor that has room; of several, to the one with the fewest in flight."""
    now_s, waiting = 0.0, list(reversed(requests))
    while waiting:
        free = [actor for actor in actors if actor.has_room(waiting[-1])]
        if free:
            min(free, key=lambda actor: actor.in_flight).give(waiting.pop(), now_s)
            continue
        now_s = min(actor.next_s for actor in actors)
        for actor in actors:
            if actor.next_s <= now_s:
                actor.complete(now_s)


def way(run: RunToChange, in_flight: int | None = None) -> WayOutcome:
    """Return the run with its responses dispatched when a slot is free.

    Args:
        in_flight: responses of an actor that are in flight at most; its slots when None.

    Raises:
        InputError: ``in_flight`` is no whole number of at least 1, there are no steps, or the setting has effects.
    """
    parameters = {} if in_flight is None else {"in_flight": float(in_flight)}
    steps_s = generated_s(run, checked(run).logged, DeferredDispatch(in_flight))
    return whole_steps(run, ("deferred dispatch", CHANGE), steps_s, parameters=parameters)

"""Simulated engines with fault injection: late starts, slow iterations, outages.

Input: the effects of each actor. An engine without any effect is a plain ``SimulatedEngine``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlhfless.engine.protocol import Completion, Engine, EngineSpan, Progress, Request
from rlhfless.engine.simulated.drafted import DraftedEngine
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.requests import changed
from rlhfless.latency.effects import Effects
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.workload import IntArray

MAX_LOST_IN_A_ROW = 10_000  # outages in a row that let no iteration end


SimulatedEngines = Callable[[LatencyModel, Admission, float], SimulatedEngine | DraftedEngine]
"""Makes simulated engines, as an engine factory does."""


class FaultInjectingFactory:
    """An engine factory for ``run_step`` that injects faults.

    Actors are numbered in the order in which they are made, so a plan has the same outages every time it is run with a new
    factory.

    Args:
        effects: faults of the actors.
        engines: factory of the engines that faults are injected into; ``SimulatedEngine`` when None.
    """

    def __init__(self, effects: Effects, engines: SimulatedEngines | None = None) -> None:
        self._effects, self._made, self._engines = effects, 0, engines or SimulatedEngine

    @property
    def drafting(self) -> Drafting | None:
        """How its engines draft; None: they decode one token per pass."""
        drafting: Drafting | None = getattr(self._engines, "drafting", None)
        return drafting

    def start_delays_s(self, actors: int) -> list[float]:
        """Return by how many seconds the starts of the first ``actors`` exceed the latency model."""
        starts = self._effects.starts
        return [0.0 if starts is None else starts.delay_s(self._effects.draws(actor)[1]) for actor in range(actors)]

    def __call__(self, latency: LatencyModel, admission: Admission, clock_s: float) -> Engine:
        """Return the engine of the next actor."""
        effects = self._effects
        straggling, _, failing = effects.draws(self._made)
        self._made += 1
        if effects.stragglers is not None:
            latency = effects.stragglers.applied(latency, straggling)
        engine = self._engines(latency, admission, clock_s)
        outages = effects.outages
        if outages is None or outages.per_gpu_hour == 0:
            return engine
        gpus = latency.gpus_per_actor
        return FaultInjectingEngine(engine, lambda: outages.up_s(gpus, failing), outages.down_s)


class FaultInjectingEngine:
    """A simulated engine with outages.

    At an outage the running iteration is lost and all KV caches with it. The batch, then the queue, is queued again and can
    join when the engine is up. Outages are not predicted, although ``peek_next_event_s`` may return the time of one as a time
    after which to call it again.

    Args:
        engine: decodes between outages.
        next_up_s: returns the seconds until the next outage, called once for each.
        down_s: duration of every outage.

    Raises:
        PlanningError: from ``advance`` and ``cut``: outages follow each other so fast that no iteration ever ends.
    """

    reuses_prefixes = False  # what was received or shared does not outlive an outage, and nobody would send it again

    def __init__(self, engine: SimulatedEngine | DraftedEngine, next_up_s: Callable[[], float], down_s: float) -> None:
        self._engine, self._next_up_s, self._down_s = engine, next_up_s, down_s
        self.slots = engine.slots
        self._in_vain = 0  # outages since the last iteration
        self._up_s = engine.clock_s  # nothing joins before
        self._fails_s = engine.clock_s + next_up_s()

    @property
    def clock_s(self) -> float:
        """Return the end of the last committed iteration."""
        return self._engine.clock_s

    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol. Requests that arrive during an outage wait."""
        if self._up_s > self._engine.clock_s:
            requests = [changed(r, available_s=max(r.available_s, self._up_s)) for r in requests]
        self._engine.add(requests)

    def peek_next_event_s(self, completions: int = 1) -> float:
        """See the protocol."""
        return self._before_outage(self._engine.peek_next_event_s(completions))

    def _before_outage(self, at_s: float) -> float:
        return min(at_s, self._fails_s) if at_s < math.inf else at_s

    def advance(self, to_s: float) -> Progress:
        """See the protocol."""
        completions: list[Completion] = []
        spans: list[EngineSpan] = []
        interrupted = False
        while self._fails_s <= to_s and self._engine.peek_next_event_s() < math.inf:
            interrupted = True
            before = self._engine.advance(self._fails_s)
            self._in_vain = 0 if len(before.spans) else self._in_vain + 1
            if self._in_vain > MAX_LOST_IN_A_ROW:
                raise PlanningError(
                    f"an actor went down {self._in_vain} times without finishing an iteration in between; fewer outages, or "
                    f"shorter iterations, are needed"
                )
            for progress in (before, self._go_down()):
                completions += progress.completions
                spans += progress.spans
        last = self._engine.advance(to_s)
        if not interrupted:
            return last
        return Progress([*completions, *last.completions], [*spans, *last.spans])

    def _go_down(self) -> Progress:
        """Queue all responses again for the end of the outage; it commits nothing, or responses that need no iterations."""
        engine = self._engine
        taken, progress = engine.cut(engine.clock_s)
        self._up_s = self._fails_s + self._down_s
        self._fails_s = self._up_s + self._next_up_s()
        if taken:
            engine.add([changed(r, kv=None, available_s=max(r.available_s, self._up_s)) for r in taken])
        return progress

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See the protocol."""
        before = self.advance(at_s)
        taken, after = self._engine.cut(at_s, responses)
        return taken, Progress([*before.completions, *after.completions], [*before.spans, *after.spans])

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        return self._engine.generated_tokens()

    def token_arrays(self) -> tuple[IntArray, IntArray, int]:
        """See ``SupportsTokenArrays``."""
        return self._engine.token_arrays()

    def running(self) -> tuple[int, ...]:
        """See the protocol."""
        return self._engine.running()

    def waiting(self) -> tuple[int, ...]:
        """See the protocol."""
        return self._engine.waiting()

    def sync(self, weights: Any, weights_version: int) -> None:
        """See the protocol."""
        self._engine.sync(weights, weights_version)

    def close(self) -> None:
        """See the protocol."""
        self._engine.close()

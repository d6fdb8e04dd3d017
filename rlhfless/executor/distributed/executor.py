"""Runs a plan on the wall clock: remote actors decode in parallel, and one event loop enters their reports and sends orders.

Inputs: a plan, its rule and a ``StepActors``. Output: a ``StepRecord``. A rule sees at ``now_s`` what has been reported by
then. The loop never waits for an actor: a decision becomes orders, and handed-over responses are sent on when they arrive
(``dispatch.py``). A response may turn out to have been complete before the order to hand it over reached its actor. Then the
completion is that actor's, and the receiver expects one response less. An actor obeys its orders in order, so a response is in
one actor only, or in the answer of one. Where actors are lost, the step continues without them (``failure_handling.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.completions import Completions
from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.failure_handling import LostActorHandling
from rlhfless.executor.distributed.failure_limits import Faults
from rlhfless.executor.distributed.messages import ActorLost, ActorReport, StepActors
from rlhfless.executor.step.allocations import bill
from rlhfless.executor.step.failure import ends_as_failed
from rlhfless.executor.step.plan_validation import check_gpus
from rlhfless.executor.step.record import Recompute, StepRecord
from rlhfless.executor.step.rule_validation import checked_decisions
from solver.lengths.remaining import RemainingLengths
from solver.model.cluster import Cluster, MixedCluster
from solver.model.objective import NonGenerationPhases
from solver.model.offers import Latencies
from solver.model.plan import Plan


class WallStep(LostActorHandling):
    """One step of a plan on the wall clock.

    Args:
        step_actors: the ``StepActors`` on which it runs.
        latency, cluster, record, phases, admission, migration: see ``rlhfless.executor.run_step``.
        faults: how actors that die, hang or are slow are handled.
        forecast: of the lengths of all responses, for re-planning when actors are lost; None learns from the step itself.
        weights_version: with which every actor decodes.
        cold_start_s: the longest cold start in earlier steps. When an actor is lost, its replacement is planned to take as
            long, whatever the latency model says.

    Raises:
        PlanningError: a kind has no latency model, or a response does not name the prompt that the plan shares; nothing was
            started.
    """

    def __init__(
        self,
        plan: Plan,
        requests: Sequence[Request],
        step_actors: StepActors,
        latency: Latencies,
        cluster: Cluster | MixedCluster,
        record: StepRecord,
        phases: NonGenerationPhases,
        admission: str,
        migration: str,
        faults: Faults = Faults(),  # noqa: B008 (frozen)
        forecast: RemainingLengths | None = None,
        weights_version: int = 0,
        cold_start_s: float = 0.0,
    ) -> None:
        check_gpus(plan, cluster)
        super().__init__(plan, requests, step_actors, latency, record, admission, migration, faults, weights_version)
        self.cluster, self.phases = cluster, phases
        self._prepare_for_losses(forecast, cold_start_s)

    def run(self) -> None:
        """Run until every response is complete and every actor has released its GPUs.

        Raises:
            StepFailed: the step cannot be finished. The ``StepActors`` still have live actors then.
        """
        with ends_as_failed(self.record):
            try:
                self._run()
            except BaseException:
                now_s = self.step_actors.now_s()
                for actor in (*self.live.values(), *self.ending.values()):
                    if actor.remote is not None:
                        self._allocate(actor, max(now_s, actor.until_s))
                bill(self.record, self.plan, self.held, self.cluster, NonGenerationPhases())
                raise

    def _run(self) -> None:
        self._begin()
        self._release_done()
        self._query_rule()
        while self.live or self.ending:
            reached = False
            losses: list[tuple[RemoteActorState, ActorLost]] = []
            for index, message in self.step_actors.reports(self._patience_s()):
                actor = self.live.get(index) or self.ending.get(index)
                if actor is None or any(actor is lost for lost, _ in losses):  # it was lost: nothing that it says counts
                    continue
                if (
                    isinstance(message, ActorReport)
                    and message.ready_s is not None
                    and message.weights_version != self.weights_version
                ):
                    message = ActorLost(f"has weights of version {message.weights_version}, not {self.weights_version}")
                if isinstance(message, ActorLost):
                    losses.append((actor, message))
                else:
                    reached |= self._take(actor, message)
            self._release_done()
            now_s = self.step_actors.now_s()
            losses += [lost for lost in self._silent(now_s) if all(lost[0] is not actor for actor, _ in losses)]
            if losses:
                self._lose(losses)
            while self.later and self.later[-1].start_s <= now_s:
                self._start([self.later.pop()])
            changed = self._rebalance_slow(now_s) or bool(losses)
            if self.rule is not None and self.live and (reached or self._timed(now_s)):
                state, self.observed_s = self._state(now_s), now_s
                decisions = checked_decisions(self.rule, self.rule.decide(now_s, state))
                for decision in decisions:
                    self._apply(now_s, decision)
                self._release_done()
                self._query_triggers(self._views() if decisions else state.actors)
            elif changed:
                self._release_done()
                self._query_rule()
        bill(self.record, self.plan, self.held, self.cluster, self.phases)

    def _patience_s(self) -> float | None:
        """Return the seconds until the rule wants to be asked, an actor starts or one counts as silent."""
        next_s = min(
            min((a.trigger_time_s for a in self.live.values()), default=math.inf),
            self.later[-1].start_s if self.later else math.inf,
            min((a.due_s for a in (*self.live.values(), *self.ending.values())), default=math.inf),
        )
        return None if next_s == math.inf else max(0.0, next_s - self.step_actors.now_s())

    def _take(self, actor: RemoteActorState, report: ActorReport) -> bool:
        """Enter a report; returns whether the rule wants to be asked because of it."""
        if report.ready_s is not None:
            up_s, synced_s = (max(actor.start_s, t) for t in report.ready_s)
            self.record.span(actor.holder, "start", actor.start_s, up_s)
            self.record.span(actor.holder, "sync", up_s, synced_s)
            actor.ready, actor.until_s = True, synced_s
            self.cold_start_s = max(self.cold_start_s, up_s - actor.start_s)
        self._enter_spans(actor, report)
        for response in report.again:
            self.record.recomputes.append(Recompute(report.time_s, response, self.sender[response], actor.holder))
        reached = False
        for completion in report.completions:
            if self.leaving.pop(completion.response, None) is not None:  # it was complete before the order to hand it over
                self._assign(completion.response, actor)
            del actor.responses[completion.response]
        if report.completions:
            reached = self._enter([(actor, Completions.of(report.completions))])
        responses, counts = report.tokens
        self.observed_tokens[np.asarray(responses, dtype=np.int64)] = counts
        self.observed_signals.note(*report.signals)
        if report.ready_s is None:  # else it has not looked at what was given to it
            actor.running, actor.waiting = report.running, report.waiting
        if report.taken is not None:
            actor.answers -= 1
            self._pass_on(actor, report.taken)
        if report.prefixes is not None:
            actor.answers -= 1
            self._assign_prefixes(report.prefixes)
        if report.closed:
            del self.ending[actor.index]
            self._allocate(actor, report.time_s)
        actor.doubted, actor.due_s = False, self.step_actors.now_s() + self._silence_s(actor)
        return reached

    def _enter_spans(self, actor: RemoteActorState, report: ActorReport) -> None:
        self.record.engine_spans(actor.holder, report.spans)
        actor.speed.observe(report)
        for copy in report.copies:  # in the foreground on both sides: each stands still while it copies
            if copy.response is None:
                source = "learner" if self.plan.prefill_actor is None else self.planned[self.plan.prefill_actor].holder
                what: dict[str, Any] = {"call": "prefixes"}
            else:
                source, what = self.sender.get(copy.response, ""), {"response": copy.response}
            sender = actor.holder if copy.phase == "migrate" else source
            self.record.span(
                actor.holder, copy.phase, copy.start_s, copy.end_s,
                kv_tokens=float(copy.kv_tokens), bytes=copy.bytes, from_actor=sender, **what,
            )  # fmt: skip
        actor.until_s = max([actor.until_s, *(s.end_s for s in report.spans), *(c.end_s for c in report.copies)])

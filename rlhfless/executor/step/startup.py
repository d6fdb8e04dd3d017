"""Computes when the actors of a plan become ready as their step begins, and records what they wait for.

Inputs: the plan and the seconds of start-up, weight sync and prefixes. Output: one ``ReadyTime`` per actor, which can be
computed again for another prefill time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rlhfless.executor.step.record import StepRecord, holder_of
from rlhfless.executor.step.shared_links import NodeLinks
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.timing.evaluate import ready_s


class ReadyTime(NamedTuple):
    """Start-up times of one actor. Its process starts first. From ``warm_s`` on it receives its weights. From ``up_s`` on it
    waits for prefixes, which the prefill actor computes and sends. From ``ready_s`` on it decodes; the prefill actor is done
    then.
    """

    start_s: float
    warm_s: float
    up_s: float
    ready_s: float


@dataclass(frozen=True)
class ActorStartup:
    """Start-up of all actors of a step.

    Attributes:
        plan: as it is executed. step_start_s: the start of the step.
        actors: of the plan, in order.
        computes_s: from when to when prefixes are computed once for others; two equal times where there are none.
    """

    plan: Plan
    step_start_s: float
    actors: tuple[ReadyTime, ...]
    computes_s: tuple[float, float]

    @classmethod
    def of(
        cls,
        plan: Plan,
        models: Sequence[LatencyModel],
        step_start_s: float,
        late_s: Sequence[float] | None = None,
        links: NodeLinks | None = None,
    ) -> ActorStartup:
        """Compute the start-up from the plan and the actors' latency models.

        Args:
            late_s: extra start-up seconds of every actor. links: those that weights are sent over; None: nothing is shared.
        """
        actors = []
        for i, (actor, model) in enumerate(zip(plan.actors, models, strict=True)):
            start_s, late = step_start_s + actor.start_s, 0.0 if late_s is None else late_s[i]
            up_s = start_s + ready_s(model, actor.prewarmed) + late
            warm_s = (start_s if actor.prewarmed else start_s + model.start_s) + late
            actors.append(ReadyTime(start_s, warm_s, up_s, up_s + actor.receive_s))
        if links is not None:
            actors = _with_shared_links(plan, actors, links)
        begins_s = ends_s = step_start_s
        if plan.prefill is not None:
            ends_s = step_start_s + plan.prefill.done_s
            if plan.prefill_actor is not None:
                times = actors[plan.prefill_actor]
                begins_s, ends_s = times.up_s, min(max(times.up_s, ends_s), times.ready_s)
        return cls(plan, step_start_s, tuple(actors), (begins_s, ends_s))

    def with_prefill_s(self, seconds: float) -> ActorStartup:
        """Return the same start-up where computing the prefixes takes ``seconds``.

        A transfer takes as long as before. It starts when its receiver is up, its prefixes are computed and the link has
        finished the transfers before it. There is one link within the node and one to all others. A transfer that starts
        before everything is computed does so after the same share of the work.
        """
        plan, (begins_s, ends_s) = self.plan, self.computes_s
        if plan.prefill is None:
            return self
        computed_s = begins_s + seconds
        share = seconds / (ends_s - begins_s) if ends_s > begins_s else 1.0
        actors, source = list(self.actors), plan.prefill_actor
        waiting = [i for i, actor in enumerate(plan.actors) if actor.prefixes]
        node = None if source is None else plan.actors[source].node
        link_s: dict[bool, tuple[float, float]] = {}  # until when it was busy, and is
        last_s = computed_s
        for i in sorted(waiting, key=lambda i: self.actors[i].ready_s):
            times, near = actors[i], plan.actors[i].node == node
            then_s, now_s = link_s.get(near, (times.up_s, times.up_s))
            left_s = min(ends_s, times.ready_s)
            leaves_s = computed_s + (left_s - ends_s) * share
            took_s = times.ready_s - min(times.ready_s, max(times.up_s, left_s, then_s))
            arrives_s = max(times.up_s, leaves_s, now_s) + took_s
            actors[i] = times._replace(ready_s=arrives_s)
            link_s[near] = times.ready_s, arrives_s
            last_s = max(last_s, arrives_s)
        if source is not None:
            actors[source] = actors[source]._replace(ready_s=last_s)
        prefill = replace(plan.prefill, done_s=computed_s - self.step_start_s)
        return ActorStartup(replace(plan, prefill=prefill), self.step_start_s, tuple(actors), (begins_s, computed_s))

    def record_spans(self, record: StepRecord) -> None:
        """Add the spans of what each actor waits for until it is ready. (The learner's prefill is added when it is billed.)"""
        plan = self.plan
        source = "learner" if plan.prefill_actor is None else holder_of(plan.prefill_actor)
        for i, (actor, times) in enumerate(zip(plan.actors, self.actors, strict=True)):
            holder = holder_of(i)
            record.span(holder, "start", times.start_s, times.warm_s)
            record.span(holder, "sync", times.warm_s, times.up_s)
            if i == plan.prefill_actor:
                assert plan.prefill is not None
                record.span(holder, "prefill", *self.computes_s, tokens=plan.prefill.computed_tokens)
                record.span(holder, "transfer", self.computes_s[1], times.ready_s, call="prefixes")
            elif actor.prefixes:
                record.span(holder, "transfer", times.up_s, times.ready_s, call="prefixes", from_actor=source)
            else:
                record.span(holder, "sync", times.up_s, times.ready_s, call="late weights")


def _with_shared_links(plan: Plan, actors: Sequence[ReadyTime], links: NodeLinks) -> list[ReadyTime]:
    """Return start-up times where weights share the node links; actors of a node that are warm at one moment share one copy."""
    delays: dict[tuple[int, float], float] = {}
    for times, actor in sorted(zip(actors, plan.actors, strict=True), key=lambda pair: pair[0].warm_s):
        if (actor.node, times.warm_s) not in delays:
            delays[actor.node, times.warm_s] = links.delay_s(None, actor.node, times.warm_s, times.up_s - times.warm_s)
    return [
        times._replace(up_s=times.up_s + late, ready_s=times.ready_s + late)
        for times, actor in zip(actors, plan.actors, strict=True)
        for late in (delays[actor.node, times.warm_s],)
    ]

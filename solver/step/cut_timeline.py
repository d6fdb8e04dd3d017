"""Times generation with a global cut: when responses complete and actors release their GPUs, for one set of lengths.

Before the cut every actor runs its responses by continuous batching (``solver.timing.batching``), as the executor does. The cut
comes with the completion that leaves fewer than R_t responses. Every actor then ends its iteration. The m actors with the most
remaining work continue, the others hand their responses over to the receiver with the fewest and are free. A response takes
its KV cache along where that is faster than to recompute it. A sender's link carries one cache at a time. Its response
completes later by as much, while the receiver's batch is timed as if it were there at once: a simplification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.workload import FloatArray, IntArray, Workload
from solver.replanning.marginal_value import sends_kv
from solver.step.follow import Generated
from solver.timing.batch import Batch
from solver.timing.evaluate import admission_of, cached_tokens, ready_s
from solver.timing.timeline import Timeline, timeline

Work = Callable[[IntArray, IntArray], FloatArray]
"""Returns the (n,) expected remaining work of n responses, given their tokens so far."""


@dataclass(frozen=True, eq=False)
class CutState:
    """The step at the moment of a cut.

    Attributes:
        threshold: R_t, a number of responses. boundary_s: (N,) when each actor ends its iteration.
        tokens: (R,) tokens of each response by then. waiting: (R,) whether it is not in a batch yet.
        ranked: actors by remaining work, the most first.
    """

    threshold: int
    boundary_s: FloatArray
    tokens: IntArray
    waiting: np.ndarray
    ranked: IntArray


class CutTimeline:
    """Generation by a plan for one set of lengths, without a cut and with any.

    Args:
        work: by which actors are ranked; None ranks by their numbers of unfinished responses.
    """

    def __init__(self, plan: Plan, workload: Workload, latency: LatencyModel, rule: str, work: Work | None = None) -> None:
        self.plan, self.workload, self.latency, self.work = plan, workload, latency, work
        self.admission: list[Admission] = [admission_of(latency, actor.max_batch, rule) for actor in plan.actors]
        self.responses = [np.asarray(actor.responses, dtype=np.int64) for actor in plan.actors]
        self.begin_s = np.array([a.start_s + ready_s(latency, a.prewarmed) + a.receive_s for a in plan.actors])
        self.actor_of = np.zeros(len(workload), np.int64)
        self.lines: list[Timeline] = []
        for number, (actor, chosen) in enumerate(zip(plan.actors, self.responses, strict=True)):
            self.actor_of[chosen] = number
            cached = cached_tokens(workload, chosen, actor.prefixes, actor.prefix_tokens, actor.shares_prompts)
            self.lines.append(
                self._timeline(chosen, workload.iterations[chosen], workload.context_tokens[chosen], cached, number)
            )

    @cached_property
    def uncut(self) -> Generated:
        """Return generation without a cut."""
        completion = np.zeros(len(self.workload))
        free = self.begin_s.copy()
        for number, (line, chosen) in enumerate(zip(self.lines, self.responses, strict=True)):
            completion[chosen] = self.begin_s[number] + line.end_s
            free[number] += line.busy_s
        return self._generated(completion, free)

    def at(self, threshold: int) -> CutState | None:
        """Return the step when fewer than ``threshold`` responses are left; None where that leaves none."""
        completion = self.uncut.completion_s
        which = len(completion) - threshold  # completions before the last that triggers
        if threshold <= 1 or which < 0:
            return None
        cut_s = float(np.partition(completion, which)[which])
        boundary_s, tokens = self.begin_s.copy(), np.zeros(len(completion), np.int64)
        waiting = np.zeros(len(completion), dtype=bool)
        for number, (line, chosen) in enumerate(zip(self.lines, self.responses, strict=True)):
            times_s = self.begin_s[number] + line.boundary_s
            iteration = min(int(np.searchsorted(times_s, cut_s - 1e-12)), len(times_s) - 1)
            boundary_s[number] = max(times_s[iteration], cut_s) if iteration == len(times_s) - 1 else times_s[iteration]
            stays, made = line.residency, np.zeros(len(chosen), np.int64)
            np.add.at(made, stays.response, np.clip(iteration - stays.ready, 0, stays.last - stays.ready))
            tokens[chosen] = made
            inside = (stays.first < iteration) & (stays.last >= iteration)
            waiting[chosen] = True
            waiting[chosen[stays.response[inside]]] = False
        return CutState(threshold, boundary_s, tokens, waiting, self._ranked(tokens))

    def cut(self, state: CutState, keep: int) -> Generated | None:
        """Return generation with this cut to ``keep`` actors; None where they have no room for all unfinished responses.

        Actors that are done have released their GPUs and receive nothing. Where no more than ``keep`` are left, none is cut.
        """
        left = self.workload.iterations - state.tokens
        unfinished = np.flatnonzero(left > 0)
        busy = np.bincount(self.actor_of[unfinished], minlength=len(self.lines)) > 0
        ranked = state.ranked[busy[state.ranked]]
        kept = ranked[:keep]
        if len(kept) == len(ranked):
            return self.uncut
        moving = unfinished[~np.isin(self.actor_of[unfinished], kept)]
        context = self.workload.context_tokens + state.tokens
        receiver = self._receivers(moving, unfinished, kept, self._held(context))
        if receiver is None:
            return None
        whole = self.uncut
        completion, free = whole.completion_s.copy(), np.minimum(whole.free_s, state.boundary_s)
        arrives_s, with_kv = self._transfers(moving, context, state)
        for actor in kept.tolist():
            own = unfinished[(self.actor_of[unfinished] == actor)]
            own = own[np.argsort(state.waiting[own], kind="stable")]
            received = moving[receiver == actor]
            if not len(own) and not len(received):
                continue
            chosen = np.concatenate([own, received])
            cached = np.where(np.isin(chosen, moving[~with_kv]), 0, context[chosen])
            cached[state.waiting[chosen] & (state.tokens[chosen] == 0)] = 0
            running = int((~state.waiting[own]).sum())
            ends_s = state.boundary_s[actor] + self._ends_s(chosen, left[chosen], context[chosen], cached, actor, running)
            ends_s[len(own) :] += np.maximum(arrives_s[receiver == actor] - state.boundary_s[actor], 0.0)
            completion[chosen] = ends_s
            free[actor] = max(float(ends_s.max()), float(state.boundary_s[actor]))
        return self._generated(completion, free)

    def cut_to_fewest(self, state: CutState, keep: int) -> Generated:
        """Return generation with this cut to ``keep`` actors, or to the fewest above that have room, as the rule does.

        Numbers of actors that together have fewer free slots or less memory than the others' responses need are left out.
        """
        unfinished = np.flatnonzero(self.workload.iterations > state.tokens)
        counts, tokens = self._loads(unfinished, self._held(self.workload.context_tokens + state.tokens))
        ranked = state.ranked[counts[state.ranked] > 0]
        lacks = np.zeros(len(ranked), dtype=bool)
        for used, most in ((counts[ranked], self._slots[ranked]), (tokens[ranked], self._capacity[ranked])):
            lacks |= np.cumsum(np.maximum(most - used, 0)) < (used.sum() - np.cumsum(used)) * (1 - 1e-9)
        cuts = (self.cut(state, number) for number in range(keep, len(ranked)) if not lacks[number - 1])
        return next((cut for cut in cuts if cut is not None), self.uncut)

    def _generated(self, completion_s: FloatArray, free_s: FloatArray) -> Generated:
        held_s = float((free_s - [actor.start_s for actor in self.plan.actors]).sum())
        return Generated(completion_s, free_s, self.latency.gpus_per_actor * held_s)

    def _ends_s(
        self, chosen: IntArray, remaining: IntArray, context: IntArray, cached: IntArray, actor: int, running: int
    ) -> FloatArray:
        """Return the (n,) seconds until responses that fit at once are complete; arguments are those of ``_timeline``.

        With an affine latency and nothing that waits or is evicted, an iteration's time is a sum over its responses. So the sum
        over iterations 1 to n is one over responses, each with its own iterations up to n.
        """
        model = self.latency
        if model.mixes or self.admission[actor].rule != "reserve":
            return self._timeline(chosen, remaining, context, cached, actor, running).end_s
        order = np.argsort(remaining, kind="stable")
        until, per_token = remaining[order].astype(float), model.per_kv_token_s
        each = model.per_response_s + per_token * context[order]
        growing = per_token * until * (until - 1) / 2
        before = np.cumsum(each * until + growing)
        after = each.sum() - np.cumsum(each)
        later = len(order) - 1 - np.arange(len(order))
        seconds = np.empty(len(order))
        seconds[order] = model.base_s * until + before + after * until + later * growing
        missing = (context - cached)[running:]
        joins_s = model.join_s * len(missing)
        tokens = int(model.charged_tokens(missing).sum())
        return np.asarray(seconds + joins_s + (float(model.prefill_s(tokens)) if tokens else 0.0))

    def _timeline(
        self, chosen: IntArray, remaining: IntArray, context: IntArray, cached: IntArray, actor: int, running: int = 0
    ) -> Timeline:
        reserved = self.workload.reserved_tokens[chosen]
        batch = Batch(remaining, context, context - cached, reserved, self.admission[actor], running)
        return timeline(batch, self.latency)

    def _ranked(self, tokens: IntArray) -> IntArray:
        left = self.workload.iterations - tokens
        unfinished = np.flatnonzero(left > 0)
        expected = np.ones(len(unfinished)) if self.work is None else self.work(unfinished, tokens[unfinished])
        of_actor = np.bincount(self.actor_of[unfinished], expected, len(self.lines))
        return np.argsort(-of_actor, kind="stable")

    def _receivers(self, moving: IntArray, unfinished: IntArray, kept: IntArray, held: IntArray) -> IntArray | None:
        """Return the receiver of each moving response: one after another, the actor with the fewest responses that has room.

        An actor with more than its memory holds keeps what it has, and receives nothing. Memory of the others is looked at
        when all are assigned. Where it is exceeded, each actor takes as many responses as it holds of the largest.
        """
        counts, tokens = self._loads(unfinished[np.isin(self.actor_of[unfinished], kept)], held)
        has, free = counts[kept].astype(np.int64), self._capacity[kept] - tokens[kept]
        slots = np.where(free >= 0, np.maximum(self._slots[kept] - has, 0), 0)
        largest = max(1, int(held[moving].max(initial=1)))
        for room in (slots, np.minimum(slots, np.maximum(free, 0) // largest)):
            receiver = _fewest_first(len(moving), has, room, kept)
            if receiver is not None:
                received = np.bincount(receiver, held[moving], len(self.lines))[kept]
                if (received <= np.maximum(free, 0)).all():
                    return receiver
        return None

    def _loads(self, responses: IntArray, held: IntArray) -> tuple[IntArray, FloatArray]:
        """Return (N,) numbers of these responses on each actor, and the KV tokens that they need there."""
        of = self.actor_of[responses]
        counts = np.bincount(of, minlength=len(self.lines)).astype(np.int64)
        return counts, np.asarray(np.bincount(of, held[responses], len(self.lines)), dtype=float)

    @cached_property
    def _slots(self) -> FloatArray:
        return np.array([one.max_batch for one in self.admission], dtype=float)

    @cached_property
    def _capacity(self) -> FloatArray:
        return np.array([one.kv_capacity_tokens for one in self.admission], dtype=float)

    def _held(self, context: IntArray) -> IntArray:
        """Return the (R,) tokens of KV memory that each response needs on any actor."""
        return self.workload.reserved_tokens if self.admission[0].rule == "reserve" else context

    def _transfers(self, moving: IntArray, context: IntArray, state: CutState) -> tuple[FloatArray, np.ndarray]:
        """Return when each moving response arrives, and whether it takes its KV cache along."""
        started = state.tokens[moving] > 0
        transfer_s = self.latency.transfer_base_s + self.latency.transfer_per_kv_token_s * context[moving]
        recompute_s = self.latency.prefill_base_s + self.latency.prefill_per_token_s * context[moving]
        with_kv = started & sends_kv(transfer_s, recompute_s)
        sender, takes_s = self.actor_of[moving], np.where(with_kv, transfer_s, 0.0)
        arrives_s = state.boundary_s[sender].astype(float)
        for actor in np.unique(sender).tolist():
            of_actor = sender == actor
            arrives_s[of_actor] += np.cumsum(takes_s[of_actor])
        return arrives_s, with_kv


def _fewest_first(count: int, has: IntArray, room: FloatArray, actors: IntArray) -> IntArray | None:
    """Return the receiver of each of so many responses: always the actor with the fewest that has room; None where none has.

    Args:
        has: (K,) responses of each actor. room: how many more it takes. actors: (K,) their numbers.
    """
    if room.sum() < count:
        return None
    low, high = int(has.min(initial=0)), int(has.max(initial=0)) + count
    while low < high:  # the level to which actors are filled
        level = (low + high) // 2
        enough = np.clip(level - has, 0, room).sum() >= count
        low, high = (low, level) if enough else (level + 1, high)
    takes = np.clip(low - has, 0, room).astype(np.int64)
    number = np.repeat(np.arange(len(actors)), takes)
    turn = has[number] + np.arange(len(number)) - np.repeat(np.cumsum(takes) - takes, takes)
    return np.asarray(actors[number[np.lexsort((actors[number], turn))[:count]]])

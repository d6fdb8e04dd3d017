"""Runtime rules that consolidate actors while a step runs, the room that receivers have for it, and policies that add a rule.

- ``LocalCut`` (RLHFless, tau): an actor is cut when a share of its responses is complete.
- ``DrainingFold``: as many actors as the square root of the unfinished responses asks for; the thinnest hand theirs over.

RLHFuse's global cut is in ``rlhfless.scheduling.rlhfuse``, re-planning in ``solver.replanning``. Rules see a running step as a
``StepState``, never the final lengths of running responses.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhfless.scheduling.assignments import Random
from rlhfless.scheduling.policy import PlanningOptions, SchedulingPolicy
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorCounts, ActorView, Cut, Decision, Move, StepState, Trigger, Triggers, trigger_of
from solver.model.workload import FloatArray, IntArray
from solver.replanning.marginal_value import delay_s, stall_s

UNEVEN = 0.05  # share of its responses by which an actor must exceed the thinnest before it gives one away
MIN_DECISIONS = 40  # decisions while the unfinished responses become none, at least
CELLS = 128  # of equally many tokens, in each of which an estimate has a constant number of actors


# --- receivers --------------------------------------------------------------------------------------------------------------


class ReceiverRoom:
    """Free slots and KV memory of the actors while the decisions of one moment fill them.

    Attributes:
        slots: free slots by actor; received: responses assigned to each actor so far.
    """

    def __init__(self, state: StepState) -> None:
        self._state, actors = state, state.counts.actor.tolist()
        self._kv_tokens: dict[int, float] = dict(zip(actors, state.counts.free_kv_tokens.tolist(), strict=True))
        self.slots: dict[int, int] = dict(zip(actors, state.counts.free_slots.tolist(), strict=True))
        self.received: dict[int, int] = {}

    def free_slots(self) -> int:
        """Return the free slots of all actors together."""
        return sum(free for free in self.slots.values() if free > 0)

    def kv_tokens(self, actor: int) -> float:
        """Free KV memory of the actor (tokens)."""
        return self._kv_tokens[actor]

    def needs(self, responses: Sequence[int]) -> list[int]:
        """KV tokens that each response takes on any receiver."""
        kv_tokens: list[int] = self._state.held_tokens[np.array(responses, dtype=np.int64)].tolist()
        return kv_tokens

    def give(self, actor: int, kv_tokens: float) -> None:
        """Assign a response of ``kv_tokens`` to the actor: it takes one slot and that much memory."""
        self.slots[actor] -= 1
        self._kv_tokens[actor] -= kv_tokens
        self.received[actor] = self.received.get(actor, 0) + 1

    def completions_short(self, leaving: ActorView, receivers: Iterable[int]) -> int:
        """Lower bound on the completions, on any actor, before ``receivers`` have enough memory for all unfinished responses
        of ``leaving``; 0 where they may have enough. Under ``preempt`` the memory that a completion frees is unknown: the
        bound is 1."""
        lacks = sum(self.needs(leaving.unfinished)) - sum(max(0.0, self.kv_tokens(a)) for a in receivers)
        if lacks <= 0:
            return 0
        if self._state.reserved_tokens is None:
            return 1
        return math.ceil(lacks / float(self._state.reserved_tokens[~self._state.complete].max()))


def hand_over(leaving: ActorView, receivers: Sequence[ActorView], room: ReceiverRoom) -> Cut | None:
    """Cut ``leaving``. Each of its unfinished responses goes to the receiver with the fewest responses so far that has a free
    slot and memory for it.

    Args:
        room: free slots and memory at this moment, shared by all decisions of the moment; this call enters what it takes.

    Returns:
        None when a response finds no room, or is still on its way to ``leaving``. Then nothing is entered.
    """
    slots = {a.actor: room.slots[a.actor] for a in receivers}
    if leaving.arriving_count or sum(max(0, f) for f in slots.values()) < leaving.unfinished_count:
        return None
    kv_tokens = {a.actor: room.kv_tokens(a.actor) for a in receivers}
    open_to = [
        (a.unfinished_count + a.arriving_count + room.received.get(a.actor, 0), a.actor)
        for a in receivers
        if slots[a.actor] > 0
    ]
    heapq.heapify(open_to)
    moves, needs = [], room.needs(leaving.unfinished)
    for response, tokens in zip(leaving.unfinished, needs, strict=True):
        too_small = []
        while open_to:
            if kv_tokens[open_to[0][1]] >= tokens:
                break
            too_small.append(heapq.heappop(open_to))  # for this response: it may hold a smaller one
        if not open_to:
            return None
        fewest, receiver = heapq.heappop(open_to)
        slots[receiver] -= 1
        kv_tokens[receiver] -= tokens
        if slots[receiver]:
            heapq.heappush(open_to, (fewest + 1, receiver))
        for entry in too_small:
            heapq.heappush(open_to, entry)
        moves.append(Move(response, receiver))
    for move, tokens in zip(moves, needs, strict=True):
        room.give(move.to_actor, tokens)
    return Cut(leaving.actor, tuple(moves))


# --- rules ------------------------------------------------------------------------------------------------------------------


@dataclass
class LocalCut:
    """Cut an actor when ``tau`` of its assigned responses are complete and others have room for the rest; else it waits."""

    tau: float
    name: str = "local cut"
    _due: IntArray = field(
        default_factory=lambda: np.zeros(0, np.int64), repr=False, compare=False
    )  # by actor; 0: not seen yet
    # completions of the step before which no actor that waits can be cut
    _retry_at_completions: int | None = field(default=None, repr=False)

    def _due_at(self, counts: ActorCounts) -> IntArray:
        """Return (K,) completions at which each actor is cut: a share of the responses that the plan assigned to it."""
        if (missing := int(counts.actor.max(initial=-1)) + 1 - len(self._due)) > 0:
            self._due = np.append(self._due, np.zeros(missing, np.int64))
        due = self._due[counts.actor]
        if not due.all():
            first = np.maximum(1, np.ceil(self.tau * counts.assigned)).astype(np.int64)
            self._due[counts.actor] = due = np.where(due > 0, due, first)
        return due

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``next_triggers``."""
        return trigger_of(self, view)

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """Trigger at tau of each actor's own responses; while actors wait, when step completions may have made room."""
        due = self._due_at(counts)
        return Triggers(np.where(due > counts.completed, due, 0), step_completions=self._retry_at_completions)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Cut every actor that is due, the one with the fewest unfinished responses first."""
        counts, left = state.counts, state.counts.unfinished
        due = np.flatnonzero((counts.completed < counts.assigned) & (counts.completed >= self._due_at(counts)))
        cuts: list[Decision] = []
        if not len(due):
            self._retry_at_completions = None
            return cuts
        # an actor that receives goes on, and one that is due itself only receives if it is not cut
        slots = np.maximum(counts.free_slots, 0)
        missing = int((left[due] + slots[due]).min()) - int(slots.sum())
        if missing <= 0:
            cuts, missing = self._cuts(state, due[np.lexsort((counts.actor[due], left[due]))].tolist())
        # a completion anywhere brings an actor that waits one response nearer to being cut, never more
        complete = len(state.complete) - state.unfinished_count
        self._retry_at_completions = complete + max(1, missing) if len(cuts) < len(due) else None
        return cuts

    def _cuts(self, state: StepState, due: list[int]) -> tuple[list[Decision], int]:
        """Return the cuts of those of the ``due`` actors for which others have room, and the completions that the first of the
        others misses; 0 where all are cut.
        """
        counts, room, cuts, missing = state.counts, ReceiverRoom(state), list[Decision](), list[int]()
        ids, left, arriving = counts.actor.tolist(), counts.unfinished.tolist(), counts.arriving.tolist()
        awaits = (counts.unfinished < counts.assigned - counts.completed).tolist()
        remaining, free_slots = dict.fromkeys(range(len(ids))), room.free_slots()
        for k in due:
            missing_completions = left[k] - free_slots + max(0, room.slots[ids[k]])
            cut = None
            if missing_completions <= 0 and not awaits[k] and ids[k] not in room.received:
                leaving = state.view_of(ids[k])
                others = [state.view_of(ids[j]) for j in remaining if j != k and (left[j] or arriving[j])]
                cut = hand_over(leaving, others, room)
                if cut is None:
                    missing_completions = room.completions_short(leaving, [ids[j] for j in remaining if j != k])
            if cut is not None:
                cuts.append(cut)
                del remaining[k], room.slots[ids[k]]
                free_slots = room.free_slots()
            else:
                missing.append(max(1, missing_completions))
        return cuts, min(missing, default=0)


@dataclass
class DrainingFold:
    """Keep ``sqrt(nu * b * n / a)`` actors for n unfinished responses, drain the thinnest, and even out the others.

    With k actors and n unfinished responses an iteration takes ``a + b n / k`` and costs ``g (k a + b n)`` GPU-seconds. Where
    ``T^w C^(1-w)`` is minimised, a second of a step that takes T and costs C is worth ``w C / ((1 - w) T)`` GPU-seconds
    (``Objective.cost_of_a_second``), that is ``nu`` times those of one actor of g GPUs. The k of least
    ``nu g (a + b n / k) + g (k a + b n)`` solves ``k^2 = nu b n / a``. b is one response's whole share of an iteration, its KV
    tokens included.

    A cut would make all responses of an actor wait for one another's transfers. Here one response at a time leaves over an
    actor's link while the others keep decoding. The step ends with its slowest actor, so a random split also loses time where
    actors happen to get unequal numbers of long responses. To the rule all responses are alike, so the fullest actors send some
    of theirs to the thinnest. It counts unfinished responses and needs no prediction.
    """

    nu: float
    latency: LatencyModel
    total: int
    actors: int
    name: str = "draining fold"
    _wait: int = field(init=False, repr=False)
    _stays: NDArray[np.bool_] = field(init=False, repr=False)  # whether it is not being drained, by actor
    _free_s: FloatArray = field(init=False, repr=False)  # when each actor's link is free, by actor
    _next_s: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._wait = self._completions_until_fewer(self.total, self.actors, self.latency.per_response_s)
        self._stays, self._free_s = np.ones(self.actors, dtype=bool), np.full(self.actors, -np.inf)

    def best_squared(self, unfinished: Any, share_s: Any) -> Any:
        """Return the square of the best number of actors, if one more response lengthens an iteration by ``share_s``.

        Both may be arrays.
        """
        return self.nu * share_s * unfinished / self.latency.base_s

    def estimated_busy_s(self, actors: int, problem: PlanningProblem) -> FloatArray | None:
        """Return (S, actors) seconds that actors are busy once they can decode, over the workload's scenarios, without
        simulating moves.

        The rule sees counts only and evens out loads. So all actors decode equally many responses, and their number follows the
        rule. An actor that is drained holds its GPUs until its responses have left over its link one after another. The
        receivers stall where KV caches are recomputed, and a response that moves is late by its transfer. Moves that even out
        loads are not counted. No schedule of ``solver.timing.batching`` is made: that has one actor from first to last
        iteration, and here responses move, so cells of tokens are timed for all scenarios as one array.

        Returns:
            None where responses might wait for slots or KV memory, which this estimate does not know.
        """
        latency, workload = problem.one_kind[1].affine, problem.workload
        count, held = len(workload), float(workload.reserved_tokens.sum())
        if count > actors * latency.max_batch or held > actors * latency.kv_capacity_tokens:
            return None
        lengths = workload.response_tokens[None] if workload.scenarios is None else workload.scenarios
        lengths = lengths - workload.generated_tokens
        start, most = float(workload.context_tokens.mean()), float(lengths.max())
        edges = np.linspace(0.0, most, CELLS + 1)
        width, context = np.diff(edges), start + (edges[:-1] + edges[1:]) / 2
        ended = np.stack([np.searchsorted(np.sort(row), edges, side="right") for row in lengths])
        alive = count - (ended[:, :-1] + ended[:, 1:]) / 2
        share = latency.per_response_s + latency.per_kv_token_s * context
        wanted = np.ceil(np.sqrt(self.best_squared(count - ended[:, :-1], share)) - 1e-9)
        open_actors = np.minimum.accumulate(np.clip(wanted, 1, actors), axis=1)
        longest = lengths.max(axis=1, keepdims=True)
        decoded = np.clip(longest - edges[:-1], 0.0, width)
        before = np.concatenate([np.full((len(lengths), 1), actors), open_actors[:, :-1]], axis=1)
        moving = 1 - open_actors / before  # share of the unfinished responses whose actors are drained
        moves_s = alive * moving / open_actors * stall_s(latency, context) + moving * delay_s(latency, context, latency.base_s)
        batch = alive / open_actors
        cell_s = latency.iteration_s(batch, context * batch) * decoded + np.where(decoded > 0, moves_s, 0.0)
        end_s = np.cumsum(cell_s, axis=1)
        total_s = end_s[:, -1:]
        busy = np.empty((len(lengths), actors))
        transfer_s = np.array([latency.transfer_s(float(tokens)) for tokens in context])
        for actor in range(actors):
            serves = open_actors > actor
            last = serves.sum(axis=1)[:, None]  # cells that it serves: the first ones
            until_s = np.take_along_axis(np.pad(end_s, ((0, 0), (1, 0))), last, axis=1)
            at = np.minimum(last, CELLS - 1)
            leaves_s = np.take_along_axis(alive, at, axis=1) / (actor + 1) * transfer_s[at]
            busy[:, actor : actor + 1] = np.minimum(until_s + np.where(last < CELLS, leaves_s, 0.0), total_s)
        prefill_s = latency.prefill_s(start * count / actors) if start > 0 else 0.0
        return np.asarray(busy + prefill_s + latency.join_s * count / actors)

    def _completions_until_fewer(self, unfinished: int, actors: int, share_s: float) -> int:
        """Return the completions after which the best number is below ``actors``, if ``share_s`` stays constant."""
        if self.nu * share_s <= 0:
            return 1
        fewer = (actors - 1) ** 2 * self.latency.base_s / (self.nu * share_s)
        return max(1, math.ceil(unfinished - fewer))

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``next_triggers``."""
        return trigger_of(self, view)

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """Trigger at each actor's share of the completions until the next decision, and when a link with more to send is
        free."""
        if self.actors < 2:
            return Triggers()
        return Triggers(counts.completed + max(1, math.ceil(self._wait / self.actors)), self._next_s)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Choose surplus actors to drain, then send the next response of every drained or too full actor whose link is free."""
        counts, unfinished = state.counts, state.unfinished_count
        context = state.context_tokens / unfinished if unfinished else 0.0
        share_s = self.latency.per_response_s + self.latency.per_kv_token_s * context
        ids, load = counts.actor, counts.unfinished + counts.arriving
        if (missing := int(np.maximum.reduce(ids, initial=-1)) + 1 - len(self._stays)) > 0:
            self._stays = np.append(self._stays, np.ones(missing, dtype=bool))
            self._free_s = np.append(self._free_s, np.full(missing, -np.inf))
        staying = self._fold(counts, load, self.best_squared(unfinished, share_s))
        free_s = self._free_s[ids]
        sends = (free_s <= now_s + 1e-9) & (counts.unfinished > 0)
        leaving, full = (~staying).nonzero()[0], (staying & sends).nonzero()[0]
        senders = leaving[sends[leaving]]
        moves: list[Move] = []
        sent: list[int] = []
        if len(senders) or (len(full) and _may_even_out(counts, load, staying, int(load[full].max()))):
            full = full[np.lexsort((ids[full], -load[full]))]
            moves, sent = self._send(now_s, state, load, staying, [*senders.tolist(), *full.tolist()])
            free_s = self._free_s[ids]
        self.actors = int(np.count_nonzero(staying))
        until_fold = self._completions_until_fewer(unfinished, self.actors, share_s)
        self._wait = min(until_fold, max(1, unfinished // MIN_DECISIONS))
        busy = [at_s for at_s in free_s[[*sent, *leaving.tolist()]].tolist() if at_s > now_s]
        self._next_s = max(now_s + self.latency.base_s, min(busy)) if busy else None
        if any(at_s <= now_s for k, at_s in zip(leaving.tolist(), free_s[leaving].tolist(), strict=True) if k not in sent):
            self._wait = 1  # nobody has room for its responses: not before something is complete
        return [*moves]

    def _fold(self, counts: ActorCounts, load: IntArray, wanted_squared: float) -> NDArray[np.bool_]:
        """Mark the thinnest surplus actors as leaving, while the others have slots; returns (K,) which actors stay.

        Memory is not checked: a response that finds none on any receiver waits where it is, and decodes there.
        """
        staying = self._stays[counts.actor]
        left = int(np.count_nonzero(staying))
        if left < 2 or (left - 1) ** 2 < wanted_squared - 1e-9:
            return staying
        pending, slots = int(load[~staying].sum()), int(counts.free_slots[staying].sum())
        ranked = np.flatnonzero(staying)
        for k in ranked[np.lexsort((counts.actor[ranked], load[ranked]))].tolist():
            if left < 2 or (left - 1) ** 2 < wanted_squared - 1e-9:
                break
            pending += int(load[k])
            slots -= int(counts.free_slots[k])
            if slots < pending:
                break
            self._stays[counts.actor[k]] = staying[k] = False
            left -= 1
        return staying

    def _send(
        self, now_s: float, state: StepState, load: IntArray, staying: NDArray[np.bool_], senders: list[int]
    ) -> tuple[list[Move], list[int]]:
        """Return moves of these actors' next responses, each to the thinnest actor with a free slot and memory for it, and the
        actors that send. ``senders``: those that leave, then the others, the fullest first.
        """
        room, ids, stays, loads = ReceiverRoom(state), state.counts.actor.tolist(), staying.tolist(), load.tolist()
        thinnest = sorted((loads[k], ids[k], k) for k in np.flatnonzero(staying).tolist())
        moves: list[Move] = []
        sent, received, even = [], set(), False  # even: who has not received since gives nothing away
        for k in senders:
            if even and k not in received:
                continue
            receiver, first = -1, True
            for there, actor, to in thinnest:
                if to == k or room.slots[actor] <= 0:
                    continue
                if stays[k] and loads[k] - there < max(2.0, UNEVEN * loads[k]):
                    even = even or first
                    break
                view = state.view_of(ids[k])
                response = (view.running or view.waiting)[0]
                (needs,) = room.needs([response])
                if room.kv_tokens(actor) >= needs:
                    receiver = to
                    break
                first = False
            if receiver < 0:
                continue
            moves.append(Move(response, ids[receiver]))
            room.give(ids[receiver], needs)
            for at, change in ((receiver, 1), (k, -1)):
                if stays[at]:
                    thinnest.remove((loads[at], ids[at], at))
                    bisect.insort(thinnest, (loads[at] + change, ids[at], at))
                loads[at] += change
            self._free_s[ids[k]] = now_s + self.latency.transfer_s(float(state.context_of(response)))
            sent.append(k)
            received.add(receiver)
        return moves, sent


def _may_even_out(counts: ActorCounts, load: IntArray, staying: NDArray[np.bool_], fullest: int) -> bool:
    """Return whether an actor of the load ``fullest`` may give a response to one with a free slot."""
    receivers = load[staying & (counts.free_slots > 0)]
    return len(receivers) > 0 and fullest - int(receivers.min()) >= max(2.0, UNEVEN * fullest)


# --- policies that add a rule -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WithLocalCut:
    """Add the local cut to another policy's plan (the right-sized random split by default): isolates what the cut contributes.

    Args:
        tau: share of an actor's responses after which it is cut; 1 switches the cut off.
    """

    tau: float = 0.7
    base: SchedulingPolicy = field(default_factory=Random)
    name: str = "random+tau"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        return replace(self.base.plan(problem, options), policy=self.name, rule=LocalCut(self.tau) if self.tau < 1 else None)


@dataclass(frozen=True)
class Fold:
    """Add consolidation (``DrainingFold``) to another policy's plan, the right-sized random split by default."""

    base: SchedulingPolicy = field(default_factory=Random)
    name: str = "fold"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``. A deadline or budget consolidates as the weight 0.7 would. Where more actors cost
        nothing, none is released."""
        split = self.base.plan(problem, options)
        objective, (cluster, latency) = problem.objective, problem.one_kind
        if objective.time_weight >= 1.0 or len(split.actors) < 2 or latency.base_s <= 0:
            return replace(split, policy=self.name)
        nu = objective.cost_of_a_second(split.makespan_s, split.gpu_seconds) / cluster.gpus_per_actor
        rule = DrainingFold(nu, latency.affine, len(problem.workload), len(split.actors))
        return replace(split, policy=self.name, rule=rule)

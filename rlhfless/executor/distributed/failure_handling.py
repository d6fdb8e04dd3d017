"""Handles actors that die, hang or are slow: their responses continue on other actors, or the step fails with the reason.

An actor is lost when its ``StepActors`` report so or it has been silent for too long. It is also lost when it has other weights
than the step's. Reports that arrive from it afterwards are ignored. Each of its responses continues from its last state known
here: as it was last handed over, or from its beginning. With per-response random streams responses get the same tokens again.
Limits are those of ``Faults``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.backend import Loss, PoolBackend
from rlhfless.executor.distributed.failure_limits import GRACE_S, silent
from rlhfless.executor.distributed.messages import ActorLost
from rlhfless.executor.distributed.recovery import RecoveryPlan, RemainingWork, Survivor, resolve, what_is_left
from rlhfless.executor.step.dispatcher import Dispatcher
from rlhfless.executor.step.failure import ActorError
from rlhfless.executor.step.observation import state_of
from solver.lengths.survival import from_batch
from solver.model.plan import ActorPlan
from solver.model.runtime_rules import Cut, Move, StepState
from solver.model.workload import Workload

MAX_SLOW_CHECK_SHARE = 0.02  # of the time, at most, that is spent on whether a slow actor should be relieved


class FailureHandler:
    """Listens to the event loop on the wall clock, and lets a step continue when actors are lost.

    Attributes:
        forecast: of the lengths of all responses; None learns from the step itself.
        retried: of responses: how often their actor was lost. faults_on: of GPUs: how often an actor was lost on them.
        slots_on: of GPUs on which memory ran out: slots of the next actor there.
        last_loss: for a sentence; empty before there was one.
    """

    def __init__(self, backend: PoolBackend, dispatcher: Dispatcher[RemoteActorState]) -> None:
        self.step, self.orders, self.backend = backend.step, backend.orders, backend
        self.dispatcher = dispatcher
        self.faults, self.forecast = self.orders.wall.faults, self.orders.wall.forecast
        self.retried = np.zeros(len(self.step.requests), np.int64)
        self.faults_on: dict[int, int] = {}
        self.slots_on: dict[int, int] = {}
        self.places = [replace(a.plan, responses=(), prompts=(), prefixes=(), prefix_tokens=(), start_s=0.0, prewarmed=False,
                               receive_s=0.0) for a in self.orders.planned]  # fmt: skip
        self.next_index = len(self.orders.planned)
        self.last_loss = ""

    def after_events(self, now_s: float) -> bool:
        """See ``LoopListener``: go on without lost and silent actors, start those that are due, relieve slow ones."""
        losses, self.backend.losses = self.backend.losses, []
        losses += [silent for silent in self._silent(now_s) if all(silent[0] is not actor for actor, _ in losses)]
        if losses:
            self._lose(losses)
        self.orders.start_later(now_s)
        return self._rebalance_slow(now_s) or bool(losses)

    # --- noticing -----------------------------------------------------------------------------------------------------

    def _silent(self, now_s: float) -> list[Loss]:
        """Return actors that have reported nothing for too long."""
        losses = []
        for actor in [*self.step.live.values(), *self.orders.ending.values()]:
            if actor.due_s > now_s:
                continue
            if actor.suspect:
                if actor.ready:
                    lost = silent(actor.until_s, self.orders.silence_s(actor), "silence_floor_s")
                else:
                    lost = silent(None, self.faults.start_s(actor.latency), "min_start_timeout_s")
                losses.append((actor, lost))
            else:
                actor.suspect, actor.due_s = True, now_s + GRACE_S
        return losses

    # --- losing -------------------------------------------------------------------------------------------------------

    def _lose(self, losses: Sequence[Loss]) -> None:
        """Continue without these actors.

        Raises:
            ActorError: their responses cannot be given to other actors any more.
        """
        now_s = self.orders.step_actors.now_s()
        for actor, lost in losses:
            self._end_lost(now_s, actor, lost)
        unrecoverable = next((lost for _, lost in losses if lost.unrecoverable), None)
        gone = {actor.index for actor, _ in losses}
        homeless = [r for actor, _ in losses for r in actor.responses]
        moved = [r for r, actor in self.orders.leaving.items() if actor.index in gone and self.step.owner[r].index not in gone]
        if unrecoverable is not None:
            error = ActorError(f"{self.last_loss}; every other actor would fail in the same way, so the step was aborted")
            error.add_note(unrecoverable.trace)
            raise error
        again = [r for r in homeless if r not in self.orders.leaving or self.orders.leaving[r].index in gone]
        retried = again + moved
        self.retried[retried] += 1
        if (worst := next((r for r in retried if self.retried[r] > self.faults.retries), None)) is not None:
            raise ActorError(
                f"{self.last_loss}; response {worst} was lost with its actor {self.retried[worst]} times, but may be retried "
                f"only {self.faults.retries} times, so the step was aborted"
            )
        self.orders.restart(retried)
        for response in moved:  # their next actor goes on
            del self.orders.leaving[response]
            self.orders.send(self.step.owner[response], [self.orders.request(response)])
        for response in again:
            self.orders.leaving.pop(response, None)
        if homeless:
            recovery = resolve(homeless, self._left(now_s, gone))
            if recovery is None:
                raise ActorError(
                    f"{self.last_loss}; {len(homeless)} responses are unfinished, but no actor is left and none may be "
                    f"started again (restarts: {self.faults.restarts}), so the step was aborted"
                )
            self._execute_recovery(now_s, recovery)
        if self.step.plan.prefill_actor in gone:
            self.orders.assign_prefixes({})

    def _end_lost(self, now_s: float, actor: RemoteActorState, lost: ActorLost) -> None:
        """End the actor's allocation; its work after its last report is discarded."""
        self.orders.step_actors.abandon(actor.index)
        self.step.live.pop(actor.index, None)
        self.orders.ending.pop(actor.index, None)
        phase = "decode" if actor.ready else "start"
        what = {"tokens": 0, "batch_mean": float(len(actor.running)), "slots": actor.admission.max_batch} if actor.ready else {}
        if not actor.ready or actor.responses:
            self.step.record.span(actor.holder, phase, max(actor.start_s, actor.until_s), now_s, call="lost", **what)
        actor.plan = replace(actor.plan, release="done")  # whatever the plan says, it is gone
        self.orders.allocate(actor, max(now_s, actor.until_s))
        self.step.record.event(now_s, "lost", actor.holder, why=lost.reason, responses=len(actor.responses))
        self.last_loss = f"{actor.holder} {lost.reason}"
        batch = len(actor.running) or min(actor.admission.max_batch, len(actor.responses))  # it may not have come to tell
        for gpu in actor.plan.gpu_ids:
            self.faults_on[gpu] = self.faults.restarts + 1 if lost.gpus_gone else self.faults_on.get(gpu, 0) + 1
            if lost.out_of_memory:
                self.slots_on[gpu] = max(1, batch // 2)

    # --- going on -----------------------------------------------------------------------------------------------------

    def _left(self, now_s: float, without: set[int]) -> RemainingWork:
        """Return the remaining work of the step without the actors ``without``."""
        if self.forecast is None:
            nothing = Workload(self.step.prompt_tokens, range(len(self.step.requests)), np.zeros(len(self.step.requests)),
                               max_response_tokens=self._limit)  # fmt: skip
            self.forecast = from_batch(nothing)
        workload = what_is_left(
            self.step.prompt_tokens, self.step.observed_tokens, self.step.complete, self._limit, self.forecast
        )
        seen = self._seen(now_s)
        survivors = [_survivor(seen, a) for a in self.step.live.values() if not a.closing and a.index not in without]
        usd = self.faults.objective.cost == "usd"
        ends = [(h.plan, h.done_s - h.start_s) for h in self.step.held]
        ends += [(a.plan, max(0.0, now_s - a.start_s)) for a in (*self.step.live.values(), *self.orders.ending.values())]
        spent = sum(len(p.gpu_ids) * seconds * (p.usd_per_gpu_s if usd else 1.0) for p, seconds in ends)
        return RemainingWork(
            workload, survivors, self._free(), self.step.options.latency, self.step.options.admission, self.faults.objective,
            now_s - self.step.record.start_s, spent, self.backend.cold_start_s,
        )  # fmt: skip

    @property
    def _limit(self) -> int:
        return max(r.max_tokens for r in self.step.requests)

    def _seen(self, now_s: float) -> StepState:
        """Return what a rule would see of the step."""
        return state_of(self.step, now_s, self.backend.known(now_s))

    def _free(self) -> list[ActorPlan]:
        """Return GPUs of the plan on which a new actor may be started: no actor has them or is going to have them."""
        warm = self.orders.step_actors.warm
        taken = {gpu for a in (*self.step.live.values(), *self.orders.ending.values()) for gpu in a.plan.gpu_ids}
        taken |= self.backend.work.used_gpus
        free = []
        for place in self.places:
            if taken.isdisjoint(place.gpu_ids) and all(self.faults_on.get(g, 0) <= self.faults.restarts for g in place.gpu_ids):
                taken.update(place.gpu_ids)
                slots = min([place.max_batch, *(self.slots_on[g] for g in place.gpu_ids if g in self.slots_on)])
                free.append(replace(place, max_batch=slots, prewarmed=place.gpu_ids in warm))
        return free

    def _execute_recovery(self, now_s: float, recovery: RecoveryPlan) -> None:
        """Assign the responses of lost actors as the recovery plan says."""
        started = self._start_more(now_s, recovery.starts)
        receiver_of: dict[int, list[int]] = {}
        for actor in started:
            receiver_of[actor.index] = list(actor.plan.responses)
        for response, to in recovery.moves.items():
            receiver_of.setdefault(to, []).append(response)
        for index, responses in receiver_of.items():
            receiver = self.step.live[index]
            for response in responses:
                self.step.assign(response, receiver)
            between = [r for r in responses if r in self.orders.leaving]  # another actor has these and will hand them over
            again = [r for r in responses if r not in self.orders.leaving]
            if again:
                self.orders.send(receiver, [self.orders.request(r) for r in again])
                times = int(self.retried[again].max())
                self.step.record.event(now_s, "retry", receiver.holder, responses=again, times=times)
            if between:
                self.step.record.event(now_s, "move", receiver.holder, responses=len(between), to={receiver.holder: between})
        self.orders.start(started)

    def _start_more(self, now_s: float, plans: Sequence[ActorPlan]) -> list[RemoteActorState]:
        """Create actors on GPUs that became free; they start once responses are assigned to them."""
        actors = []
        for plan in plans:
            self._stop_billing(now_s, plan)
            actor = self.orders.remote(self.next_index, plan, now_s)
            actor.responses, actor.waiting, actor.expecting, actor.assigned = {}, (), 0, 0
            actor.short_of_memory = not self.slots_on.keys().isdisjoint(plan.gpu_ids)
            self.next_index += 1
            self.step.live[actor.index] = actor
            actors.append(actor)
        return actors

    def _stop_billing(self, now_s: float, plan: ActorPlan) -> None:
        """End the allocation of earlier holders of these GPUs now at the latest, whatever the plan says of their release."""
        for i, held in enumerate(self.step.held):
            if held.plan.release != "done" and not set(plan.gpu_ids).isdisjoint(held.plan.gpu_ids):
                self.step.held[i] = held._replace(plan=replace(held.plan, release="done"), done_s=now_s)

    # --- slow actors --------------------------------------------------------------------------------------------------

    def _rebalance_slow(self, now_s: float) -> bool:
        """Take the responses off a slow actor where that is planned to pay for itself; returns whether anything was done."""
        if self.faults.slow_factor == math.inf:
            return False
        for actor in [a for a in self.step.live.values() if a.speed.measured and not a.closing and a.responses]:
            ratios = [a.speed.ratio for a in self.orders.started if a is not actor and a.speed.measured]
            if not ratios or now_s < actor.next_slow_check_s:
                continue
            slowness = actor.speed.ratio / float(np.median(ratios))
            if slowness < self.faults.slow_factor:
                continue
            began_s = self.orders.step_actors.now_s()
            left = self._left(now_s, {actor.index})
            recovery = resolve([*actor.responses], left, _survivor(self._seen(now_s), actor, slowness))
            actor.next_slow_check_s = now_s + (self.orders.step_actors.now_s() - began_s) / MAX_SLOW_CHECK_SHARE
            if recovery is None:
                continue
            self.step.record.event(
                now_s, "slow", actor.holder, times_planned=round(slowness, 2), responses=len(actor.responses)
            )
            for gpu in actor.plan.gpu_ids:  # nothing more is started there
                self.faults_on[gpu] = self.faults.restarts + 1
            started = self._start_more(now_s, recovery.starts)
            receiver_of = dict(recovery.moves) | {r: a.index for a in started for r in a.plan.responses}
            self.orders.start(started)
            moves = tuple(Move(r, to) for r, to in receiver_of.items())
            self.dispatcher.apply(now_s, Cut(actor.index, moves), None)
            return True
        return False


def _survivor(seen: StepState, actor: RemoteActorState, slowness: float = 1.0) -> Survivor:
    return Survivor(seen.view_of(actor.index), actor.plan, actor.latency, actor.admission, slowness)

"""Moves in two steps in a scripted world: KV states are copied while their responses decode on, and actors die meanwhile.

Every run checks that each response is there once with the tokens of an actor without any trouble (``Stage.run``).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from executor_samples import Restless, Stepping, plan_of
from scripted_steps import GROUPS, events, spans, stage
from scripted_strikes import EVERY_POOL_KIND, LONG, MOVING, TWO, MoveOne, MoveTwice, decodes, up
from scripted_world import Actor, Punctual

from rlhfless.executor import StepRecord
from rlhfless.executor.distributed.messages import ActorReport
from solver.model.runtime_rules import Cut, Decision, Move, StepState


def parts(record: StepRecord, phase: str, response: int) -> list[tuple[float, bool]]:
    """(tokens, in the background) of what was sent, or received, of a response."""
    rows = sorted(spans(record, phase), key=lambda s: s["start_s"])
    return [(s["kv_tokens"], s["background"]) for s in rows if json.loads(s["detail"] or "{}").get("response") == response]


@EVERY_POOL_KIND
def test_a_copy_and_its_rest_arrive_one_after_the_other(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        up(on)
        record = on.run(plan_of(TWO, Stepping(MoveOne(), True)), lengths=MOVING)
        (moved,) = record.rule.rule.rule.moved
        sent, received = parts(record, "migrate", moved), parts(record, "transfer", moved)
        assert sent == received
        assert [background for _, background in sent] == [True, False]
        (copied, _), (rest, _) = sent
        assert copied > 3, "its prompt and what was decoded"
        assert rest >= 1, "it decoded on"
        assert (record.moves, record.actor_of[moved], record.recomputes) == (1, "actor-1", [])
        assert record.completions[moved].prefill_tokens_computed == 3
        (event,) = events(record, "move")
        assert event["copied_first"] == 1


@EVERY_POOL_KIND
def test_nothing_is_lost_or_doubled_whatever_crosses_on_the_wire(pool_kind: str) -> None:
    """Responses complete, move again and their actors are cut while they are copied."""
    copied = 0
    for seed in range(4):
        with stage(pool_kind, seed) as on:
            on.run(plan_of(GROUPS))
            rule = Stepping(Restless(seed, 0.01, late=True), True)
            record = on.run(plan_of(GROUPS, rule), lengths=LONG, admission="preempt" if seed % 2 else "reserve")
            copied += sum(s["background"] for s in spans(record, "transfer"))
            on.trace()
    assert copied > 3


@EVERY_POOL_KIND
@pytest.mark.parametrize("who", ["sender", "receiver"])
@pytest.mark.parametrize("when", ["copied", "received", "taken"])
def test_an_actor_that_dies_during_a_two_step_move_takes_nothing_with_it(when: str, who: str, pool_kind: str) -> None:
    """With the copy written, read, or the rest on its way."""
    with stage(pool_kind, Punctual(0)) as on:
        up(on)
        struck: list[Actor] = []

        def hear(actor: Actor, report: ActorReport) -> None:
            if getattr(report, when) and not struck:
                struck.append(on.world.actors[0 if who == "sender" else 1])
                struck[0].kill()

        on.world.hears.append(hear)
        record = on.run(plan_of(TWO, Stepping(MoveOne(), True)), lengths=MOVING)
        (moved,) = record.rule.rule.rule.moved
        assert struck
        assert [e["holder"] for e in events(record, "lost")] == ["actor-0" if who == "sender" else "actor-1"]
        retried = [r for e in events(record, "retry") for r in e["responses"]]
        if who == "receiver" and when == "copied":
            assert moved not in retried, "it was with its sender all the time"


@EVERY_POOL_KIND
@pytest.mark.parametrize("what", ["no room", "unreachable"])
def test_a_copy_that_does_not_arrive_costs_nothing_but_its_time(what: str, pool_kind: str) -> None:
    """The response leaves in one step; as nothing else arrives either, its context is computed again."""
    with stage(pool_kind, Punctual(0)) as on:
        up(on)
        on.world.strikes.append(lambda actor: actor.troubles.add(what) if decodes(1)(actor) else None)
        record = on.run(plan_of(TWO, Stepping(MoveOne(), True)), lengths=MOVING)
        (moved,) = record.rule.rule.rule.moved
        assert (record.moves, record.actor_of[moved]) == (1, "actor-1")
        assert [one.response for one in record.recomputes] == [moved]
        assert not events(record, "lost")


class CutSender(MoveOne):
    """Cuts actor 0."""

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        if not super().decide(now_s, state):
            return []
        self.moved = list(next(a.unfinished for a in state.actors if a.actor == 0))
        return [Cut(0, tuple(Move(r, 1) for r in self.moved))]


@EVERY_POOL_KIND
def test_all_responses_of_an_actor_that_is_cut_are_copied_first(pool_kind: str) -> None:
    """One copy after the other, and the actor ends when the last response has left."""
    with stage(pool_kind, Punctual(0)) as on:
        up(on)
        record = on.run(plan_of(TWO, Stepping(CutSender(), True)), lengths=MOVING)
        moved = record.rule.rule.rule.moved
        assert len(moved) > 2
        for response in moved:
            assert [background for _, background in parts(record, "transfer", response)] == [True, False]
        assert record.moves == len(moved)
        ends = {a["holder"]: a["end_s"] for a in record.allocations}
        assert ends["actor-0"] < ends["actor-1"]


class CutReceiver(MoveOne):
    """Moves a response to actor 1 and cuts actor 1 while it is on its way there."""

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        moves = super().decide(now_s, state)
        unfinished = next(a.unfinished for a in state.actors if a.actor == 1) if moves else ()
        return [*moves, *(Cut(1, (*(Move(r, 2) for r in unfinished), Move(moved, 2))) for moved in self.moved if moves)]


@EVERY_POOL_KIND
@pytest.mark.parametrize("rule", [MoveTwice, CutReceiver])
def test_a_response_that_gets_another_receiver_leaves_in_one_step(rule: Any, pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        up(on, 3)
        record = on.run(plan_of([range(5), range(5, 9), range(9, 12)], Stepping(rule(), True)), lengths=MOVING)
        (moved,) = record.rule.rule.rule.moved
        assert record.actor_of[moved] == "actor-2"
        assert [background for _, background in parts(record, "transfer", moved)][-1:] == [False]
        assert not record.recomputes

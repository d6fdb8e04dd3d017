"""Steps in a scripted world in which actors move responses, hand prefixes over and start late.

Pools of processes and of Ray actors run in a scripted world; real ones are in ``test_real_processes.py`` and
``test_real_ray.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor_samples import Restless, Stepping, plan_of
from scripted_engine import ScriptedEngines, expected_tokens, requests_of
from scripted_steps import GROUPS, LATENCY, events, spans, stage
from scripted_strikes import (
    EVERY_POOL_KIND,
    LONG,
    MOVING,
    TWO,
    MoveOne,
    MoveTwice,
    at,
    decodes,
    has_weights,
    up,
)
from scripted_world import Actor, Punctual

from rlhfless.executor.distributed import messages
from rlhfless.executor.distributed.messages import ActorReport
from solver import Cluster, NonGenerationPhases, Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload
from solver.prefix_sharing.deduplicate import deduplicate


@EVERY_POOL_KIND
@pytest.mark.parametrize("migration", ["move", "recompute"])
def test_moves_change_no_token_and_are_traced_on_both_sides(migration: str, pool_kind: str) -> None:
    """Cold starts first, then none; a KV state that is sent is received, and one that is not is computed again."""
    moved = 0
    for seed in range(3):
        with stage(pool_kind, seed) as on:
            first = on.run(plan_of(GROUPS))
            record = on.run(plan_of(GROUPS, Restless(seed, 0.01, late=True)), lengths=LONG, migration=migration)
            for i in range(4):
                own = [s["phase"] for s in sorted(first.spans, key=lambda s: s["start_s"]) if s["holder"] == f"actor-{i}"]
                assert own[:3] == ["start", "sync", "prefill"]
                own = [s["phase"] for s in sorted(record.spans, key=lambda s: s["start_s"]) if s["holder"] == f"actor-{i}"]
                assert own[:2] == ["sync", "prefill"], "it was up already"
            sent, received = spans(record, "migrate"), spans(record, "transfer")
            if migration == "recompute":
                assert not sent
                assert not received
                assert len(record.recomputes) <= record.moves
            else:
                assert sum(s["bytes"] for s in sent) == sum(s["bytes"] for s in received)
                assert all(r["from_actor"] != r["holder"] and r["kv_tokens"] > 0 for r in received)
                assert not record.recomputes
            moved += len(received) if migration == "move" else len(record.recomputes)
            on.trace()
            meta = record.trace.meta
            assert (meta["clock"], meta["charging"], meta["policy"]) == ("wall", "measured", record.plan.policy)
            assert meta["device"].startswith("a process per actor" if pool_kind == "local" else "a Ray actor per actor")
    assert moved > 3


@EVERY_POOL_KIND
def test_every_step_decodes_with_its_own_weights(pool_kind: str) -> None:
    """With the actors of the step before."""
    with stage(pool_kind) as on:
        for weights in (1, 7, 1, 3):
            record = on.run(plan_of(GROUPS, Restless(weights, 0.02, late=True)), LONG, engines=ScriptedEngines(weights))
            assert record.completions[0].token_ids.tolist() == expected_tokens(requests_of(LONG)[0], weights)
        assert len(on.world.actors) == 4, "actors of the step before are used again"


def deduplicated(learner_node: int | None = None) -> tuple[Plan, list[Any]]:
    """Two decode actors, and who computes the prompts that they share: an actor of its own, or the learner."""
    lengths, prompts = [9] * 8, 4
    asked = requests_of(lengths, prompt_tokens=40, samples=2)
    asked = [replace(r, prompt_ids=np.concatenate([np.arange(30), 100 * r.prompt + np.arange(10)])) for r in asked]
    work = Workload.grid([40] * prompts, np.full((prompts, 2), 9), max_response_tokens=60)
    slow = replace(LATENCY, prefill_per_token_s=1e-2)
    ids = [r.prompt_ids.tolist() for r in asked[::2]]
    plan = plan_of([range(0, 8, 2), range(1, 8, 2)])
    plan = replace(plan, actors=tuple(replace(a, node=0) for a in plan.actors))
    found = deduplicate(plan, PlanningProblem(work, Cluster(1, 4, 1), slow), ids, learner_node=learner_node).plan
    assert found.prefill is not None
    assert (found.prefill_actor is None) == (learner_node is not None)
    return found, asked


def alone_tokens(asked: list[Any]) -> int:
    """Prompt tokens that are computed where nobody shares anything."""
    return sum(r.prompt_tokens for r in asked)


@EVERY_POOL_KIND
def test_a_prefill_actor_hands_prefixes_over(pool_kind: str) -> None:
    """Its GPUs are charged as prefill's, it decodes nothing, and receivers compute what is left only."""
    plan, asked = deduplicated()
    with stage(pool_kind) as on:
        record = on.run(plan, requests=asked)
        sender = f"actor-{plan.prefill_actor}"
        (computed,) = [s for s in spans(record, "prefill") if s["holder"] == sender]
        assert 0 < computed["tokens"] < alone_tokens(asked)
        received, (sent,) = spans(record, "transfer"), spans(record, "migrate")
        assert sorted(s["holder"] for s in received) == [f"actor-{i}" for i, a in enumerate(plan.actors) if a.prefixes]
        assert {s["from_actor"] for s in received} == {sender}
        assert sum(s["bytes"] for s in received) == sent["bytes"] > 0
        assert all(s["start_s"] >= computed["end_s"] for s in received)
        roles = {a["holder"]: a["role"] for a in record.allocations}
        assert [roles[f"actor-{i}"] for i in range(3)] == ["prefill" if f"actor-{i}" == sender else "decode" for i in range(3)]
        assert sum(c.prefill_tokens_computed for c in record.completions.values()) < alone_tokens(asked)


@EVERY_POOL_KIND
def test_prefixes_that_the_learner_computes_are_received(pool_kind: str) -> None:
    plan, asked = deduplicated(learner_node=0)
    with stage(pool_kind) as on:
        record = on.run(plan, requests=asked, phases=NonGenerationPhases(0.5, 0.5, 1))
        received = spans(record, "transfer")
        assert {s["from_actor"] for s in received} == {"learner"}
        assert sum(c.prefill_tokens_computed for c in record.completions.values()) < alone_tokens(asked)
        (computed,) = [s for s in spans(record, "prefill") if s["holder"] == "learner"]
        assert all(s["start_s"] >= computed["end_s"] for s in received), "when it was computed was measured"


def test_prefixes_leave_shared_memory_once_they_are_read() -> None:
    plan, asked = deduplicated(learner_node=0)
    blocks: list[int] = []
    with stage("local") as on:
        on.world.hears.append(lambda actor, report: blocks.append(len(list(Path("/dev/shm").glob(f"{on.pool._name}-*")))))
        on.run(plan, requests=asked, phases=NonGenerationPhases(0.5, 0.5, 1))
    assert max(blocks) > 1
    assert blocks[-1] == 1, "the weights alone"


@EVERY_POOL_KIND
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_prefill_actor_that_dies_takes_no_response_with_it(when: str, pool_kind: str) -> None:
    """Those that wait for it compute their prompts themselves, or go on with what came before it died."""
    plan, asked = deduplicated()
    with stage(pool_kind) as on:
        if when == "before":
            at(on, lambda a: a.suffer("kill"), has_weights, plan.prefill_actor)
        else:
            on.world.hears.append(lambda a, r: a.kill() if r.prefixes is not None else None)
        record = on.run(plan, requests=asked)
        assert bool([s for s in spans(record, "transfer") if s["bytes"]]) == (when == "after" and pool_kind == "local")
        if when == "before":
            assert [e["responses"] for e in events(record, "lost")] == [0]


@EVERY_POOL_KIND
def test_an_actor_starts_at_its_time(pool_kind: str) -> None:
    plan = plan_of(GROUPS)
    plan = replace(plan, actors=(*plan.actors[:3], replace(plan.actors[3], start_s=0.3)))
    with stage(pool_kind) as on:
        record = on.run(plan, start_s=1e3)
        held = {a["holder"]: a["start_s"] for a in record.allocations}
        assert [held[f"actor-{i}"] for i in range(4)] == [pytest.approx(1e3)] * 3 + [pytest.approx(1000.3)]
        assert min(s["start_s"] for s in record.spans if s["holder"] == "actor-3") >= 1000.3


@EVERY_POOL_KIND
@pytest.mark.parametrize("who", ["sender before", "sender after", "receiver"])
def test_an_actor_that_is_killed_while_a_response_moves(who: str, pool_kind: str) -> None:
    """The sender with the order to hand over on its way, or with the KV state laid out; the receiver with it on its way."""
    with stage(pool_kind, Punctual(0)) as on:
        up(on)
        struck: list[int] = []

        def strike(actor: Actor) -> None:
            if not struck and any("TakeOff" in str(order) for _, order in actor.orders) and pool_kind == "local":
                struck.append(actor.number)
                actor.suffer("kill")

        def hear(actor: Actor, report: ActorReport) -> None:
            if report.taken and not struck:
                struck.append(actor.number)
                victim = actor if who == "sender after" else on.world.actors[1]
                victim.kill()

        if who == "sender before" and pool_kind == "local":
            on.world.strikes.append(strike)
        elif who == "sender before":
            at(on, lambda a: a.suffer("kill"), lambda a: bool(a.orders) and decodes(6)(a), 0)
        else:
            on.world.hears.append(hear)
        record = on.run(plan_of(TWO, MoveOne()), lengths=MOVING)
        (move,) = [e for e in record.events if e["name"] == "move"][:1]
        assert move["holder"] == "actor-0"
        lost = events(record, "lost")
        assert [e["holder"] for e in lost] == ["actor-1" if who == "receiver" else "actor-0"]
        if who == "sender after" and pool_kind == "ray":
            assert len(record.recomputes) == 1, "what was handed over was lost with its actor: it is computed again, once"


@EVERY_POOL_KIND
def test_a_move_takes_one_step_whatever_the_rule_says(pool_kind: str) -> None:
    """Copies of KV states while their responses decode on are of the virtual clock."""
    with stage(pool_kind, Punctual(0)) as on:
        up(on)
        record = on.run(plan_of(TWO, Stepping(MoveOne(), True)), lengths=MOVING)
        (moved,) = record.rule.rule.rule.moved
        assert record.actor_of[moved] == "actor-1"
        for phase in ("migrate", "transfer"):
            (span,) = spans(record, phase)
            assert (span["background"], span["kv_tokens"] > 3) == (False, True), "all of it, at once"
        (event,) = events(record, "move")
        assert "copied_first" not in event


def test_a_response_between_actors_just_gets_another_receiver() -> None:
    """Only who has it is asked for it, and it moves once."""
    with stage(seed=Punctual(0)) as on:
        up(on, 3)
        asked: list[tuple[int, Any]] = []
        for actor in on.world.actors:
            give = actor.handle.send  # type: ignore[attr-defined]
            actor.handle.send = lambda order, n=actor.number, give=give: (asked.append((n, order)), give(order))  # type: ignore[attr-defined]
        record = on.run(plan_of([*TWO, []]), lengths=MOVING)
        assert not record.moves
        asked.clear()
        record = on.run(plan_of([range(5), range(5, 9), range(9, 12)], MoveTwice()), lengths=MOVING)
        (moved,) = record.rule.rule.moved
        cuts = [(n, list(order.responses)) for n, order in asked if isinstance(order, messages.TakeOff)]
        assert cuts == [(0, [moved])]
        assert (record.moves, record.actor_of[moved]) == (1, "actor-2")


@EVERY_POOL_KIND
@pytest.mark.parametrize("what", ["no room", "unreachable"])
def test_a_kv_state_that_does_not_arrive_costs_nobody(what: str, pool_kind: str) -> None:
    """There is no room for it, or it cannot be read: its context is computed again, and nothing else is."""
    with stage(pool_kind, Punctual(0)) as on:
        up(on)
        on.world.strikes.append(lambda actor: actor.troubles.add(what) if decodes(1)(actor) else None)
        record = on.run(plan_of(TWO, MoveOne()), lengths=MOVING)
        (moved,) = record.rule.rule.moved
        assert record.moves == 1
        assert not events(record, "lost")
        assert [one.response for one in record.recomputes] == [moved]
        assert (record.recomputes[0].sender, record.recomputes[0].receiver) == ("actor-0", "actor-1")
        assert not spans(record, "transfer")
        assert record.completions[moved].prefill_tokens_computed > 2 * 3, "it went on where it was"

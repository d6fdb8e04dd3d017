"""What becomes of a step whose actors die, hang, are slow, move responses or start late, one behaviour after the other.

Pools of processes and of Ray actors run in a scripted world; real ones are in ``test_real_processes.py`` and
``test_real_ray.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from executor_samples import Restless, plan_of
from scripted_engine import ScriptedEngines, expected_tokens, requests_of
from scripted_steps import CARRIERS, GROUPS, LATENCY, LENGTHS, SOON, Stage, events, spans, stage
from scripted_world import FAILURES, Actor, Punctual, Trouble

from rlhfless.executor import ActorError, Executor, Faults, Lifecycle, worker
from rlhfless.executor.remote import Report
from rlhfless.executor.wall_losses import GRACE_S
from solver import Cluster, Plan, StepRest, deduplicate
from solver.rules import SIGNAL_TOKENS, ActorView, Decision, Move, StepState, Trigger
from solver.workload import Workload

TWO = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
LONG = [40, 30, 50, 35, 45, 55, 42, 33, 51, 38, 47, 36]
WHOEVER_CARRIES = pytest.mark.parametrize("carrier", CARRIERS)


def at(on: Stage, strike: Callable[[Actor], None], when: Callable[[Actor], bool], number: int | None = None) -> list[Actor]:
    """Strikes an actor once, when its turn comes and that is so; returns who was struck."""
    struck: list[Actor] = []

    def turn(actor: Actor) -> None:
        if not struck and number in (None, actor.number) and when(actor):
            struck.append(actor)
            strike(actor)

    on.world.strikes.append(turn)
    return struck


def decodes(tokens: int = 5) -> Callable[[Actor], bool]:
    """Whether it has generated so many tokens of each."""

    def there(actor: Actor) -> bool:
        engine = None if actor.worker is None else actor.worker.engine
        return engine is not None and bool(engine.running()) and min(engine.generated_tokens().values()) >= tokens

    return there


def starts(actor: Actor) -> bool:
    """Whether it is not up yet."""
    return actor.state == "starts"


def has_weights(actor: Actor) -> bool:
    """Whether it has an engine, and nothing to do yet."""
    return actor.worker is not None and actor.worker.engine is not None and not actor.worker.busy


def up(on: Stage, actors: int = 2) -> None:
    """A step before, so that so many actors are up: a rule has nothing to move while none decodes."""
    on.run(plan_of([[i] for i in range(actors)]), lengths=[1] * actors)


# --- steps in which nothing goes wrong --------------------------------------------------------------------------------


@WHOEVER_CARRIES
@pytest.mark.parametrize("migration", ["move", "recompute"])
def test_moves_change_no_token_and_are_traced_on_both_sides(migration: str, carrier: str) -> None:
    """Cold starts first, then none; a KV state that is sent is received, and one that is not is computed again."""
    moved = 0
    for seed in range(3):
        with stage(carrier, seed) as on:
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
            meta = on.pool.meta  # type: ignore[attr-defined]
            assert meta["clock"] == "wall"
            assert meta["device"].startswith("a process per actor" if carrier == "local" else "a Ray actor per actor")
    assert moved > 3


@WHOEVER_CARRIES
def test_every_step_decodes_with_its_own_weights(carrier: str) -> None:
    """With the actors of the step before."""
    with stage(carrier) as on:
        for weights in (1, 7, 1, 3):
            record = on.run(plan_of(GROUPS, Restless(weights, 0.02, late=True)), LONG, engines=ScriptedEngines(weights))
            assert record.completions[0].token_ids.tolist() == expected_tokens(requests_of(LONG)[0], weights)
        assert len(on.world.actors) == 4, "actors of the step before are used again"


@WHOEVER_CARRIES
def test_a_rule_sees_signals_of_the_tokens_that_were_reported(carrier: str) -> None:
    """Whatever moves meanwhile: what is told is the mean over the last of the tokens that the same state counts."""
    asked, running = requests_of(LONG), 0
    with stage(carrier, 1) as on:
        up(on, 4)
        plan = plan_of(GROUPS, Restless(1, 0.01, late=True))
        record = on.run(plan, requests=asked, engines=ScriptedEngines(signals=True))
        for state in record.rule.rule.seen:
            for response in range(len(asked) if state.signals is not None else 0):
                told, tokens = float(state.signals["token"][response]), int(state.generated_tokens[response])
                if state.complete[response] or not tokens:
                    assert math.isnan(told)
                else:
                    last = expected_tokens(asked[response])[max(0, tokens - SIGNAL_TOKENS) : tokens]
                    assert told == pytest.approx(np.mean(last))
                    running += 1
        silent = on.run(plan, requests=asked)
        assert all(state.signals is None for state in silent.rule.rule.seen)
    assert running > 10


def deduplicated(learner_node: int | None = None) -> tuple[Plan, list[Any]]:
    """Two decode actors, and who computes the prompts that they share: an actor of its own, or the learner."""
    lengths, prompts = [9] * 8, 4
    asked = requests_of(lengths, prompt_tokens=40, samples=2)
    asked = [replace(r, prompt_ids=np.concatenate([np.arange(30), 100 * r.prompt + np.arange(10)])) for r in asked]
    work = Workload.grid([40] * prompts, np.full((prompts, 2), 9), response_limit=60)
    slow = replace(LATENCY, prefill_per_token_s=1e-2)
    ids = [r.prompt_ids.tolist() for r in asked[::2]]
    plan = plan_of([range(0, 8, 2), range(1, 8, 2)])
    plan = replace(plan, actors=tuple(replace(a, node=0) for a in plan.actors))
    found = deduplicate(plan, work, Cluster(1, 4, 1), slow, ids, learner_node=learner_node).plan
    assert found.prefill is not None
    assert (found.prefill_actor is None) == (learner_node is not None)
    return found, asked


def alone_tokens(asked: list[Any]) -> int:
    """Prompt tokens that are computed where nobody shares anything."""
    return sum(r.prompt_tokens for r in asked)


@WHOEVER_CARRIES
def test_a_prefill_actor_hands_prefixes_over(carrier: str) -> None:
    """Its GPUs are charged as prefill's, it decodes nothing, and receivers compute what is left only."""
    plan, asked = deduplicated()
    with stage(carrier) as on:
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


@WHOEVER_CARRIES
def test_prefixes_that_the_learner_computes_are_received(carrier: str) -> None:
    plan, asked = deduplicated(learner_node=0)
    with stage(carrier) as on:
        record = on.run(plan, requests=asked, rest=StepRest(0.5, 0.5, 1))
        received = spans(record, "transfer")
        assert {s["from_actor"] for s in received} == {"learner"}
        assert sum(c.prefill_tokens_computed for c in record.completions.values()) < alone_tokens(asked)
        (computed,) = [s for s in spans(record, "prefill") if s["holder"] == "learner"]
        assert all(s["start_s"] >= computed["end_s"] for s in received), "when it was computed was measured"


@WHOEVER_CARRIES
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_prefill_actor_that_dies_takes_no_response_with_it(when: str, carrier: str) -> None:
    """Those that wait for it compute their prompts themselves, or go on with what came before it died."""
    plan, asked = deduplicated()
    with stage(carrier) as on:
        if when == "before":
            at(on, lambda a: a.suffer("kill"), has_weights, plan.prefill_actor)
        else:
            on.world.hears.append(lambda a, r: a.kill() if r.prefixes is not None else None)
        record = on.run(plan, requests=asked)
        assert bool([s for s in spans(record, "transfer") if s["bytes"]]) == (when == "after" and carrier == "local")
        if when == "before":
            assert [e["responses"] for e in events(record, "lost")] == [0]


@WHOEVER_CARRIES
def test_an_actor_starts_at_its_time(carrier: str) -> None:
    plan = plan_of(GROUPS)
    plan = replace(plan, actors=(*plan.actors[:3], replace(plan.actors[3], start_s=0.3)))
    with stage(carrier) as on:
        record = on.run(plan, start_s=1e3)
        held = {a["holder"]: a["start_s"] for a in record.allocations}
        assert [held[f"actor-{i}"] for i in range(4)] == [pytest.approx(1e3)] * 3 + [pytest.approx(1000.3)]
        assert min(s["start_s"] for s in record.spans if s["holder"] == "actor-3") >= 1000.3


# --- actors that die ---------------------------------------------------------------------------------------------------


@WHOEVER_CARRIES
@pytest.mark.parametrize("when", [starts, has_weights, decodes(), decodes(20)])
def test_an_actor_that_is_killed_is_replaced(when: Callable[[Actor], bool], carrier: str) -> None:
    """While it starts, before it prefills, early and late: what it had is begun again, once."""
    with stage(carrier, Punctual(0)) as on:
        at(on, lambda a: a.suffer("kill"), when, 1)
        record = on.run(plan_of(TWO), lengths=LONG)
        (lost,) = events(record, "lost")
        assert lost["holder"] == "actor-1"
        said = "(process 1001 on cpu) was killed by SIGKILL" if carrier == "local" else "worker process was killed by SIGKILL"
        assert said in lost["why"]
        assert lost["responses"] == sum(len(e["responses"]) for e in events(record, "retry")) == 6
        assert all(e["times"] == 1 for e in events(record, "retry"))
        if when is not has_weights:  # that one is killed at the moment when it was last heard of
            tail = [s for s in record.spans if s["holder"] == "actor-1"][-1]
            assert (tail["call"], tail["tokens"] or 0, tail["end_s"]) == ("lost", 0, pytest.approx(lost["time_s"]))
            assert (tail["phase"] == "start") == (when is starts)
        on.trace()


@dataclass
class Looker:
    """Looks every few milliseconds and decides nothing."""

    name: str = "looker"
    seen: list[StepState] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(time_s=(self.seen[-1].now_s if self.seen else 0.0) + 0.002)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.seen.append(state)
        return []


@WHOEVER_CARRIES
def test_nothing_is_known_of_a_response_that_begins_again(carrier: str) -> None:
    """Neither tokens nor signals, until its next actor reports some."""
    with stage(carrier, Punctual(0)) as on:
        at(on, lambda a: a.suffer("kill"), decodes(20), 1)
        record = on.run(plan_of(TWO, Looker()), lengths=LONG, engines=ScriptedEngines(signals=True))
        (lost,) = events(record, "lost")
        again = sorted(r for e in events(record, "retry") for r in e["responses"])
        seen: list[StepState] = record.rule.rule.seen
        before = next(state for state in reversed(seen) if state.now_s < lost["time_s"])
        after = next(state for state in seen if state.now_s >= lost["time_s"])
        assert before.generated_tokens[again].min() > 0
        assert after.generated_tokens[again].tolist() == [0] * len(again)
        assert np.isnan(after.signals["token"][again]).all()


def test_a_new_actor_is_not_started_where_starting_takes_longer_than_waiting() -> None:
    """Processes start more slowly than the latency model says, which the pool has measured: what was lost waits for slots."""
    with stage(seed=Punctual(0), start_s=lambda number: 5.0, faults=replace(SOON, start_floor_s=20.0)) as on:
        on.run(plan_of(TWO))
        assert on.pool._idle.history.start_s == pytest.approx(5.0)
        at(on, lambda a: a.suffer("kill"), decodes(), 1)
        record = on.run(plan_of(TWO, slots=6), lengths=LONG)
        assert [e["holder"] for e in events(record, "retry")] == ["actor-0"]
    with stage(seed=Punctual(0)) as on:
        at(on, lambda a: a.suffer("kill"), decodes(), 1)
        record = on.run(plan_of(TWO, slots=1), lengths=LONG)
        assert "actor-0" not in [e["holder"] for e in events(record, "retry")], "where it starts fast, one is"


@dataclass
class MoveOne:
    """Moves a response from actor 0 to actor 1 once both decode."""

    name: str = "move one"
    moved: list[int] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return None if self.moved else Trigger(completions=view.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        views = {a.actor: a for a in state.actors}
        if self.moved or not (views.keys() >= {0, 1} and len(views[0].running) > 1 and views[1].running):
            return []
        self.moved.append(views[0].running[0])
        return [Move(self.moved[0], 1)]


MOVING = [8, *LONG[1:6], 8, *LONG[7:]]


@WHOEVER_CARRIES
@pytest.mark.parametrize("who", ["sender before", "sender after", "receiver"])
def test_an_actor_that_is_killed_while_a_response_moves(who: str, carrier: str) -> None:
    """The sender with the order to hand over on its way, or with the KV state laid out; the receiver with it on its way."""
    with stage(carrier, Punctual(0)) as on:
        up(on)
        struck: list[int] = []

        def strike(actor: Actor) -> None:
            if not struck and any("CutOff" in str(order) for _, order in actor.orders) and carrier == "local":
                struck.append(actor.number)
                actor.suffer("kill")

        def hear(actor: Actor, report: Report) -> None:
            if report.taken and not struck:
                struck.append(actor.number)
                victim = actor if who == "sender after" else on.world.actors[1]
                victim.kill()

        if who == "sender before" and carrier == "local":
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
        if who == "sender after" and carrier == "ray":
            assert len(record.recomputes) == 1, "what was handed over was lost with its actor: it is computed again, once"


@dataclass
class MoveTwice(MoveOne):
    """Gives the same response to actor 1 and, while it is on its way there, to actor 2."""

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        moves = super().decide(now_s, state)
        return [*moves, *(Move(response, 2) for response in self.moved if moves)]


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
        cuts = [(n, list(order.responses)) for n, order in asked if isinstance(order, worker.CutOff)]
        assert cuts == [(0, [moved])]
        assert (record.moves, record.actor_of[moved]) == (1, "actor-2")


@WHOEVER_CARRIES
@pytest.mark.parametrize("what", ["no room", "unreachable"])
def test_a_kv_state_that_does_not_arrive_costs_nobody(what: str, carrier: str) -> None:
    """There is no room for it, or it cannot be read: its context is computed again, and nothing else is."""
    with stage(carrier, Punctual(0)) as on:
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


# --- actors that hang or are slow -------------------------------------------------------------------------------------


@WHOEVER_CARRIES
@pytest.mark.parametrize("kind", ["stop", "zombie"])
def test_an_actor_that_hangs_is_given_up_and_what_it_says_later_counts_for_nothing(kind: str, carrier: str) -> None:
    """Stopped, declared lost, and killed, or continued as if it could not be ended: it decodes on and reports all it has."""
    with stage(carrier, Punctual(0)) as on:
        late: list[int] = []
        on.world.hears.append(lambda a, r: late.extend(c.response for c in r.completions if a.killed))
        at(on, lambda a: a.suffer(kind), decodes(), 0)
        record = on.run(plan_of(TWO), lengths=LONG)
        (lost,) = events(record, "lost")
        assert lost["holder"] == "actor-0"
        assert lost["why"].startswith("has not been heard of since ")
        heard_s = max(s["end_s"] for s in record.spans if s["holder"] == "actor-0" and s["call"] != "lost")
        quiet_s = lost["time_s"] - heard_s
        assert SOON.silence_floor_s + GRACE_S <= quiet_s <= SOON.silence_floor_s + GRACE_S + 0.1, (
            "in time, not before, not late"
        )
        assert on.world.actors[0].killed
        if kind == "zombie" and carrier == "local":
            on.world.sleep(5.0)
            on.pool.inbox._speaking()  # type: ignore[attr-defined]
            while any(a.heard for a in on.world.actors):
                next(a for a in on.world.actors if a.heard).take()
            assert late, "it did finish responses after it was given up"


@WHOEVER_CARRIES
def test_an_actor_that_never_starts_is_not_waited_for_for_ever(carrier: str) -> None:
    """Others may hold its GPUs, for example."""
    with stage(carrier, Punctual(0), start_s=lambda number: math.inf if number == 0 else 0.01) as on:
        record = on.run(plan_of(TWO))
        (lost,) = events(record, "lost")
        assert (lost["holder"], lost["why"]) == ("actor-0", "has not been heard of since it was started")
        assert lost["time_s"] == pytest.approx(record.start_s + SOON.start_floor_s + GRACE_S, abs=0.05)
    with (
        refused(ActorError, "12"),
        stage(carrier, Punctual(0), faults=replace(SOON, restarts=0), start_s=lambda number: math.inf) as on,
    ):
        on.run(plan_of([range(12)]))


def test_one_that_comes_late_but_in_time_is_not_lost() -> None:
    """Just before the limit and the second look; a moment after it, it is."""
    limit_s = SOON.start_floor_s + GRACE_S
    for start_s, count in ((limit_s - 0.1, 0), (limit_s + 0.1, 1)):
        with stage(seed=Punctual(0), start_s=lambda number, s=start_s: s if number == 0 else 0.01) as on:
            assert len(events(on.run(plan_of(TWO)), "lost")) == count


@WHOEVER_CARRIES
def test_a_slow_actor_is_relieved(carrier: str) -> None:
    """Its iterations take many times as long as the others': what it has goes on elsewhere, with its tokens."""
    lengths = [400] * 3 + [100] * 6
    with stage(carrier, Punctual(0), faults=replace(SOON, slow_factor=4.0, silence_floor_s=60.0)) as on:
        at(on, lambda a: a.suffer("slow"), decodes(1), 0)
        asked = requests_of(lengths, limit=400)
        record = on.run(plan_of([range(3), range(3, 9)]), requests=asked)
        (slow,) = events(record, "slow")
        assert slow["holder"] == "actor-0"
        assert slow["times_planned"] > 4
        assert not events(record, "lost")
        assert record.moves == slow["responses"] == 3
        assert {record.actor_of[r] for r in range(3)}.isdisjoint({"actor-0"})
        started = {a["holder"]: a["gpu_ids"] for a in record.allocations}
        assert all(gpus != [0] for holder, gpus in started.items() if holder != "actor-0"), "nothing more is started there"
        never = on.run(plan_of([range(3), range(3, 9)]), requests=asked)
        assert not events(never, "lost")
    with stage(carrier, Punctual(0), faults=replace(SOON, silence_floor_s=60.0)) as on:
        at(on, lambda a: a.suffer("slow"), decodes(1), 0)
        assert not events(on.run(plan_of([range(3), range(3, 9)]), requests=asked), "slow"), "infinite: never"


# --- steps that cannot be finished ------------------------------------------------------------------------------------


@WHOEVER_CARRIES
def test_when_all_die_the_error_says_why_and_what_was_finished_is_kept(carrier: str) -> None:
    with stage(carrier, 1, faults=replace(SOON, restarts=0)) as on:
        complete: list[int] = []
        on.world.hears.append(lambda a, r: complete.extend(c.response for c in r.completions))
        on.world.strikes.append(lambda a: a.suffer("kill") if len(complete) > 3 and a.works else None)
        with refused(ActorError):
            on.run(plan_of(TWO), lengths=LONG)
        record = on.records[-1]
        assert 3 < len(record.completions) < 12
        assert len(events(record, "lost")) == 2
        assert {a["holder"] for a in record.allocations} == {"actor-0", "actor-1"}
        on.world.strikes.clear()
        on.run(plan_of(TWO))
        assert len(on.records[-1].completions) == 12, "the pool goes on with new actors"
        on.trace()


@WHOEVER_CARRIES
@pytest.mark.parametrize("retries", [0, 1, 2])
def test_retries_of_a_response_are_bounded(retries: int, carrier: str) -> None:
    """Whoever gets ready is killed; not once more or less often than is said."""
    with stage(carrier, Punctual(0), faults=replace(SOON, retries=retries)) as on:
        on.world.strikes.append(lambda a: a.suffer("kill") if has_weights(a) else None)
        said = rf"lost with its actor {retries + 1} times, and may be retried {retries} times, so the step was given up$"
        with pytest.raises(ActorError, match=said):
            on.run(plan_of([range(12)]))
        assert len(events(on.records[-1], "lost")) == retries + 1
        assert on.pool.faults.retries == retries


@WHOEVER_CARRIES
@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_restarts_on_a_gpu_are_bounded(restarts: int, carrier: str) -> None:
    with stage(carrier, Punctual(0), faults=replace(SOON, restarts=restarts)) as on:
        on.world.strikes.append(lambda a: a.suffer("kill") if has_weights(a) else None)
        with refused(ActorError, "12", str(restarts)):
            on.run(plan_of([range(12)]))
        assert len(on.world.actors) == restarts + 1


@WHOEVER_CARRIES
def test_an_actor_that_fails_says_why_and_what_none_can_do_is_not_tried_again(carrier: str) -> None:
    where = r"\(process 100\d on cpu\)" if carrier == "local" else r"\(process 100\d on cpu, node 10.0.0.0\)"
    for kind, error in FAILURES.items():
        why = f"{type(error).__name__}: {error}"
        with stage(carrier, Punctual(0)) as on:
            at(on, lambda a, kind=kind: a.suffer(kind), decodes(), 0)
            if kind == "fail":
                record = on.run(plan_of(TWO), lengths=LONG)
                assert why in events(record, "lost")[0]["why"], "another one may be able to"
                continue
            with refused(ActorError, str(where), str(why)):
                on.run(plan_of(TWO), lengths=LONG)
            assert not events(on.records[-1], "retry")


@WHOEVER_CARRIES
def test_where_memory_runs_out_fewer_responses_decode_together(carrier: str) -> None:
    """Half as many each time; who has fewer slots is not kept for the next step."""
    with stage(carrier, Punctual(0)) as on:
        on.world.strikes.append(lambda a: a.troubles.add("memory") if slots(a) > 3 else None)
        record = on.run(plan_of([range(12)], slots=12), lengths=LONG)
        lost = events(record, "lost")
        assert [e["holder"] for e in lost] == ["actor-0", "actor-1"]
        assert all("MemoryError: no more pages" in e["why"] for e in lost)
        decoded = [s["slots"] for s in spans(record, "decode")]
        assert decoded[-1] == 3
        assert set(decoded) >= {12, 6, 3}
        assert not on.waiting, "one with fewer slots is not kept for the next step"


def slots(actor: Actor) -> int:
    """Of its engine."""
    return 0 if actor.worker is None or actor.worker.engine is None else actor.worker.engine.slots  # type: ignore[attr-defined]


def test_an_actor_with_other_weights_is_not_believed() -> None:
    with stage(seed=Punctual(0), stale=frozenset({1})) as on:
        record = on.run(plan_of(TWO), engines=ScriptedEngines(version=7))
        (lost,) = events(record, "lost")
        assert (lost["holder"], lost["why"]) == ("actor-1", "has weights of version 6, not 7")
        assert "actor-1" not in record.actor_of.values()


@WHOEVER_CARRIES
def test_an_interrupted_step_has_its_record_and_the_next_one_runs(carrier: str) -> None:
    for turn in (1, 8, 30, 60, 90):
        with stage(carrier, turn, [Trouble("interrupt", 40 + turn)]) as on:
            before = on.run(plan_of(GROUPS), lengths=[1] * 12)
            with pytest.raises(KeyboardInterrupt):
                on.run(plan_of(GROUPS, Restless(turn, 0.02, late=True)), lengths=LONG)
            record = on.records[-1]
            assert len(record.completions) < 12
            assert {a["holder"] for a in record.allocations if a["role"] == "decode"} >= {f"actor-{i}" for i in range(4)}
            assert record.start_s >= before.end_s
            on.run(plan_of(GROUPS), lengths=LONG)
            on.trace()


def test_the_executor_goes_on_after_a_step_that_was_interrupted() -> None:
    with stage(seed=2, troubles=[Trouble("interrupt", 70)]) as on:
        engines = ScriptedEngines()
        with Executor(engines, LATENCY, on.cluster, pool=on.pool, migration="move") as executor:  # type: ignore[arg-type]
            before = executor.run(plan_of(TWO), requests_of(LENGTHS))
            with pytest.raises(KeyboardInterrupt):
                executor.run(plan_of(TWO), requests_of(LONG))
            assert executor.next_step == 1
            after = executor.run(plan_of(TWO), requests_of(LENGTHS))
            assert (after.step, after.start_s >= before.end_s) == (1, True)


# --- actors that wait -------------------------------------------------------------------------------------------------


@WHOEVER_CARRIES
def test_what_was_lost_goes_to_an_actor_that_waits_on_the_gpus_that_it_needs(carrier: str) -> None:
    """One is done early and is kept; the other is killed and may not be started again: the first goes on, without a start."""
    with stage(carrier, Punctual(0), faults=replace(SOON, restarts=0)) as on:
        up(on)
        at(on, lambda a: a.suffer("kill"), decodes(20), 1)
        record = on.run(plan_of([[0], range(1, 12)]), lengths=[1, *LONG[1:]])
        assert [e["holder"] for e in events(record, "lost")] == ["actor-1"]
        later = {a["holder"]: a["gpu_ids"] for a in record.allocations if a["role"] == "decode"}
        assert later["actor-2"] == [0]
        assert not [s for s in spans(record, "start") if s["holder"] == "actor-2"]
        assert len(on.world.actors) == 2
        warm = [a for a in record.allocations if a["role"] == "warm"]
        assert [a["gpu_ids"] for a in warm] == [[0]], "it waited between its two parts"
        on.trace()


def test_one_that_waits_and_is_dead_when_it_is_needed_again_is_replaced() -> None:
    """It is ended, so that the pool counts it no longer."""
    with stage(seed=Punctual(0), faults=replace(SOON, restarts=0)) as on:
        up(on)
        at(on, lambda a: on.world.actors[0].end("was killed by SIGKILL", 0), decodes(10), 1)
        at(on, lambda a: a.suffer("kill"), decodes(20), 1)
        record = on.run(plan_of([[0], range(1, 12)]), lengths=[1, *LONG[1:]])
        assert [e["holder"] for e in events(record, "lost")] == ["actor-1"]
        assert len(on.world.actors) == 3
        assert repr(on.pool).startswith("ProcessPool: 1 idle of 1 processes")
        on.trace()


@WHOEVER_CARRIES
def test_one_that_died_while_it_waited_is_not_missed(carrier: str) -> None:
    with stage(carrier, Punctual(0)) as on:
        up(on)
        on.waiting[0].end("was killed by SIGKILL", 0)
        on.world.sleep(0.1)
        record = on.run(plan_of(TWO))
        assert not events(record, "lost")
        assert len(on.world.actors) == 3


# --- what only Ray does -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unavailable", [False, True])
def test_a_lost_node_is_named_and_nothing_is_started_there(unavailable: bool) -> None:
    """Ray may only say at first that an actor is unavailable."""
    with stage("ray", Punctual(0), faults=Faults(slow_factor=math.inf)) as on:
        ray = on.pool.cluster.ray  # type: ignore[attr-defined]

        def lose(actor: Actor) -> None:
            for one in on.world.actors if unavailable else []:
                one.doubt = one.node == 1  # type: ignore[attr-defined]
            ray.lose(1, 0.03 if unavailable else 0.0)

        at(on, lose, decodes(), 2)
        record = on.run(plan_of(GROUPS), lengths=LONG)
        lost = events(record, "lost")
        assert [e["holder"] for e in lost] == ["actor-2", "actor-3"]
        assert all(e["why"].endswith("was lost with its node 10.0.0.1") for e in lost)
        assert {a["node"] for a in record.allocations if a["holder"] not in ("actor-2", "actor-3")} == {0}


def test_where_all_gpus_are_on_a_lost_node_the_step_says_so() -> None:
    """However often an actor may be started again."""
    plan = plan_of(TWO)
    plan = replace(plan, actors=tuple(replace(a, gpu_ids=(2 + i,)) for i, a in enumerate(plan.actors)))
    with stage("ray", Punctual(0)) as on:
        at(on, lambda a: on.pool.cluster.ray.lose(1), decodes(), 1)  # type: ignore[attr-defined]
        with refused(ActorError, "node 10.0.0.1", "12"):
            on.run(plan, lengths=LONG)
        assert len(on.world.actors) == 2


def test_an_actor_that_was_unavailable_for_a_moment_is_ended_and_its_work_goes_on() -> None:
    with stage("ray", Punctual(0)) as on:
        at(on, lambda a: setattr(a, "doubt", True), decodes(), 0)
        record = on.run(plan_of(TWO), lengths=LONG)
        (lost,) = events(record, "lost")
        assert lost["holder"] == "actor-0"
        assert "unavailable" in lost["why"]
        assert on.world.actors[0].killed


def test_times_of_another_machine_are_put_on_this_clock() -> None:
    """Node 1's clock is 5000 s ahead, which ``Stage.check`` would see; the record says how surely that is known."""
    with stage("ray") as on:
        record = on.run(plan_of(GROUPS))
        ready = {e["holder"]: e for e in events(record, "ready")}
        assert set(ready) == {f"actor-{i}" for i in range(4)}
        assert {one["clock_error_s"] for one in ready.values()} == {0.0}
        assert [ready[f"actor-{i}"]["ray_node"][0] for i in range(4)] == ["a", "a", "b", "b"]
        assert {one["weights_version"] for one in ready.values()} == {0}


def test_weights_for_which_the_store_has_no_room_end_the_step_with_a_sentence() -> None:
    with stage("ray") as on:
        on.pool.cluster.ray.full = True  # type: ignore[attr-defined]
        with refused(ActorError):
            on.run(plan_of(TWO))
        on.pool.cluster.ray.full = False  # type: ignore[attr-defined]
        on.run(plan_of(TWO))


@pytest.mark.parametrize("lifecycle", [Lifecycle.cold(), Lifecycle(keep_s=5.0)])
def test_from_one_actor_to_four_and_back_to_zero(lifecycle: Lifecycle) -> None:
    with stage("ray", lifecycle=lifecycle) as on:
        for groups in ([range(12)], GROUPS, GROUPS):
            on.run(plan_of(groups))
        assert len(on.world.actors) == (9 if lifecycle == Lifecycle.cold() else 4), "who is kept is used again"
        on.world.sleep(6.0)
        assert not on.alive, "scaled to zero"

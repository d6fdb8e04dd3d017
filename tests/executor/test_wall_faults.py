"""Processes that are killed, stopped, starved or slow at the worst moments: the tokens are those of an undisturbed step."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor_samples import Restless, plan_of
from torch_wall_samples import (
    CLUSTER,
    LATENCY,
    actor_plan,
    assert_noticed_in_time,
    factory_of,
    forced,
    requests,
    shared_memory,
    token_bytes,
    troubled,
    until,
)

from rlhfless.engine.torch_factory import TorchEngineFactory
from rlhfless.executor import ActorError, Faults, ProcessPool, StepRecord, local, run_step
from rlhfless.executor.remote import Lost, Report
from rlhfless.trace.checks import validate
from solver import Plan
from solver.rules import ActorView, Decision, Move, StepState, Trigger

FAULTS = Faults(silence_floor_s=60.0, slow_factor=math.inf)  # a busy machine slows some down
Strike = Callable[[Any, int, "Report | Lost"], None]


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    return factory_of(longest=140)


@pytest.fixture(scope="module")
def undisturbed(factory: TorchEngineFactory) -> StepRecord:
    return run_step(plan_of([range(24)]), forced(), factory, LATENCY, CLUSTER)


@pytest.fixture(scope="module")
def shared(factory: TorchEngineFactory) -> Iterator[ProcessPool]:
    """Two processes that have started; who dies is started anew when a plan needs it."""
    before = folders()
    with ProcessPool(["cpu"] * 4) as pool:
        pool.run_step(plan_of([range(12), range(12, 24)]), requests(), factory, LATENCY, CLUSTER)
        yield pool
    assert not multiprocessing.active_children()
    assert folders() <= before


def folders() -> set[str]:
    """Temporary ones that could be ours."""
    return {path.name for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith(("pymp", "torch", "rlhfless"))}


@pytest.fixture
def pool(shared: ProcessPool) -> Iterator[ProcessPool]:
    """Nothing but idle processes is there after a step, whatever became of it."""
    yield shared
    assert {p.pid for p in multiprocessing.active_children()} == {process.pid for process in shared._idle.actors}
    assert not shared_memory(os.getpid())


def step(
    pool: ProcessPool, factory: TorchEngineFactory, plan: Plan, faults: Faults = FAULTS, migration: str = "move"
) -> StepRecord:
    pool.faults = faults
    return pool.run_step(plan, forced(), factory, LATENCY, CLUSTER, migration=migration)


def events(record: StepRecord, name: str) -> list[dict[str, Any]]:
    return [e | json.loads(e["detail"] or "{}") for e in record.events if e["name"] == name]


def assert_sound(record: StepRecord, undisturbed: StepRecord) -> None:
    assert token_bytes(record) == token_bytes(undisturbed)
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    held = {a["holder"]: a for a in record.allocations}
    for span in record.spans:
        a = held[span["holder"]]
        assert a["start_s"] - 1e-9 <= span["start_s"] <= span["end_s"] <= a["end_s"] + 1e-9
    for lost in events(record, "lost"):
        assert held[lost["holder"]]["end_s"] == lost["time_s"]


def striking(monkeypatch: pytest.MonkeyPatch, strike: Strike) -> None:
    """``strike`` hears of every report before the loop does."""
    reports = local.LocalCrew.reports

    def heard(self: Any, timeout_s: float | None) -> list[tuple[int, Report | Lost]]:
        found = reports(self, timeout_s)
        for index, said in found:
            strike(self, index, said)
        return found

    monkeypatch.setattr(local.LocalCrew, "reports", heard)


def once(index: int, how: signal.Signals, when: Callable[[Report], bool]) -> Strike:
    """Signals an actor once, when it says so for the first time."""
    done: list[int] = []

    def strike(crew: Any, sender: int, said: Report | Lost) -> None:
        if sender == index and not done and isinstance(said, Report) and when(said):
            done.append(1)
            os.kill(crew._process[index].pid, how)

    return strike


GROUPS = [range(12), range(12, 24)]


def at_prefill(report: Report) -> bool:
    """It has just got the weights, and prefills what it was given next."""
    return report.ready_s is not None


def at_decode(report: Report) -> bool:
    return len(report.running) > 0 and sum(report.tokens[1]) > 60


@pytest.mark.parametrize("when", [pytest.param(at_prefill, marks=pytest.mark.full), at_decode])
def test_an_actor_that_is_killed_is_replaced(
    when: Callable[[Report], bool],
    pool: ProcessPool,
    factory: TorchEngineFactory,
    undisturbed: StepRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    striking(monkeypatch, once(1, signal.SIGKILL, when))
    record = step(pool, factory, plan_of(GROUPS))
    assert_sound(record, undisturbed)
    (lost,) = events(record, "lost")
    assert lost["holder"] == "actor-1"
    assert "on cpu) was killed by SIGKILL" in lost["why"]
    assert lost["responses"] == sum(len(e["responses"]) for e in events(record, "retry")) == 12


@pytest.mark.full
def test_a_new_actor_is_not_started_where_starting_takes_longer_than_waiting(
    pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes start more slowly than the latency model says, which the pool has measured: what was lost waits for slots."""
    step(pool, factory, plan_of(GROUPS))  # both have started, else one is done before the other decodes
    assert pool._idle.history.start_s > 10 * LATENCY.start_s
    striking(monkeypatch, once(1, signal.SIGKILL, at_decode))
    record = step(pool, factory, plan_of(GROUPS, slots=12))
    assert_sound(record, undisturbed)
    assert [e["holder"] for e in events(record, "retry")] == ["actor-0"]
    assert {a["holder"] for a in record.allocations if a["role"] == "decode"} == {"actor-0", "actor-1"}


class MoveOne:
    """Moves a response from actor 0 to actor 1 once both decode."""

    name = "move one"

    def __init__(self) -> None:
        self.moved = False

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return None if self.moved else Trigger(completions=view.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        views = {a.actor: a for a in state.actors}
        if self.moved or not (views.keys() >= {0, 1} and views[0].running and views[1].running):
            return []
        if state.generated_tokens[list(views[0].running)].min() < 5:
            return []
        self.moved = True
        return [Move(views[0].running[0], 1)]


@pytest.mark.parametrize("who", ["sender", pytest.param("receiver", marks=pytest.mark.full)])
def test_an_actor_that_is_killed_while_a_response_moves(
    who: str, pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender with the order to hand over in its pipe, or the receiver with the KV state on its way."""
    order = "cut" if who == "sender" else "add"
    obey = getattr(local.LocalActor, order)

    def given(self: Any, what: Any, *more: Any) -> None:
        obey(self, what, *more)
        if order == "cut" or any(r.kv is not None for r in what):
            os.kill(self._process.pid, signal.SIGKILL)

    step(pool, factory, plan_of(GROUPS))  # both have started, else there is nobody to move to
    monkeypatch.setattr(local.LocalActor, order, given)
    record = step(pool, factory, plan_of([range(12), range(12, 24)], MoveOne()))
    assert_sound(record, undisturbed)
    assert record.events[0]["name"] == "move"
    lost = events(record, "lost")
    assert lost[0]["holder"] == ("actor-0" if who == "sender" else "actor-1")


def test_an_actor_that_hangs_is_given_up_and_what_it_says_later_counts_for_nothing(
    pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, declared lost, and continued, as if it could not be killed from here: it decodes on and reports all it has."""
    striking(monkeypatch, once(0, signal.SIGSTOP, at_decode))
    zombies: list[Any] = []
    said_late: list[int] = []

    def abandon(self: Any, index: int) -> None:
        process = self._process[index]
        zombies.append(process)
        os.kill(process.pid, signal.SIGCONT)

    reports = local.LocalCrew.reports

    def heard(self: Any, timeout_s: float | None) -> list[tuple[int, Report | Lost]]:
        found = reports(self, timeout_s)
        late = [said for index, said in found if zombies and index == 0 and isinstance(said, Report)]
        said_late.extend(c.response for said in late for c in said.completions)
        return found

    monkeypatch.setattr(local.LocalCrew, "abandon", abandon)
    monkeypatch.setattr(local.LocalCrew, "reports", heard)
    faults = replace(FAULTS, silence_floor_s=1.5, silence_factor=1.0)
    record = step(pool, factory, plan_of([range(6), range(6, 24)]), faults)
    for zombie in zombies:
        zombie.kill()
        pool.forget(zombie)
    assert_sound(record, undisturbed)
    (lost,) = events(record, "lost")
    assert lost["holder"] == "actor-0"
    assert lost["why"].startswith("has not been heard of since")
    assert_noticed_in_time(record, "actor-0", faults)
    assert len(said_late) > 0, "it did finish responses after it was given up"


@pytest.mark.full
def test_an_actor_that_hangs_is_killed(
    pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    striking(monkeypatch, once(1, signal.SIGSTOP, at_decode))
    faults = replace(FAULTS, silence_floor_s=1.0, silence_factor=1.0)
    record = step(pool, factory, plan_of(GROUPS), faults)
    assert_sound(record, undisturbed)
    assert [e["holder"] for e in events(record, "lost")] == ["actor-1"]
    assert_noticed_in_time(record, "actor-1", faults)


def test_when_all_are_killed_the_error_says_why_and_what_was_finished_is_kept(
    pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete: list[int] = []

    def strike(crew: Any, sender: int, said: Report | Lost) -> None:
        if isinstance(said, Report):
            complete.extend(c.response for c in said.completions)
        if len(complete) > 3:
            for process in crew._process.values():
                process.kill()

    striking(monkeypatch, strike)
    with pytest.raises(ActorError, match=r"was killed by SIGKILL; \d+ responses are left, but no actor") as error:
        step(pool, factory, plan_of([range(12), range(12, 24)]), replace(FAULTS, restarts=0))
    record = error.value.record
    assert record is not None
    assert 3 < len(record.completions) < 24
    whole = token_bytes(undisturbed)
    assert all(tokens == whole[i] for i, tokens in token_bytes(record).items())
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    assert len(events(record, "lost")) == 2


@pytest.mark.full
def test_retries_end(pool: ProcessPool, factory: TorchEngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets ready is killed."""

    def strike(crew: Any, sender: int, said: Report | Lost) -> None:
        if isinstance(said, Report) and said.ready_s is not None:
            crew._process[sender].kill()

    striking(monkeypatch, strike)
    said = "was lost with its actor 2 times, and may be retried 1 times, so the step was given up"
    with pytest.raises(ActorError, match=said):
        step(pool, factory, plan_of([range(24)]), replace(FAULTS, retries=1))


@pytest.mark.full
def test_where_memory_runs_out_fewer_responses_decode_together(
    pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord
) -> None:
    before = {process.pid for process in pool._idle.actors}
    record = step(pool, troubled(factory, most=6), plan_of([range(24)], slots=12))
    assert {process.pid for process in pool._idle.actors} <= before, "one with fewer slots is not kept for the next step"
    assert_sound(record, undisturbed)
    lost = events(record, "lost")
    assert ["MemoryError: no more pages" in e["why"] for e in lost] == [True]
    last = [s for s in record.spans if s["phase"] == "decode"][-1]
    assert last["slots"] == 6


@pytest.mark.full
def test_a_slow_actor_is_relieved(pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord) -> None:
    """Its iterations take many times as long as the other's: what it has goes on there, with its tokens."""
    plan = plan_of([range(6), range(6, 24)], slots=24)
    plan = replace(plan, actors=(replace(plan.actors[0], max_batch=7), plan.actors[1]))
    record = step(pool, troubled(factory, slow_slots=7, slow_s=0.5), plan, replace(FAULTS, slow_factor=3.0))
    assert_sound(record, undisturbed)
    (slow,) = events(record, "slow")
    assert slow["holder"] == "actor-0"
    assert slow["times_planned"] > 3
    assert not events(record, "lost")
    assert record.moves == slow["responses"] == 6


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_kills_among_moves(
    seed: int, pool: ProcessPool, factory: TorchEngineFactory, undisturbed: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses and KV states cross while actors die, each at one of the first reports."""
    heard, at = [0], set(np.random.default_rng(seed).choice(np.arange(4, 24), 2, replace=False).tolist())

    def strike(crew: Any, sender: int, said: Report | Lost) -> None:
        heard[0] += 1
        if heard[0] in at and sender in crew._process:
            crew._process[sender].kill()

    striking(monkeypatch, strike)
    plan = plan_of(GROUPS, Restless(seed, period_s=0.01, late=True))
    record = step(pool, factory, plan, replace(FAULTS, retries=9, restarts=9))
    assert_sound(record, undisturbed)
    assert len(events(record, "lost")) > 0


@pytest.mark.full
def test_an_idle_process_that_died_is_not_missed(factory: TorchEngineFactory) -> None:
    with ProcessPool(["cpu"]) as pool:
        first = pool.run_step(plan_of([range(24)]), requests(), factory, LATENCY, CLUSTER)
        (process,) = pool._idle.actors
        os.kill(process.pid or 0, signal.SIGKILL)
        until(lambda: not process.alive, "it ends")
        again = pool.run_step(actor_plan("static", actors=1), requests(), factory, LATENCY, CLUSTER)
    assert token_bytes(again) == token_bytes(first)
    assert not events(again, "lost")

"""Steps that cannot be finished or are interrupted, and actors that wait, in a scripted world.

Pools of processes and of Ray actors run in a scripted world; real ones are in ``test_real_processes.py`` and
``test_real_ray.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from error_messages import refused
from executor_samples import Restless, plan_of
from scripted_engine import ScriptedEngines, requests_of
from scripted_steps import GROUPS, LATENCY, LENGTHS, SOON, events, spans, stage
from scripted_strikes import (
    EVERY_POOL_KIND,
    LONG,
    TWO,
    at,
    decodes,
    has_weights,
    up,
)
from scripted_world import FAILURES, Actor, Punctual, Trouble

from rlhfless.executor import Executor, StepFailed


@EVERY_POOL_KIND
def test_when_all_die_the_error_says_why_and_what_was_finished_is_kept(pool_kind: str) -> None:
    with stage(pool_kind, 1, faults=replace(SOON, restarts=0)) as on:
        complete: list[int] = []
        on.world.hears.append(lambda a, r: complete.extend(c.response for c in r.completions))
        on.world.strikes.append(lambda a: a.suffer("kill") if len(complete) > 3 and a.works else None)
        with refused(StepFailed, "actor-", "SIGKILL", "responses", "restarts: 0"):
            on.run(plan_of(TWO), lengths=LONG)
        record = on.records[-1]
        assert 3 < len(record.completions) < 12
        assert len(events(record, "lost")) == 2
        assert {a["holder"] for a in record.allocations} == {"actor-0", "actor-1"}
        on.world.strikes.clear()
        on.run(plan_of(TWO))
        assert len(on.records[-1].completions) == 12, "the pool goes on with new actors"
        on.trace()


@EVERY_POOL_KIND
@pytest.mark.parametrize("retries", [0, 1, 2])
def test_retries_of_a_response_are_bounded(retries: int, pool_kind: str) -> None:
    """Whoever gets ready is killed; not once more or less often than is said."""
    with stage(pool_kind, Punctual(0), faults=replace(SOON, retries=retries)) as on:
        on.world.strikes.append(lambda a: a.suffer("kill") if has_weights(a) else None)
        with refused(StepFailed, "response ", str(retries + 1), str(retries)):
            on.run(plan_of([range(12)]))
        assert len(events(on.records[-1], "lost")) == retries + 1
        assert on.pool.faults.retries == retries


@EVERY_POOL_KIND
@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_restarts_on_a_gpu_are_bounded(restarts: int, pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0), faults=replace(SOON, restarts=restarts)) as on:
        on.world.strikes.append(lambda a: a.suffer("kill") if has_weights(a) else None)
        with refused(StepFailed, "12 responses", f"restarts: {restarts}"):
            on.run(plan_of([range(12)]))
        assert len(on.world.actors) == restarts + 1


@EVERY_POOL_KIND
def test_an_actor_that_fails_says_why_and_what_none_can_do_is_not_tried_again(pool_kind: str) -> None:
    where = "on cpu)" if pool_kind == "local" else "on cpu, node 10.0.0.0)"
    for kind, error in FAILURES.items():
        why = f"{type(error).__name__}: {error}"
        with stage(pool_kind, Punctual(0)) as on:
            at(on, lambda a, kind=kind: a.suffer(kind), decodes(), 0)
            if kind == "fail":
                record = on.run(plan_of(TWO), lengths=LONG)
                assert why in events(record, "lost")[0]["why"], "another one may be able to"
                continue
            with refused(StepFailed, "actor-0 (process 100", where, why):
                on.run(plan_of(TWO), lengths=LONG)
            assert not events(on.records[-1], "retry")


@EVERY_POOL_KIND
def test_where_memory_runs_out_fewer_responses_decode_together(pool_kind: str) -> None:
    """Half as many each time; who has fewer slots is not kept for the next step."""
    with stage(pool_kind, Punctual(0)) as on:
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


@EVERY_POOL_KIND
def test_an_interrupted_step_has_its_record_and_the_next_one_runs(pool_kind: str) -> None:
    for turn in (1, 8, 30, 60, 90):
        with stage(pool_kind, turn, [Trouble("interrupt", 40 + turn)]) as on:
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
        with Executor(engines, on.cluster, latency=LATENCY, actor_pool=on.pool, migration="move") as executor:  # type: ignore[arg-type]
            before = executor.run(plan_of(TWO), requests_of(LENGTHS))
            with pytest.raises(KeyboardInterrupt):
                executor.run(plan_of(TWO), requests_of(LONG))
            assert executor.next_step == 1
            after = executor.run(plan_of(TWO), requests_of(LENGTHS))
            assert (after.step, after.start_s >= before.end_s) == (1, True)


@EVERY_POOL_KIND
def test_what_was_lost_goes_to_an_actor_that_waits_on_the_gpus_that_it_needs(pool_kind: str) -> None:
    """One is done early and is kept; the other is killed and may not be started again: the first goes on, without a start."""
    with stage(pool_kind, Punctual(0), faults=replace(SOON, restarts=0)) as on:
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
        assert repr(on.pool).startswith("ProcessPool: 1 idle of 1 process on")
        on.trace()


@EVERY_POOL_KIND
def test_one_that_died_while_it_waited_is_not_missed(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        up(on)
        on.waiting[0].end("was killed by SIGKILL", 0)
        on.world.sleep(0.1)
        record = on.run(plan_of(TWO))
        assert not events(record, "lost")
        assert len(on.world.actors) == 3

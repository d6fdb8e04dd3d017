"""Work items on the wall clock, in a scripted world: each runs once, after what it waits for, on GPUs that nobody else has."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from error_messages import check_message, refused
from executor_samples import Restless, plan_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngines, requests_of
from scripted_steps import GROUPS, LATENCY, LENGTHS, POOL_KINDS, SOON, Stage, events, spans, stage
from scripted_work import CALLS, acting, die, die_once, fail, group_work, hang, hang_once
from scripted_world import Punctual, Trouble

from rlhfless.executor import Gpus, Lifecycle, StepFailed, StepRecord, WorkItem
from solver import Cluster, PlanningError

RELEASED = Gpus(released=True)
EVERY_POOL_KIND = pytest.mark.parametrize("pool_kind", POOL_KINDS)


def learner(on: Stage, servers: int | None = None) -> Gpus:
    """GPUs beside the cluster."""
    if on.pool_kind == "local":
        on.pool.devices = ("cpu",) * 8  # type: ignore[attr-defined]
    return Gpus.beside(on.cluster, "learner", servers=servers)


def assert_worked(record: StepRecord, work: list[WorkItem]) -> None:
    """Every item has run once, after what it waits for, with the results of that, while its holder has the GPUs."""
    assert [ran.item for ran in record.work] == work
    for ran in record.work:
        name, given = ran.result
        before = [record.work[i] for i in ran.item.items]
        tokens = [record.completions[r].response_tokens for r in ran.item.responses]
        assert given == (*tokens, *(b.result[0] for b in before)), name
        assert all(record.completions[r].time_s <= ran.start_s + 1e-9 for r in ran.item.responses)
        assert all(b.end_s <= ran.start_s + 1e-9 for b in before)
        assert ran.start_s >= record.start_s + ran.item.after_s - 1e-9
        rows = [a for a in record.allocations if a["holder"] == ran.holder]
        assert any(a["start_s"] - 1e-9 <= ran.start_s and ran.end_s <= a["end_s"] + 1e-9 for a in rows), ran
    by_holder: dict[str, list[tuple[float, float]]] = {}
    for ran in record.work:
        by_holder.setdefault(ran.holder, []).append((ran.start_s, ran.end_s))
    for times in by_holder.values():
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(sorted(times)))
    assert record.end_s >= max(ran.end_s for ran in record.work) - 1e-9


@pytest.mark.parametrize("pool_kind", POOL_KINDS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    wrong=st.lists(st.builds(Trouble, st.sampled_from(["kill", "stop", "zombie", "slow"]), st.integers(1, 160)), max_size=4),
    moves=st.booleans(),
    release=st.sampled_from(["done", "generation", "step"]),
    cold=st.booleans(),
)
@example(seed=1, wrong=[Trouble("kill", 60), Trouble("stop", 90)], moves=False, release="done", cold=True)
def test_every_item_runs_once_whatever_goes_wrong(
    pool_kind: str, seed: int, wrong: list[Trouble], moves: bool, release: str, cold: bool
) -> None:
    plan = plan_of(GROUPS, Restless(seed, 0.02) if moves else None, slots=3, release=release)
    lifecycle = Lifecycle.cold() if cold else Lifecycle.serverful()
    CALLS.clear()
    with stage(pool_kind, seed, [replace(t) for t in wrong], lifecycle=lifecycle) as on:
        work = group_work(GROUPS, learner(on), RELEASED)
        try:
            record = on.run(plan, work=work)
        except StepFailed as failed:
            said = str(failed)
            assert re.search("was lost [0-9]+ times|no actor is left", said), said
            return
        assert_worked(record, work)
        lost = [e["item"] for e in events(record, "work lost") if e["item"] is not None]
        calls = Counter(CALLS)
        assert all(1 <= calls[ran.result[0]] <= 1 + lost.count(i) for i, ran in enumerate(record.work))
        on.world.troubles.clear()
        for actor in on.world.actors:
            actor.troubles, actor.slowness = set(), 1.0
        again = on.run(plan_of(GROUPS, slots=3), work=work, step=1)
        assert_worked(again, work)
        on.trace()


@EVERY_POOL_KIND
@pytest.mark.parametrize("cold", [False, True])
def test_what_is_done_first_is_prepared_while_others_decode(pool_kind: str, cold: bool) -> None:
    with stage(pool_kind, Punctual(0), lifecycle=Lifecycle.cold() if cold else Lifecycle.serverful()) as on:
        work = group_work(GROUPS, learner(on), RELEASED)
        record = on.run(plan_of(GROUPS), work=work)
        assert_worked(record, work)
        last_s = max(c.time_s for c in record.completions.values())
        assert min(ran.end_s for ran in record.work) < last_s
        started = [s for s in spans(record, "start") if s["holder"].startswith("released")]
        assert {a["role"] for a in record.allocations if a["holder"].startswith("released")} == {"prepare"}
        if not cold:
            assert len(started) == len({s["holder"] for s in started})
            assert len(on.world.actors) == len(GROUPS) + 1, "processes that have decoded prepare, too"
        again = on.run(plan_of(GROUPS), work=work)
        if not cold:
            assert len(on.world.actors) == len(GROUPS) + 1, "and the learner's process has waited"
        assert_worked(again, work)
        for gpu in range(on.cluster.gpus + 1) if not cold else ():  # paid for from step to step, also while its process waits
            rows = [(a["start_s"], a["end_s"]) for r in (record, again) for a in r.allocations if gpu in a["gpu_ids"]]
            assert len(rows) > 2
            assert all(start == pytest.approx(end, abs=1e-9) for (_, end), (start, _) in itertools.pairwise(sorted(rows)))
        on.trace()


@EVERY_POOL_KIND
def test_an_item_whose_process_dies_is_run_once_more(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        CALLS.clear()
        work = [
            WorkItem("learn", run=die_once, gpus=learner(on), responses=(0,)),
            acting("learn", "next", gpus=learner(on), items=(0,)),
        ]
        record = on.run(plan_of(GROUPS), work=work)
        assert_worked(record, work)
        assert CALLS == ["die", "learn", "next"]
        (lost,) = events(record, "work lost")
        assert (lost["holder"], lost["item"]) == ("learner", 0)
        assert [s["call"] for s in spans(record, "learn")].count("lost") == 1
        on.trace()


@EVERY_POOL_KIND
def test_an_item_whose_process_dies_twice_ends_the_step(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        CALLS.clear()
        work = [WorkItem("learn", run=die, gpus=learner(on), call="actor")]
        with pytest.raises(StepFailed, match=r"^work item 0 \(actor\) was lost 2 times with its process, the last time because "
                           r"learner .*SIGKILL.*; the step was aborted$") as failed:  # fmt: skip
            on.run(plan_of(GROUPS), work=work)
        record = failed.value.record
        assert {a["holder"] for a in record.allocations} >= {"learner"}
        assert CALLS == ["die", "die"]


@EVERY_POOL_KIND
def test_a_process_that_dies_before_it_is_up_is_started_again_and_then_ends_the_step(pool_kind: str) -> None:
    """The item is not to blame: it was never sent."""
    first = len(GROUPS)
    dies = [Trouble("kill", 1, actor) for actor in range(first, first + 4)]
    with stage(pool_kind, Punctual(0), [replace(one) for one in dies[:3]], faults=replace(SOON, restarts=3)) as on:
        CALLS.clear()
        record = on.run(plan_of(GROUPS), work=[acting("learn", "learn", gpus=learner(on))])
        assert CALLS == ["learn"]
        assert [e["item"] for e in events(record, "work lost")] == [0, 0, 0]
    with stage(pool_kind, Punctual(0), [replace(one) for one in dies], faults=replace(SOON, restarts=3)) as on:
        CALLS.clear()
        with refused(StepFailed, "learner", "its process was lost 4 times", "the step was aborted"):
            on.run(plan_of(GROUPS), work=[acting("learn", "learn", gpus=learner(on))])
        assert CALLS == []


@EVERY_POOL_KIND
def test_an_item_whose_process_hangs_is_run_once_more(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        CALLS.clear()
        work = [WorkItem("learn", run=hang_once, gpus=learner(on), responses=(0,))]
        record = on.run(plan_of(GROUPS), work=work)
        assert_worked(record, work)
        assert CALLS == ["hang", "learn"]
        (lost,) = events(record, "work lost")
        check_message(json.loads(lost["detail"])["why"], "has not reported since", "0.3 s", "silence_floor_s")


@EVERY_POOL_KIND
def test_an_item_whose_process_hangs_twice_ends_the_step(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        CALLS.clear()
        with refused(StepFailed, "work item 0", "2 times", "learner", "has not reported since", "0.3 s", "silence_floor_s"):
            on.run(plan_of(GROUPS), work=[WorkItem("learn", run=hang, gpus=learner(on))])
        assert CALLS == ["hang", "hang"]


@EVERY_POOL_KIND
def test_a_process_that_sends_heartbeats_may_work_for_as_long_as_it_likes(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        work = [acting("learn", "learn", 100 * SOON.silence_floor_s, gpus=learner(on), responses=(0,))]
        record = on.run(plan_of(GROUPS), work=work)
        assert_worked(record, work)
        assert not events(record, "work lost")


@EVERY_POOL_KIND
def test_heartbeats_do_not_extend_the_seconds_of_an_item(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        slow = acting("learn", "learn", 100 * SOON.silence_floor_s, limit_s=0.01, gpus=learner(on), responses=(0,))
        with refused(StepFailed, "work item 0", "2 times", "has not reported since"):
            on.run(plan_of(GROUPS), work=[slow])


@EVERY_POOL_KIND
def test_a_function_that_fails_ends_the_step(pool_kind: str) -> None:
    with stage(pool_kind, Punctual(0)) as on:
        with refused(StepFailed, "work item 0", "learner", "no such token"):
            on.run(plan_of(GROUPS), work=[WorkItem("learn", run=fail, gpus=learner(on), responses=(0,))])
        assert_worked(on.run(plan_of(GROUPS), work=(work := [acting("prepare", "p")])), work)


@EVERY_POOL_KIND
def test_a_learner_of_this_process_learns_while_actors_decode(pool_kind: str) -> None:
    """Its functions see the objects of this program, in the order of the list scheduler, one at a time."""
    sums: list[int] = []

    def add(completions: Any, results: Any) -> int:
        sums.append(sum(c.response_tokens for c in completions))
        return len(sums)

    def fall(completions: Any, results: Any) -> None:
        raise ValueError("no such gradient")

    with stage(pool_kind, Punctual(0)) as on:
        here: dict[str, Any] = {"gpus": Gpus("learner", (8,), node=2), "in_process": True}
        work = [WorkItem("learn", run=add, responses=group, **here) for group in GROUPS]
        work.append(WorkItem("learn", run=add, items=(0, 1, 2, 3), responses=(0,), **here))
        record = on.run(plan_of(GROUPS), work=work)
        assert sorted(ran.result for ran in record.work) == [1, 2, 3, 4, 5]
        assert record.work[-1].result == 5
        assert sum(sums) == sum(LENGTHS) + LENGTHS[0]
        for ran in record.work:
            assert all(record.completions[r].time_s <= ran.start_s for r in ran.item.responses)
        assert {a["holder"] for a in record.allocations if 8 in a["gpu_ids"]} == {"learner"}
        on.trace()
        with refused(StepFailed, "work item 0", "learner", "no such gradient"):
            on.run(plan_of(GROUPS), work=[WorkItem("learn", run=fall, responses=(0,), **here)])
    assert not [thread for thread in threading.enumerate() if thread.name == "rlhfless-work"]


def test_items_of_two_holders_take_turns_on_the_same_gpus() -> None:
    """The learner has the GPUs of all actors: it starts when the last response is prepared on one of them."""
    with stage("local", Punctual(0)) as on:
        every = Gpus("learner", (0, 1, 2, 3))
        work = [acting("prepare", f"prepare {r}", responses=(r,)) for r in range(len(LENGTHS))]
        work.append(acting("learn", "learn", 0.1, gpus=every, items=tuple(range(len(LENGTHS)))))
        record = on.run(plan_of(GROUPS, release="step"), work=work)
        assert_worked(record, work)
        on.trace()


def test_a_server_may_be_held_for_the_whole_step() -> None:
    with stage("local", Punctual(0)) as on:
        held = replace(learner(on), held_all_step=True)
        work = [acting("learn", "learn", gpus=held, responses=(0,))]
        record = on.run(plan_of(GROUPS), work=work)
        (row,) = [a for a in record.allocations if a["holder"] == "learner"]
        assert row["start_s"] == pytest.approx(record.start_s)
        assert row["end_s"] >= max(c.time_s for c in record.completions.values())


@EVERY_POOL_KIND
def test_a_learner_grows_by_gpus_that_actors_gave_back(pool_kind: str) -> None:
    """Its own process is allocated at its time; processes that have decoded then help it, in the learner's role."""
    with stage(pool_kind, Punctual(0)) as on:
        grown = replace(learner(on), released=True, held_all_step=True, from_s=0.05)
        work = [acting("learn", f"learn {r}", 0.3, gpus=grown, responses=(r,)) for r in range(len(LENGTHS))]
        record = on.run(plan_of(GROUPS), work=work)
        assert_worked(record, work)
        released = {a["holder"]: a["role"] for a in record.allocations if a["holder"].startswith("learner-released")}
        assert released
        assert set(released.values()) == {"learner"}
        assert {e["to"] for e in events(record, "released")} == set(released)
        own = [a for a in record.allocations if a["holder"] == "learner"]
        assert min(a["start_s"] for a in own) >= record.start_s + 0.05
        for e in events(record, "released"):
            back_s = max(a["end_s"] for a in record.allocations if a["holder"] == e["holder"])
            assert all(a["start_s"] >= back_s - 1e-9 for a in record.allocations if a["holder"] == e["to"])
        on.trace()


def test_a_server_with_gpus_of_two_nodes_has_all_of_their_devices() -> None:
    """It is billed for both, and what waits on any of them ends before its process starts."""
    cluster = Cluster(4, 1, 1)
    plan = plan_of([[0], [1], [2], [3]])
    plan = replace(plan, actors=tuple(replace(actor, node=i) for i, actor in enumerate(plan.actors)))
    with stage("local", Punctual(0), lifecycle=Lifecycle.serverful()) as on:
        on.pool.devices = tuple(f"cuda:{i}" for i in range(4))  # type: ignore[attr-defined]
        work = [acting("learn", "learn", gpus=Gpus("judge", (1, 2)), responses=(1, 2))]
        record = on.pool.run_step(plan, requests_of([3, 9, 6, 30]), ScriptedEngines(), LATENCY, cluster, work=work)
        assert_worked(record, work)
        judge = on.world.actors[-1]
        assert judge.device == "cuda:1,cuda:2"  # type: ignore[attr-defined]
        assert {tuple(a["gpu_ids"]) for a in record.allocations if a["holder"] == "judge"} == {(1,), (2,)}
        assert sorted(place.gpu_ids for place in on.pool.idle) == [(0,), (1, 2), (3,)]
        on.pool.finalise_allocations(record)
        on.records.append(record)
        on.trace()


@pytest.mark.full
def test_a_server_with_gpus_of_two_nodes_is_no_ray_actor() -> None:
    with stage("ray", Punctual(0)) as on, refused(PlanningError, "'judge'", "nodes 0, 1", "one node"):
        on.run(work=[acting("learn", "learn", gpus=Gpus("judge", (1, 2)))])


@EVERY_POOL_KIND
def test_the_start_of_a_servers_process_is_a_cold_start(pool_kind: str) -> None:
    """As long as an actor's, so the pool counts it, unlike the loading of models on the virtual clock."""
    slow_learner = len(GROUPS)
    with stage(pool_kind, Punctual(0), start_s=lambda number: 0.4 if number == slow_learner else 0.05) as on:
        record = on.run(plan_of(GROUPS), work=[acting("learn", "learn", gpus=learner(on))])
        (started,) = [s for s in spans(record, "start") if s["holder"] == "learner"]
        assert started["call"] == "start"
        assert started["end_s"] - started["start_s"] >= 0.4
        assert on.pool.history.start_s == pytest.approx(started["end_s"] - started["start_s"])


@EVERY_POOL_KIND
def test_an_actor_that_waits_for_an_item_ends_when_another_one_takes_it(pool_kind: str) -> None:
    """Two actors end long before the only item may start, and a third one decodes for long after it."""
    with stage(pool_kind, Punctual(0), lifecycle=Lifecycle(idle_timeout_s=0.05)) as on:
        item = acting("prepare", "p", responses=(0,), after_s=0.4)
        record = on.run(plan_of([[0], [1], [2]]), lengths=[5, 5, 600], work=[item])
        last_s, may_start_s = max(c.time_s for c in record.completions.values()), record.start_s + item.after_s
        assert last_s > may_start_s + 0.4
        ended_s = [max(a["end_s"] for a in record.allocations if gpu in a["gpu_ids"]) for gpu in (0, 1)]
        assert all(may_start_s - 1e-9 <= end_s < last_s - 0.2 for end_s in ended_s), "they wait for the item, and not longer"
        on.trace()


def test_a_failed_step_ends_its_actors_while_the_pools_thread_ends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them wait without work, and two threads must not end one process at once."""
    with stage("local", Punctual(0)) as on:
        locked: list[bool] = []
        end_all = on.pool.end_all
        monkeypatch.setattr(on.pool, "end_all", lambda actors: (locked.append(on.pool.lock._is_owned()), end_all(actors)))  # type: ignore[attr-defined]
        with refused(StepFailed, "no such token"):
            on.run(plan_of([[0], [1]]), lengths=[5, 300], work=[WorkItem("learn", run=fail, gpus=learner(on), responses=(1,))])
        assert locked
        assert all(locked)
        assert "0 processes" in repr(on.pool)


def test_gpus_of_actors_that_keep_their_memory_take_no_work() -> None:
    """Engines with a server beside their process, such as vLLM's, hold the memory until the process ends."""
    engines = ScriptedEngines(starts_more=0.1)
    with stage("local", Punctual(0)) as on:
        with refused(PlanningError, "'released-0'", "GPU 0", "ScriptedEngines"):
            on.run(plan_of(GROUPS), engines=engines, work=[acting("prepare", "p", responses=(0,))])
        work = [acting("learn", "learn", gpus=learner(on), responses=(0,))]
        assert_worked(on.run(plan_of(GROUPS), engines=engines, work=work), work)


WRONG: dict[str, tuple[WorkItem, tuple[str, ...]]] = {
    "no function": (WorkItem("learn", 1.0), ("work item 0", "function")),
    "no such device": (acting("learn", "x", gpus=Gpus.beside(Cluster(1, 4, 1), "learner")), ("'learner'", "GPU 4")),
    "a closure": (WorkItem("learn", run=lambda c, r: None), ("work item 0", "module")),
    "no GPU": (acting("learn", "x", gpus=Gpus.beside(Cluster(1, 4, 1), "learner", 0)), ("work item 0", "GPU")),
}


@pytest.mark.parametrize("case", WRONG)
def test_work_that_cannot_run_in_a_process_is_refused(case: str) -> None:
    item, named = WRONG[case]
    with stage("local", Punctual(0)) as on, refused(PlanningError, *named):
        on.run(work=[item])

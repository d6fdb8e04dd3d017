"""How long actors live: forecasts, and pools whose clock and actors are the test's own."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from executor_samples import plan_of
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.errors import InputError
from rlhfless.executor import Lifecycle, PlanForecast, ShortestStep, StepRecord
from rlhfless.executor.distributed.failure_limits import Faults
from rlhfless.executor.distributed.messages import Prewarm, StartActor
from rlhfless.executor.distributed.pool.lifecycle import Forecast, StepHistory
from rlhfless.executor.distributed.pool.pool import ActorPool
from rlhfless.executor.distributed.pool.warm_allocations import WarmRow, write_warm
from rlhfless.executor.distributed.transport import ActorPlacement
from rlhfless.executor.distributed.wall_clock import Clock
from rlhfless.executor.step.record import HeldGpus
from rlhfless.trace import Trace, held_gpu_seconds
from rlhfless.trace.metrics.intervals import interval_union_s
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases
from solver.model.plan import ActorPlan, Plan

LATENCY = LatencyModel("tiny", 1, 2e-3, 1e-4, max_batch=4, kv_capacity_tokens=1 << 10)
PLAN = replace(plan_of([[0], [1]]), makespan_s=3.0)
seconds = st.floats(0.1, 1e3)


def history_of(starts: list[float], generated: list[float], phases: NonGenerationPhases = NonGenerationPhases()) -> StepHistory:  # noqa: B008 (frozen)
    return StepHistory(starts, generated, PLAN, phases)


@given(st.lists(seconds, min_size=2, max_size=8), seconds)
def test_the_papers_rule_expects_no_step_before_the_shortest_one_and_the_buffer(gaps: list[float], buffer_s: float) -> None:
    starts = [sum(gaps[:i]) for i in range(len(gaps) + 1)]
    next_s = ShortestStep(buffer_s).next_start_s(history_of(starts, starts))
    assert next_s is not None
    ahead_s = next_s - starts[-1] - buffer_s
    assert all(ahead_s <= gap + 1e-9 for gap in gaps)
    assert any(ahead_s >= gap - 1e-9 for gap in gaps)


def test_forecasts_say_nothing_without_a_reason() -> None:
    first = history_of([5.0], [])
    assert ShortestStep().next_start_s(first) is None
    assert PlanForecast().next_start_s(first) is None
    assert Lifecycle(prewarm=ShortestStep()).prewarm_s(first) is None
    assert Lifecycle().prewarm_s(history_of([0.0, 5.0], [1.0])) is None, "switched off"


def test_the_plans_forecast_is_its_makespan_and_its_phases() -> None:
    said = history_of([5.0], [], NonGenerationPhases(prepare_s=1.0, learn_s=4.0))
    assert PlanForecast(0.5).next_start_s(said) == 5.0 + 3.0 + 5.0 + 0.5
    seen = history_of([0.0, 10.0, 30.0], [4.0, 23.0])  # rests of 6 and 7 s
    assert PlanForecast().next_start_s(seen) == 30.0 + 3.0 + 6.0


def test_actors_start_as_much_ahead_as_the_longest_cold_start_took() -> None:
    history = history_of([0.0, 10.0], [4.0])
    history.start_s = 2.5
    assert Lifecycle(prewarm=ShortestStep(1.0)).prewarm_s(history) == 10.0 + 10.0 + 1.0 - 2.5


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: Lifecycle(-1.0), "idle_timeout_s is -1.0"),
        (lambda: ShortestStep(math.inf), "buffer_s is inf"),
        (lambda: PlanForecast(math.nan), "buffer_s is nan"),
    ],
)
def test_times_that_are_none_are_refused(make: object, given: str) -> None:
    with refused(InputError, given):
        make()  # type: ignore[operator]


# --- what is held, on a clock of the test's ---------------------------------------------------------------------------


def unused(*given: Any) -> Any:
    raise AssertionError("the tests call nothing else")


class Launcher(ActorPool[int]):
    """Actors are numbers; starting takes ``start_s`` of the actor's time, ending takes ``end_s`` of everybody's."""

    meta = {}  # noqa: RUF012 (no property)
    new_name = put = send = listen = kill = pid = close = devices_of = _refusal = _work_refusal = unused  # type: ignore[assignment]

    def __init__(self, lifecycle: Lifecycle, start_s: float = 0.0, end_s: float = 0.0, *, watched: bool = False) -> None:
        super().__init__(lifecycle, Faults(), Clock(lambda: self.clock_s, unused), watched=watched)
        self.clock_s, self.start_takes_s, self.end_takes_s, self._origin_s = 0.0, start_s, end_s, 0.0
        self.started: dict[int, tuple[ActorPlacement, float]] = {}
        self.dead: set[int] = set()
        self.ended: list[int] = []
        self.nobody = threading.Event()
        self.wanted: set[tuple[int, ...]] = set()  # by work items now
        self.used_later: set[tuple[int, ...]] = set()  # by the step under way

    def spawn(self, place: ActorPlacement, prewarm: Prewarm | None = None) -> int:
        self.started[len(self.started)] = place, self.clock_s
        return len(self.started) - 1

    def serves(self, here: ActorPlacement, wanted: ActorPlacement) -> bool:
        return here.alike(wanted)

    def up_s(self, actor: int) -> float | None:
        up_s = self.started[actor][1] + self.start_takes_s
        return up_s if up_s <= self.clock_s else None

    def alive(self, actor: int) -> bool:
        return actor not in self.dead

    def end_all(self, actors: Sequence[int]) -> None:
        for actor in actors:
            assert actor not in self.ended
            self.ended.append(actor)
            self.clock_s += self.end_takes_s
        if not self.living:
            self.nobody.set()

    def begin(self, record: StepRecord, plan: Plan, phases: NonGenerationPhases = NonGenerationPhases()) -> list[int]:  # noqa: B008 (frozen)
        """Begin a step and return its actors, all started at once."""
        self._step = SimpleNamespace(cold_start_s=0.0, wants=self.wanted.__contains__, will_use=self.used_later.__contains__)  # type: ignore[assignment]
        self.begin_step(record, plan, phases)
        return [self.get(ActorPlacement.of(actor)) for actor in plan.actors]

    def finish(self, i: int, actor: int, plan: Plan, since_s: float) -> bool:
        """Ask about an actor of a step that has no work left."""
        return self.keep(StartActor(i, plan.actors[i], LATENCY, Admission(1, 1)), actor, since_s)

    @property
    def living(self) -> set[int]:
        return set(self.started) - set(self.ended)


class Run:
    """Steps as a pool makes them: every actor works for as long as it is told to, cold starts first."""

    def __init__(self, lifecycle: Lifecycle, **launcher: float) -> None:
        self.launcher = Launcher(lifecycle, **launcher)  # type: ignore[arg-type]
        self.records: list[StepRecord] = []

    def wait(self, until_s: float) -> None:
        """Time passes, and what is due is done when it is due."""
        while (due_s := self.launcher.act()) <= until_s:
            self.launcher.clock_s = max(self.launcher.clock_s, due_s)
        self.launcher.clock_s = max(self.launcher.clock_s, until_s)
        self.launcher.act()

    def step(self, work_s: float, plan: Plan = PLAN, phases: NonGenerationPhases = NonGenerationPhases()) -> list[int]:  # noqa: B008 (frozen)
        launcher, record = self.launcher, StepRecord("run", len(self.records), plan, self.launcher.clock_s)
        self.records.append(record)
        before = set(launcher.started)
        actors = launcher.begin(record, plan, phases)
        launcher.clock_s = record.start_s + work_s
        cold_s = launcher.start_takes_s if set(actors) - before else 0.0
        launcher.clock_s += cold_s
        launcher._step.cold_start_s = cold_s  # type: ignore[union-attr, misc]
        for i, (actor, one) in enumerate(zip(actors, plan.actors, strict=True)):
            up_s = max(record.start_s, launcher.started[actor][1] + launcher.start_takes_s)
            record.span(f"actor-{i}", "start", record.start_s, up_s)
            record.span(f"actor-{i}", "decode", up_s, launcher.clock_s)
            gpus = HeldGpus("gpu", one.node, one.gpu_ids, "spot", 1.0)
            record.allocate(f"actor-{i}", "decode", gpus, record.start_s, launcher.clock_s)
            if not launcher.finish(i, actor, plan, launcher.clock_s):
                launcher.ended.append(actor)
        record.close(launcher.clock_s)
        launcher.end_generation(record)
        return actors

    def finalise_allocations(self) -> None:
        self.launcher.finalise_allocations(self.records[-1])

    def trace(self) -> Trace:
        """Refuses a GPU with two holders."""
        tables = {
            name: pd.DataFrame([row for r in self.records for row in getattr(r, name)])
            for name in ("allocations", "spans", "events")
        }
        return Trace(
            rollouts=pd.DataFrame([{"step": 0, "prompt_id": 0, "sample": 0, "response_tokens": 1}]),
            **{name: table for name, table in tables.items() if len(table)},
        )

    def held(self) -> pd.Series:
        return held_gpu_seconds(self.trace())[["start", "sync", "work", "hold", "total"]].sum()


def three_steps(lifecycle: Lifecycle, **launcher: float) -> Run:
    """Generation of 4 s, then 6 s of something else, three times; the last rest settled."""
    run = Run(lifecycle, start_s=2.0, **launcher)
    for _ in range(3):
        run.step(4.0)
        run.wait(run.launcher.clock_s + 6.0)
        run.finalise_allocations()
    return run


def test_cold_actors_start_every_time_and_none_waits() -> None:
    run = three_steps(Lifecycle.cold())
    assert len(run.launcher.started) == 6
    assert not run.launcher.living
    assert dict(run.held()) == {"start": 12.0, "sync": 0.0, "work": 24.0, "hold": 0.0, "total": 36.0}


def test_the_serverful_pool_starts_once_and_is_charged_for_every_second() -> None:
    run = three_steps(Lifecycle.serverful())
    assert len(run.launcher.started) == 2
    assert dict(run.held()) == {"start": 4.0, "sync": 0.0, "work": 24.0, "hold": 36.0, "total": 2 * run.launcher.clock_s}
    run.launcher.release()
    assert not run.launcher.living


def test_a_pool_that_is_kept_for_a_while_is_reused_within_it_and_scales_to_zero_after_it() -> None:
    run = Run(Lifecycle(idle_timeout_s=5.0), start_s=2.0)
    first = run.step(4.0)
    run.wait(run.launcher.clock_s + 4.0)
    assert run.step(4.0) == first
    ended_s = run.launcher.clock_s
    run.wait(ended_s + 30.0)
    assert not run.launcher.living
    run.finalise_allocations()
    assert run.held()["hold"] == 2 * (4.0 + 5.0)
    assert run.records[1].end_s == ended_s + 5.0
    assert [e["name"] for e in run.records[1].events] == ["kill", "kill"]


@pytest.mark.parametrize("prewarm", [ShortestStep(), PlanForecast()])
def test_prewarmed_actors_are_up_when_the_step_begins_and_their_start_is_charged(prewarm: Forecast) -> None:
    run = Run(Lifecycle(prewarm=prewarm), start_s=2.0)
    plan = replace(PLAN, makespan_s=4.0)
    for _ in range(4):  # cold, cold, then as forecast
        run.step(4.0, plan)
        run.wait(run.records[-1].start_s + 12.0)
        run.finalise_allocations()
    third = run.records[2]
    before = [a for a in run.records[1].allocations if a["role"] == "warm"]
    assert {(a["holder"], a["end_s"]) for a in before} == {("warm-0", third.start_s), ("warm-1", third.start_s)}
    assert [s["end_s"] - s["start_s"] for s in run.records[1].spans if s["call"] == "prewarm"] == [2.0, 2.0]
    assert not [s for s in third.spans if s["phase"] == "start" and s["holder"].startswith("actor")], (
        "nothing left to start in the step"
    )
    assert "prewarm" in [e["name"] for e in run.records[1].events]
    held = run.held()
    assert held["start"] + held["sync"] + held["work"] + held["hold"] == pytest.approx(held["total"])


def test_an_actor_that_would_be_started_again_at_once_is_kept_instead() -> None:
    run = Run(Lifecycle(prewarm=ShortestStep()), start_s=8.0)
    run.step(4.0)
    run.wait(12.0)
    second = run.step(4.0)  # the next one is expected 12 s after this one began, when it ends; starting takes 8 of them
    assert run.step(4.0) == second


def test_an_actor_that_waits_when_others_would_be_prewarmed_waits_for_the_expected_step() -> None:
    run = Run(Lifecycle(idle_timeout_s=5.0, prewarm=ShortestStep()), start_s=2.0)
    first = run.step(4.0)
    run.wait(10.0)
    assert run.step(4.0) == first  # until 14, so it would end at 19; the next step is expected at 20
    run.wait(20.0)
    assert run.step(4.0) == first
    assert not run.launcher.ended


def test_a_prewarmed_actor_whose_step_never_comes_ends() -> None:
    run = Run(Lifecycle(idle_timeout_s=0.0, prewarm=ShortestStep(), patience_s=3.0), start_s=2.0)
    run.step(4.0)
    run.wait(10.0)
    run.step(4.0)
    run.wait(100.0)
    assert len(run.launcher.started) == 6
    assert not run.launcher.living
    run.finalise_allocations()
    warm = [a for a in run.records[-1].allocations if a["role"] == "warm"]
    assert [a["end_s"] - a["start_s"] for a in warm] == [2.0 + 3.0] * 2


def test_a_plan_takes_actors_of_its_nodes_and_ends_those_in_its_way() -> None:
    run = Run(Lifecycle.serverful(), end_s=0.25)
    run.step(1.0, plan_of([[0], [1], [2]]))  # GPUs 0 and 1 of node 0, GPU 2 of node 1
    wide = ActorPlan("gpu", (2, 3), 1, (0,), (), 4)
    other = replace(plan_of([[0]]), actors=(replace(plan_of([[0], [1]]).actors[1], gpu_ids=(1,)), wide))
    assert run.step(1.0, other) == [1, 3]
    assert run.launcher.ended == [2], "one GPU where two are wanted"
    run.finalise_allocations()
    run.trace()


def test_an_actor_ends_on_gpus_that_another_one_of_its_node_takes_over() -> None:
    run = Run(Lifecycle.serverful())
    narrow, wide = plan_of([[0]]).actors[0], ActorPlan("gpu", (2, 3), 0, (1,), (), 4)
    run.step(1.0, replace(PLAN, actors=(narrow, wide)))
    assert run.step(1.0, replace(PLAN, actors=(replace(narrow, gpu_ids=(2,)),))) == [0]
    assert run.launcher.ended == [1]


def test_a_waiting_actor_that_was_lost_is_not_used_again() -> None:
    run = Run(Lifecycle.serverful())
    first = run.step(1.0)
    run.launcher.dead.add(first[0])
    assert run.step(1.0) == [2, first[1]]
    run.trace()


def test_what_ends_as_a_step_begins_is_charged_until_then() -> None:
    """The step's time is taken, then the thread ends what waited too long, then the step takes its actors."""
    run = Run(Lifecycle(idle_timeout_s=5.0), end_s=0.25)
    run.step(1.0)
    run.launcher.clock_s = 6.0
    record = StepRecord("run", 1, PLAN, 6.0)
    run.launcher.act()
    run.launcher.begin_step(record, PLAN, NonGenerationPhases())
    assert [(a["role"], a["start_s"], a["end_s"]) for a in record.allocations] == [("warm", 1.0, 6.0)] * 2


def test_what_waited_in_a_step_that_was_given_up_ends_and_is_in_its_record() -> None:
    run = Run(Lifecycle.serverful(), end_s=0.25)
    run.step(1.0)
    given_up = StepRecord("run", 1, plan_of([[0]]), 1.0)
    run.launcher.begin_step(given_up, plan_of([[0]]), NonGenerationPhases())  # the other one is in nobody's way
    run.wait(4.0)
    run.launcher.give_up(given_up)
    assert run.launcher.living == set(), "none was taken yet"
    assert run.launcher.history.starts_s == [0.0]
    assert len(run.launcher.idle) == 0
    warm = {a["gpu_ids"][0]: (a["start_s"], a["end_s"]) for a in given_up.allocations}
    assert {start_s for start_s, _ in warm.values()} == {1.0}
    assert sorted(end_s for _, end_s in warm.values()) == [4.25, 4.5], "until its GPUs are free"


def test_a_second_that_a_learner_has_the_gpus_is_the_learners() -> None:
    """Actors on GPUs 0 and 1 wait for ten seconds, in five of which a learner works on GPU 0."""
    run = Run(Lifecycle.serverful())
    run.step(1.0, plan_of([[0], [1]]))
    record = run.records[-1]
    record.allocate("learner", "learner", HeldGpus("gpu", 0, (0,), "spot", 1.0), 3.0, 8.0)
    run.wait(11.0)
    run.finalise_allocations()
    warm = [(a["gpu_ids"], a["start_s"], a["end_s"]) for a in record.allocations if a["role"] == "warm"]
    assert sorted(warm) == [([0], 1.0, 3.0), ([0], 8.0, 11.0), ([1], 1.0, 11.0)]
    run.trace()


def a_step_of(run: Run, plan: Plan = PLAN) -> tuple[StepRecord, list[int]]:
    """A step whose actors have begun."""
    record = StepRecord("run", len(run.records), plan, run.launcher.clock_s)
    run.records.append(record)
    return record, run.launcher.begin(record, plan)


def warm_rows(record: StepRecord) -> list[tuple[list[int], float, float]]:
    return [(a["gpu_ids"], a["start_s"], a["end_s"]) for a in record.allocations if a["role"] == "warm"]


def test_an_actor_is_asked_about_when_its_work_ends_and_not_again_at_the_end_of_the_step() -> None:
    """The first one ends its work at 1 s, the second one at 9 s."""
    run = Run(Lifecycle(), start_s=2.0)
    record, (first, second) = a_step_of(run)
    run.launcher._step.cold_start_s = 2.0  # type: ignore[union-attr, misc]
    run.wait(1.0)
    assert run.launcher.finish(0, first, PLAN, 1.0)
    run.wait(9.0)
    assert run.launcher.ended == [first], "2 s / 0.3 after its work, while the other one works"
    assert run.launcher.finish(1, second, PLAN, 9.0)
    record.close(9.0)
    run.launcher.end_generation(record)
    keeps = [(e["time_s"], e["holder"]) for e in record.events if e["name"] == "keep"]
    assert keeps == [(1.0, "actor-0"), (9.0, "actor-1")]
    assert warm_rows(record) == [([0], 1.0, pytest.approx(1.0 + 2.0 / 0.3))]


def test_an_actor_that_the_step_will_use_waits_beyond_its_time_until_the_step_is_over() -> None:
    run = Run(Lifecycle(idle_timeout_s=1.0))
    record, (first, second) = a_step_of(run)
    run.launcher.used_later.add((0,))
    assert run.launcher.finish(0, first, PLAN, 0.0)
    run.wait(5.0)
    assert run.launcher.ended == []
    assert run.launcher.get(ActorPlacement.of(PLAN.actors[0])) == first, "it is where it was"
    assert run.launcher.finish(0, first, PLAN, 6.0)
    run.wait(8.0)
    assert run.launcher.finish(1, second, PLAN, 8.0)
    record.close(8.0)
    run.launcher.end_generation(record)
    run.wait(8.5)
    assert run.launcher.ended == [first], "its own time is over"
    run.wait(20.0)
    run.finalise_allocations()
    assert warm_rows(record) == [([0], 0.0, 5.0), ([0], 6.0, 8.0), ([1], 8.0, 9.0)]


def test_an_actor_that_the_step_does_not_use_any_more_ends_at_its_time() -> None:
    run = Run(Lifecycle(idle_timeout_s=1.0))
    record, (first, _) = a_step_of(run)
    run.launcher.used_later.add((0,))
    assert run.launcher.finish(0, first, PLAN, 0.0)
    run.launcher.release_unneeded()
    run.wait(5.0)
    assert run.launcher.ended == []
    run.launcher.used_later.clear()
    run.launcher.release_unneeded()
    run.wait(9.0)
    assert run.launcher.ended == [first]
    record.close(9.0)
    run.launcher.end_generation(record)
    assert warm_rows(record) == [([0], 0.0, 5.0)]


def test_an_actor_kept_for_an_item_is_asked_about_once_the_item_needs_it_no_more() -> None:
    run = Run(Lifecycle(idle_timeout_s=1.0))
    _, (first, _) = a_step_of(run)
    run.launcher.wanted.add((0,))
    run.launcher.used_later.add((0,))
    assert run.launcher.finish(0, first, PLAN, 0.0)
    run.wait(5.0)
    run.launcher.used_later.clear()
    run.launcher.release_unneeded()
    run.wait(5.5)
    assert run.launcher.ended == []
    run.wait(6.5)
    assert run.launcher.ended == [first], "its time counts from the decision"


def test_an_actor_that_does_not_wait_ends_with_its_work_also_where_the_step_uses_its_gpus_later() -> None:
    run = Run(Lifecycle.cold())
    _, (first, _) = a_step_of(run)
    run.launcher.used_later.add((0,))
    assert not run.launcher.finish(0, first, PLAN, 0.0)
    assert len(run.launcher.idle) == 0


@pytest.mark.parametrize("release", ["done", "generation"])
def test_an_actor_whose_gpus_the_step_still_has_is_asked_about_at_the_end_of_generation(release: str) -> None:
    """A work item could use its process, or the plan pays for its GPUs; neither does so after generation."""
    plan = replace(PLAN, actors=tuple(replace(actor, release=release) for actor in PLAN.actors))
    run = Run(Lifecycle.cold())
    record, actors = a_step_of(run, plan)
    run.launcher.wanted |= {(0,), (1,)}
    for i, actor in enumerate(actors):
        assert run.launcher.finish(i, actor, plan, 1.0)
    run.wait(4.0)
    assert run.launcher.ended == []
    for i, actor in enumerate(plan.actors):
        record.allocate(f"actor-{i}", "decode", actor, 0.0, 1.0 if release == "done" else 4.0)
    record.close(4.0)
    run.launcher.end_generation(record)
    run.wait(4.0)
    assert run.launcher.ended == actors
    run.finalise_allocations()
    assert warm_rows(record) == ([([0], 1.0, 4.0), ([1], 1.0, 4.0)] if release == "done" else [])


def test_an_actor_that_serves_another_place_of_its_node_is_charged_there_from_the_step_on() -> None:
    run = Run(Lifecycle.serverful())
    narrow = plan_of([[0]]).actors[0]
    first = run.step(1.0, replace(PLAN, actors=(narrow,)))
    run.wait(3.0)
    late = replace(narrow, gpu_ids=(1,), start_s=2.0)
    record = StepRecord("run", 1, replace(PLAN, actors=(late,)), 3.0)
    run.launcher.begin_step(record, record.plan, NonGenerationPhases())
    assert list(run.launcher.idle.items()) == [(ActorPlacement.of(late), first[0])]
    run.wait(5.0)
    assert run.launcher.get(ActorPlacement.of(late)) == first[0]
    run.launcher.end_generation(record)
    assert warm_rows(record) == [([0], 1.0, 3.0), ([1], 3.0, 5.0)]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 20), st.floats(0, 20)), max_size=6))
def test_what_waits_and_what_others_have_is_every_second_once(others: list[tuple[int, float, float]]) -> None:
    """Whatever others have of two GPUs: GPU-seconds of the row that is left are those that none of them has."""
    record = StepRecord("run", 0, PLAN, 0.0)
    for i, (gpu, start_s, end_s) in enumerate(others):
        gpus = HeldGpus("gpu", 0, (gpu,), "spot", 1.0)
        record.allocate(f"other-{i}", "learner", gpus, min(start_s, end_s), max(start_s, end_s))
    write_warm(record, WarmRow(ActorPlacement("gpu", 0, (1, 2)), 5.0, 15.0, (5.0, 7.0)))
    taken_s = {g: interval_union_s(*np.clip(np.array([[min(a, b), max(a, b)] for n, a, b in others if n == g] or [[0.0, 0.0]]),
                                            5.0, 15.0).T) for g in (1, 2)}  # fmt: skip
    held_s = sum(len(a["gpu_ids"]) * (a["end_s"] - a["start_s"]) for a in record.allocations if a["role"] == "warm")
    assert held_s == pytest.approx(20.0 - sum(taken_s.values()))
    rows = [a for a in record.allocations if a["role"] == "warm"]
    for span in record.spans:
        assert 5.0 <= span["start_s"] < span["end_s"] <= 7.0
        assert any(a["start_s"] <= span["start_s"] and span["end_s"] <= a["end_s"] for a in rows)


def test_the_thread_ends_what_waited_too_long() -> None:
    pool = Launcher(Lifecycle(idle_timeout_s=0.001), watched=True)
    record = StepRecord("run", 0, PLAN, 0.0)
    for i, actor in enumerate(pool.begin(record, PLAN)):
        assert pool.finish(i, actor, PLAN, 0.0)
    pool.end_generation(record)
    pool.clock_s = 1.0
    assert pool.nobody.wait(300.0)
    pool.release()
    assert len(pool.idle) == 0


def test_a_thread_that_failed_is_reported_once_and_the_next_step_has_another_one() -> None:
    class Failing(Launcher):
        failed = threading.Event()

        def end_all(self, actors: Sequence[int]) -> None:
            if not self.failed.is_set():
                self.failed.set()
                raise OSError("nothing can be ended")
            super().end_all(actors)

    pool = Failing(Lifecycle(idle_timeout_s=0.001), watched=True)

    def step(start_s: float) -> StepRecord:
        record = StepRecord("run", 0, PLAN, start_s)
        for i, actor in enumerate(pool.begin(record, PLAN)):
            assert pool.finish(i, actor, PLAN, start_s)
        pool.end_generation(record)
        return record

    first = step(0.0)
    pool.clock_s = 1.0
    assert pool.failed.wait(300.0)
    with refused(OSError):
        pool.finalise_allocations(first)
    assert len(pool.idle) == 2
    second = step(1.0)
    pool.clock_s = 2.0
    assert pool.nobody.wait(300.0), "the second step's actors are watched"
    pool.finalise_allocations(second)
    pool.release()


def test_after_an_interrupted_release_the_next_step_has_a_thread() -> None:
    class Interrupted(Launcher):
        interrupts = True

        def end_all(self, actors: Sequence[int]) -> None:
            if self.interrupts:
                self.interrupts = False
                raise KeyboardInterrupt
            super().end_all(actors)

    pool = Interrupted(Lifecycle.serverful(), watched=True)
    record = StepRecord("run", 0, PLAN, 0.0)
    actors = pool.begin(record, PLAN)
    for i, actor in enumerate(actors):
        assert pool.finish(i, actor, PLAN, 0.0)
    pool.end_generation(record)
    with pytest.raises(KeyboardInterrupt):
        pool.release()
    assert pool.ended == actors[1:], "the others have ended"
    pool.lifecycle = Lifecycle(idle_timeout_s=0.001)
    record = StepRecord("run", 1, PLAN, 1.0)
    for i, actor in enumerate(pool.begin(record, PLAN)):
        assert pool.finish(i, actor, PLAN, 1.0)
    pool.clock_s = 2.0
    pool.end_generation(record)
    pool.clock_s = 3.0
    assert pool.nobody.wait(300.0)
    pool.release()

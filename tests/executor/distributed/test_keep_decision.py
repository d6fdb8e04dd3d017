"""Whether an actor without work waits for the next step: by cost, from measured numbers, unless the user gave a time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from busy_machine import PATIENT
from error_messages import refused
from executor_samples import plan_of
from hypothesis import given
from hypothesis import strategies as st
from scripted_steps import GROUPS, POOL_KINDS, SOON, Stage, events, stage
from scripted_world import Punctual
from test_lifecycle import PLAN, Run, history_of

from rlhfless.engine import Request, SimulatedEngine
from rlhfless.errors import InputError
from rlhfless.executor import Lifecycle, PlanForecast, ProcessPool, ShortestStep, StepRecord
from rlhfless.executor.distributed.pool.lifecycle import StepHistory
from rlhfless.trace import held_gpu_seconds
from solver import Cluster, LatencyModel, NonGenerationPhases

LEARNING = NonGenerationPhases(learn_s=7.0)


def after_generation(start_s: float, rest_s: float) -> tuple[StepHistory, float]:
    """Two steps of 3 s, generated; the rest between them took so long."""
    history = history_of([0.0, 3.0 + rest_s], [3.0, 6.0 + rest_s])
    history.start_s = start_s
    return history, 6.0 + rest_s


@given(st.floats(0.01, 100), st.floats(0.01, 1000), st.floats(0, 0.99), st.integers(1, 8))
def test_an_actor_waits_if_that_costs_no_more_than_starting_and_the_delay(
    start_s: float, rest_s: float, weight: float, gpus: int
) -> None:
    history, now_s = after_generation(start_s, rest_s)
    decision = Lifecycle(time_weight=weight).keep(history, now_s, gpus)
    assert decision.waiting_gpu_s == pytest.approx(gpus * rest_s)
    delay_gpu_s = weight / (1 - weight) * gpus * start_s
    assert decision.starting_gpu_s == pytest.approx(gpus * start_s + delay_gpu_s)
    if decision.waiting_gpu_s <= decision.starting_gpu_s:
        assert decision.until_s >= now_s + rest_s - 1e-9, "until the step is expected, at least"
    else:
        assert decision.until_s == now_s


def test_who_counts_time_only_always_waits_and_who_prewarms_has_no_delay() -> None:
    history, now_s = after_generation(2.0, 3.0)
    assert Lifecycle(time_weight=1.0).keep(history, now_s, 1).until_s == math.inf
    assert Lifecycle(time_weight=0.5).keep(history, now_s, 1).until_s == now_s + 3.0 + 4.0
    assert Lifecycle(time_weight=0.0).keep(history, now_s, 1).until_s == now_s
    for forecast in (ShortestStep(), PlanForecast()):
        prewarmed = Lifecycle(prewarm=forecast, time_weight=1.0).keep(history, now_s, 2)
        assert (prewarmed.until_s, prewarmed.waiting_gpu_s, prewarmed.starting_gpu_s) == (now_s, 6.0, 4.0)


@given(st.floats(0, 100), st.floats(0, 1000), st.floats(0, 500))
def test_a_time_given_by_hand_wins_and_has_no_costs(start_s: float, rest_s: float, given_s: float) -> None:
    history, now_s = after_generation(start_s, rest_s)
    decision = Lifecycle(idle_timeout_s=given_s).keep(history, now_s, 4)
    assert (decision.until_s, decision.by_cost) == (now_s + given_s, False)


@given(st.floats(0.1, 100), st.floats(0.1, 1000))
def test_where_nothing_is_expected_waiting_costs_at_most_twice_the_best(start_s: float, rest_s: float) -> None:
    """Before the second step: it waits for as long as starting would cost."""
    first = history_of([0.0], [3.0])
    first.start_s = start_s
    decision = Lifecycle(time_weight=0.0).keep(first, 3.0, 1)
    assert decision.waiting_gpu_s is None
    waits_s = decision.until_s - 3.0
    spent_s = rest_s if rest_s <= waits_s else waits_s + start_s
    assert spent_s <= 2 * min(rest_s, start_s) * (1 + 1e-9)


def test_what_is_expected_is_what_was_said_or_the_median_so_far() -> None:
    assert history_of([0.0], [3.0]).expected_start_s(3.0) is None
    assert history_of([0.0], [3.0], LEARNING).expected_start_s(4.0) == 3.0 + 7.0
    seen = history_of([0.0, 10.0, 20.0, 50.0], [3.0, 13.0, 23.0, 53.0])  # rests of 7, 7 and 27 s
    assert seen.expected_start_s(53.0) == 60.0
    assert seen.expected_start_s(70.0) == 70.0, "it is late"
    generating = history_of([], [])
    for start_s in (0.0, 10.0, 20.0):
        generating.begin(start_s, PLAN, NonGenerationPhases())
        generating.end_generation(start_s + 3.0, 1.0 if start_s == 0 else 0.0)
    generating.begin(50.0, PLAN, NonGenerationPhases())
    assert (generating.decoding_s, generating.start_s) == ([2.0, 3.0, 3.0], 1.0), "without the cold start"
    assert generating.expected_start_s(51.0) == 50.0 + 3.0 + 7.0
    assert generating.expected_start_s(58.0) == 65.0, "learning is still to come"
    assert replace(history_of([5.0], [], LEARNING), plan=PLAN).expected_start_s(6.0) == 5.0 + 3.0 + 7.0


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan, "all"])
def test_a_weight_that_is_none_is_refused(weight: Any) -> None:
    with refused(InputError, "time_weight", weight):
        Lifecycle(time_weight=weight)


def steps(lifecycle: Lifecycle, start_s: float, rest_s: float, count: int = 4) -> Run:
    run = Run(lifecycle, start_s=start_s)
    for _ in range(count):
        run.step(4.0)
        run.wait(run.launcher.clock_s + rest_s)
        run.finalise_allocations()
    return run


@pytest.mark.parametrize(("start_s", "kept"), [(40.0, True), (2.0, False)])
def test_long_learning_ends_actors_only_where_starting_is_cheap(start_s: float, kept: bool) -> None:
    """Learning of 90 s: longer than actors waited by default, whatever their start took."""
    run = steps(Lifecycle(), start_s, 90.0)
    assert len(run.launcher.started) == (2 if kept else 8)
    decisions = events(run.records[2], "keep")
    assert [(e["keeps"], e["waiting_gpu_s"], e["starting_gpu_s"]) for e in decisions] == [
        (kept, 90.0, pytest.approx(start_s / 0.3, abs=1e-3))
    ] * 2
    assert [e["holder"] for e in decisions] == ["actor-0", "actor-1"]
    first = events(run.records[0], "keep")
    assert {e["waiting_gpu_s"] for e in first} == {None}, "nothing is expected yet"
    run.trace()


@given(st.floats(0.5, 50), st.floats(0.5, 200))
def test_a_rest_that_is_known_costs_what_the_better_of_both_fixed_ways_costs(start_s: float, rest_s: float) -> None:
    """In the objective's unit: waiting in it, and the starts after it."""

    def cost(lifecycle: Lifecycle) -> float:
        run = steps(lifecycle, start_s, rest_s)
        held = held_gpu_seconds(run.trace()).groupby("step")["hold"].sum()
        cold = [s for s in run.records[2].spans if s["phase"] == "start"]
        return float(held[1] + len(cold) * start_s / 0.3)

    assert cost(Lifecycle()) == pytest.approx(min(cost(Lifecycle.cold()), cost(Lifecycle.serverful())))


# --- pools ------------------------------------------------------------------------------------------------------------


def learns(on: Stage, seconds: float) -> StepRecord:
    """A step, and then learning."""
    record = on.run(plan_of(GROUPS, slots=3))
    on.world.sleep(seconds)
    on.pool.finalise_allocations(record)
    on.records[-1].end_s = max(record.end_s, on.pool.now_s())
    return record


@pytest.mark.parametrize("pool_kind", POOL_KINDS)
@pytest.mark.parametrize(("start_s", "kept"), [(30.0, True), (0.5, False)])
def test_a_pool_decides_by_its_own_cold_starts_and_rests(pool_kind: str, start_s: float, kept: bool) -> None:
    """In steps of a scripted world, whose first actors finish long before the last ones."""
    patient = replace(SOON, silence_floor_s=500.0, min_start_timeout_s=500.0)
    with stage(pool_kind, lifecycle=Lifecycle(), faults=patient, start_s=lambda number: start_s) as on:
        for _ in range(3):
            learns(on, 80.0)
        started = len(on.world.actors)
        record = on.run(plan_of(GROUPS, slots=3))
        assert (len(on.world.actors) == started) == kept
        decisions = events(record, "keep")
        assert {e["holder"] for e in decisions} == {f"actor-{i}" for i in range(len(GROUPS))}
        assert {e["keeps"] for e in decisions} == {kept}
        for e in decisions:
            assert e["waiting_gpu_s"] == pytest.approx(80.0, abs=5.0)
            assert e["starting_gpu_s"] == pytest.approx(start_s / 0.3, rel=0.2, abs=0.5)
        on.trace()


@pytest.mark.parametrize("pool_kind", POOL_KINDS)
@pytest.mark.parametrize("wait_s", [0.0, 0.02])
def test_an_actor_ends_so_long_after_its_work_while_others_decode(pool_kind: str, wait_s: float) -> None:
    """The first of two actors has little to do; its GPU is free long before the second one is done."""
    with stage(pool_kind, Punctual(0), lifecycle=Lifecycle(idle_timeout_s=wait_s)) as on:
        record = on.run(plan_of([[0], [1]]), lengths=[2, 200])
        done_s = {a["holder"]: a["end_s"] for a in record.allocations if a["role"] == "decode"}
        (killed,) = [e for e in events(record, "kill") if e["holder"] == "warm-0"] or [{"time_s": done_s["actor-0"]}]
        assert killed["time_s"] == pytest.approx(done_s["actor-0"] + wait_s, abs=0.06)  # Ray knows of a death 0.05 s later
        assert killed["time_s"] < done_s["actor-1"] - 0.1
        warm_s = sum(a["end_s"] - a["start_s"] for a in record.allocations if a["holder"] == "warm-0")
        assert warm_s == pytest.approx(killed["time_s"] - done_s["actor-0"])
        on.trace()


@pytest.mark.full
def test_processes_that_are_dear_to_start_wait_and_others_end() -> None:
    """Real ones, with the time that they took to start."""
    latency = LatencyModel("tiny", 1, 2e-3, 1e-4, max_batch=16, kv_capacity_tokens=1 << 20)
    asked = [Request(i, 3, 40, target_tokens=20) for i in range(4)]

    def step(learn_s: float, time_weight: float) -> tuple[StepRecord, int]:
        """One step before so much learning, and how many processes wait then."""
        with ProcessPool(["cpu"] * 2, lifecycle=Lifecycle(time_weight=time_weight), faults=PATIENT) as pool:
            record = pool.run_step(
                plan_of([[0, 1], [2, 3]]), asked, SimulatedEngine, latency, Cluster(1, 2, 1),
                phases=NonGenerationPhases(learn_s=learn_s, learner_gpus=1),
            )  # fmt: skip
            return record, len(pool.idle)

    for learn_s, time_weight, waiting in ((1e-3, 0.9, 2), (1e4, 0.0, 0)):
        record, waits = step(learn_s, time_weight)
        assert waits == waiting
        starts_s = [s["end_s"] - s["start_s"] for s in record.spans if s["phase"] == "start"]
        for e in events(record, "keep"):
            assert e["keeps"] == (waiting > 0)
            assert e["starting_gpu_s"] <= max(starts_s) / (1 - time_weight) + 1e-3
            assert e["waiting_gpu_s"] >= learn_s - 1e-3
        assert len(events(record, "keep")) == 2
        assert np.isfinite([e["starting_gpu_s"] for e in events(record, "keep")]).all()

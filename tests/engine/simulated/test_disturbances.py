"""Disturbed engines: off they are the engine that they were, outages cost what they should, and worse is never faster."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from test_simulated import LIMIT, ODD_S, PlainEngine, admissions, assert_same_completions, latencies, requests

from rlhfless.engine.protocol import Engine, Progress, Request
from rlhfless.engine.simulated import disturbances
from rlhfless.engine.simulated.disturbances import FaultInjectingEngine, FaultInjectingFactory
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.latency.effects import Effects, Outages, StartDelays, Stragglers
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.simulate import Comparison, SimulationConfig, simulate
from rlhfless.trace import validate
from solver import Cluster, LatencyModel, NonGenerationPhases, Objective, PlanningError, Workload
from solver.model.admission import Admission
from solver.model.problem import PlanningProblem

SECOND = LatencyModel("second", 1, 1.0, 0.0, prefill_per_token_s=0.25)
ROOM = Admission(4, 1000)
OFF = (
    Effects(),
    Effects(Stragglers(), StartDelays(), Outages()),
    Effects(Stragglers(0.0, 5.0), StartDelays(0.0, 3.0), Outages(0.0, 100.0), seed=9),
)


def interrupted(ups, down_s, latency=SECOND, admission=ROOM):
    """An engine that is up for ``ups`` seconds one after the other, and then for ever."""
    left = iter([*ups, *[math.inf] * 1000])
    return FaultInjectingEngine(SimulatedEngine(latency, admission), lambda: next(left), down_s)


def log(steps: int = 3):
    draw = np.random.default_rng(1)
    rows = [
        {
            "run": "r", "step": step, "prompt_id": f"p{p}", "sample": s, "prompt_tokens": 20 + p,
            "response_tokens": int(draw.integers(1, 300)), "finish_reason": "stop",
        }
        for step in range(steps) for p in range(12) for s in range(2)
    ]  # fmt: skip
    return validate("rollouts", rows)


SMALL = LatencyModel("small", 1, 5e-3, 4e-4, 1e-7, prefill_per_token_s=1e-5, start_s=0.1, transfer_base_s=1e-3, max_batch=16)
SETTING = SimulationConfig(Cluster(1, 4, 1), SMALL, Objective(0.7), max_response_tokens=300)


@pytest.fixture(scope="module")
def plain() -> Comparison:
    """Nothing goes wrong."""
    return simulate(log(), SETTING, ["random", "rlhfless", "fold"])


def test_an_outage_loses_the_iteration_and_the_kv_cache():
    engine = interrupted([2.5], 10.0)
    engine.add([Request(0, 0, 20, target_tokens=5)])
    done = engine.advance(math.inf).completions
    # two tokens by 2.0, down from 2.5 to 12.5, their context again, three tokens
    assert done[0].time_s == pytest.approx(12.5 + 2 * 0.25 + 3)
    assert (done[0].start_s, done[0].first_token_s) == (0.0, 1.0)
    assert done[0].prefill_tokens_computed == 1  # the last one is decoded


def test_while_it_is_down_nothing_runs_and_tokens_stay():
    engine = interrupted([2.5], 10.0)
    engine.add([Request(0, 0, 20, target_tokens=5), Request(1, 0, 20, target_tokens=2)])
    assert [c.response for c in engine.advance(2.4).completions] == [1]
    assert not engine.advance(8.0).completions
    assert (engine.running(), engine.waiting(), engine.generated_tokens()) == ((), (0,), {0: 2})
    engine.add([Request(7, 0, 20, available_s=8.0, target_tokens=1)])
    first = engine.advance(math.inf).completions
    assert {c.response: c.start_s for c in first} == {0: 0.0, 7: 12.5}


def test_what_is_there_while_nothing_runs_is_no_matter():
    engine = interrupted([1.0, 1.0], 2.0)
    assert engine.peek_next_event_s() == math.inf
    assert not engine.advance(50.0).completions
    engine.add([Request(0, 0, 20, available_s=60.0, target_tokens=2)])
    assert engine.advance(math.inf).completions[0].time_s == 62.0


@given(st.data(), latencies(), admissions(), st.lists(st.integers(1, 60), max_size=5), st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_it_does_what_a_plain_engine_does_that_loses_everything(data, latency, admission, ups, down):
    ups, down_s = [up * ODD_S for up in ups], down * ODD_S
    new = [replace(r, cached_tokens=0, shares_prompt=False) for r in data.draw(requests(0, 6))]
    engine, plain = interrupted(ups, down_s, latency, admission), PlainEngine(latency, admission)
    engine.add(new)
    plain.add(new)
    at_s = 0.0
    for up_s in ups:
        at_s += up_s
        plain.advance(at_s)
        lost = plain.cut(min(plain.clock_s, at_s))
        at_s += down_s
        plain.add([replace(r, kv=None, available_s=max(r.available_s, at_s)) for r in lost])
    plain.advance(math.inf)
    progress, now_s = Progress([], []), 0.0
    while engine.generated_tokens():
        now_s = max(now_s, engine.peek_next_event_s()) + data.draw(st.integers(0, 9)) * ODD_S
        step = engine.advance(now_s)
        assert all(c.time_s <= now_s for c in step.completions)
        progress.completions.extend(step.completions)
    assert_same_completions(progress.completions, plain.done)


@given(st.data(), latencies(), admissions(), st.lists(st.integers(1, 60), max_size=5), st.integers(0, 50), st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_longer_outages_never_end_sooner_and_any_is_worse_than_none(data, latency, admission, ups, less, more):
    less, more = sorted((less, more))
    admission = replace(admission, rule="reserve")
    new = [replace(r, available_s=0.0) for r in data.draw(requests(0, 6))]
    new = [replace(r, cached_tokens=0, shares_prompt=False) for r in new]
    plain = SimulatedEngine(latency, admission)
    ends = []
    for engine in (plain, *(interrupted([up * ODD_S for up in ups], s * ODD_S, latency, admission) for s in (less, more))):
        engine.add(new)
        ends.append({c.response: c.time_s for c in engine.advance(math.inf).completions})
    for response in ends[0]:
        assert ends[0][response] <= ends[1][response] + 1e-9
        assert ends[1][response] <= ends[2][response] + 1e-9


def test_outages_that_let_no_iteration_end_are_refused(monkeypatch):
    monkeypatch.setattr(disturbances, "MAX_LOST_IN_A_ROW", 100)
    engine = FaultInjectingFactory(Effects(outages=Outages(1e12, 0.1)))(SECOND, ROOM, 0.0)
    engine.add([Request(0, 0, 20, target_tokens=5)])
    with refused(PlanningError, "101"):
        engine.advance(math.inf)


def test_one_outage_more_at_the_end_never_ends_sooner():
    ends = []
    for ups in ([], [2.5], [2.5, 1.5], [2.5, 1.5, 0.5]):
        engine = interrupted(ups, 1.0)
        engine.add([Request(i, 4, 20, target_tokens=6 + i) for i in range(3)])
        ends.append(max(c.time_s for c in engine.advance(math.inf).completions))
    assert ends == sorted(ends)
    assert ends[0] < ends[-1]


@given(st.integers(0, 500), st.floats(0, 4), st.floats(0, 4), admissions())
@settings(max_examples=40, deadline=None)
def test_worse_stragglers_never_end_an_actor_sooner(seed, less, more, admission):
    less, more = sorted((less, more))
    ends = []
    for severity in (0.0, less, more):
        make = FaultInjectingFactory(Effects(Stragglers(0.5, severity), StartDelays(severity), seed=seed))
        engines = [make(SMALL, admission, 1.0) for _ in range(4)]
        for engine in engines:
            engine.add([Request(i, 12, LIMIT, target_tokens=5 + 3 * i) for i in range(5)])
        ends.append([{c.response: c.time_s for c in engine.advance(math.inf).completions} for engine in engines])
    for none, some, many in zip(*ends, strict=True):
        assert all(none[r] <= some[r] <= many[r] for r in none)


@pytest.mark.parametrize("effects", OFF)
def test_off_is_bit_for_bit_what_it_was(effects, plain):
    off = simulate(log(), replace(SETTING, effects=effects), ["random", "rlhfless", "fold"])
    for name, trace in plain.traces.items():
        for table in ("rollouts", "allocations", "spans"):
            assert getattr(trace, table).equals(getattr(off.traces[name], table))
        told = [event for event in trace.events.to_dict("records") if event["name"] != "decision"]
        assert told == [event for event in off.traces[name].events.to_dict("records") if event["name"] != "decision"]


@pytest.mark.parametrize("effects", OFF)
def test_off_makes_plain_engines(effects):
    engine = FaultInjectingFactory(effects)(SMALL, ROOM, 3.0)
    assert type(engine) is SimulatedEngine
    assert engine.clock_s == 3.0


def test_the_same_seed_is_the_same_step_and_every_step_has_outages_of_its_own(plain):
    bad = replace(SETTING, effects=Effects(outages=Outages(2000.0, 0.5), starts=StartDelays(0.2), seed=4))
    one, two = (simulate(log(), bad, ["random"]) for _ in range(2))
    assert one.traces["random"].rollouts.equals(two.traces["random"].rollouts)
    other = simulate(log(), replace(bad, effects=replace(bad.effects, seed=5)), ["random"])
    assert not one.traces["random"].rollouts["end_s"].equals(other.traces["random"].rollouts["end_s"])
    undisturbed = plain.table.query("policy == 'random'")
    assert (one.table["time_s"].to_numpy() > undisturbed["time_s"].to_numpy()).all()


@pytest.mark.parametrize("policy", ["static", "random", "rlhfuse", "rlhfless", "fold", "solver+replan", "oracle+replan"])
def test_every_rule_finishes_a_step_with_everything_going_wrong(policy):
    effects = Effects(Stragglers(0.4, 1.0), StartDelays(0.1), Outages(2000.0, 0.3), seed=2)
    result = simulate(log(2), replace(SETTING, effects=effects), [policy])
    rollouts = result.traces[policy].rollouts
    assert len(rollouts) == len(log(2))
    assert rollouts["end_s"].notna().all()
    work = log(2).set_index(["step", "prompt_id", "sample"])["response_tokens"].sort_index()
    assert rollouts.set_index(["step", "prompt_id", "sample"])["response_tokens"].sort_index().tolist() == work.tolist()


def test_plans_that_send_prefixes_are_refused_where_outages_would_lose_them():
    work = Workload.grid([8, 8], [[5, 6], [7, 8]], max_response_tokens=10)
    given_ = (
        PlanningProblem(work, Cluster(1, 2, 1), SMALL, Objective(), NonGenerationPhases(), admission="reserve"),
        PlanningOptions(seed=0),
    )
    plan = make_policy("random").plan(*given_)
    plan = replace(plan, actors=tuple(replace(actor, shares_prompts=True) for actor in plan.actors))
    wanted = [Request(i, 8, 10, target_tokens=5, prompt=i // 2) for i in range(4)]
    with refused(ValueError, "FaultInjectingEngine"):
        run_step(plan, wanted, FaultInjectingFactory(Effects(outages=Outages(1.0, 1.0))), SMALL, Cluster(1, 2, 1))


def test_it_is_an_engine():
    engine: Engine = interrupted([1.0], 1.0)
    engine.sync(None, 1)
    engine.close()
    assert engine.slots == ROOM.max_batch

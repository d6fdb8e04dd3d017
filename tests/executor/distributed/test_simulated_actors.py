"""Simulated engines on the wall clock: rules and failures around actors that sleep for as long as the latency model says."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from busy_machine import PATIENT, Gate, Gated, has_moved
from error_messages import refused
from executor_samples import Restless, plan_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import HERE
from scripted_pools import LocalPool
from scripted_steps import SOON
from scripted_world import Dice, Punctual, Trouble, World

from rlhfless.engine import Request, SimulatedEngine, SimulatedEngineFactory
from rlhfless.engine.protocol import Progress
from rlhfless.engine.simulated.accepted_runs import DrawnRuns
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.engine.simulated.real_time import RealTimeEngine
from rlhfless.errors import InputError
from rlhfless.executor import Faults, Lifecycle, ProcessPool, StepFailed, StepRecord, run_step
from solver import Cluster, LatencyModel, Plan
from solver.model.acceptance import Acceptance
from solver.model.admission import Admission
from solver.model.drafting import Drafting

SUPPORT = Path(__file__).parents[2] / "support"
LATENCY = LatencyModel(
    "tiny", 1, 2e-3, 1e-4, 1e-6, prefill_base_s=1e-3, prefill_per_token_s=1e-5, start_s=0.01,
    transfer_base_s=1e-4, transfer_per_kv_token_s=1e-6, max_batch=16, kv_capacity_tokens=1 << 20,
)  # fmt: skip
CLUSTER = Cluster(1, 4, 1)
LENGTHS = [3, 9, 1, 14, 0, 22, 2, 17, 11, 5, 8, 30]
GROUPS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11]]


class InWorld(SimulatedEngineFactory):
    """Engines of a scripted world's actors, which sleep on the actor's clock."""

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> RealTimeEngine:
        engine, actor = super().__call__(latency, admission, start_s), HERE[-1]
        assert isinstance(engine, RealTimeEngine)
        step = engine.step

        def scripted(from_s: float, clock: Any) -> Progress:
            actor.iterates(engine)
            return step(from_s, clock)

        engine.sleep, engine.step = lambda s: actor.sleep(s * actor.slowness + 1e-9), scripted  # type: ignore[method-assign]
        return engine


def requests_of(lengths: Sequence[int], shares: bool = False) -> list[Request]:
    return [Request(i, 5, 60, target_tokens=n, prompt=i // 2, shares_prompt=shares) for i, n in enumerate(lengths)]


def run(world: World, plan: Plan, faults: Faults = SOON, shares: bool = False, **engines: float) -> StepRecord:
    """A step in a world, whose responses all arrive once with their lengths."""
    with LocalPool(world, faults=faults, lifecycle=Lifecycle.cold()) as pool:
        record = pool.run_step(
            plan, requests_of(LENGTHS, shares), InWorld(**engines), LATENCY, CLUSTER, migration="move"
        )  # fmt: skip
    assert {i: c.response_tokens for i, c in record.completions.items()} == dict(enumerate(LENGTHS))
    for c in record.completions.values():
        assert record.start_s <= c.start_s <= c.first_token_s <= c.time_s <= record.end_s + 1e-9
    for holder in {s["holder"] for s in record.spans}:
        own = sorted((s for s in record.spans if s["holder"] == holder), key=lambda s: s["start_s"])
        assert all(a["end_s"] <= b["start_s"] + 1e-9 for a, b in itertools.pairwise(own)), "one thing at a time"
    return record


def decode_s(record: StepRecord, holder: str) -> float:
    return sum(s["end_s"] - s["start_s"] for s in record.spans if s["holder"] == holder and s["phase"] in ("prefill", "decode"))


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("time_scale", [1.0, 0.25])
def test_undisturbed_actors_take_the_seconds_of_the_virtual_clock(shares: bool, time_scale: float) -> None:
    plan = plan_of(GROUPS, slots=2)
    wall = run(World(Punctual(0)), plan, shares=shares, time_scale=time_scale)
    virtual = run_step(plan, requests_of(LENGTHS, shares), SimulatedEngine, LATENCY, CLUSTER)
    assert wall.start_s == 0.0, "a run begins with its first step"
    for i in range(len(GROUPS)):
        assert decode_s(wall, f"actor-{i}") == pytest.approx(time_scale * decode_s(virtual, f"actor-{i}"))
    computed = [{i: c.prefill_tokens_computed for i, c in record.completions.items()} for record in (wall, virtual)]
    assert computed[0] == computed[1]


def test_actors_with_drafts_take_the_seconds_of_the_virtual_clock_too(tmp_path: Path) -> None:
    """In real processes, with a rule that moves responses; every pass accepts what it does on the virtual clock."""
    drafts = DraftedEngineFactory(Drafting(length=3), DrawnRuns(Acceptance([0.7, 0.5, 0.3]), seed=4))
    asked = [replace(r, max_tokens=100) for r in requests_of([20 * n for n in (1, 2, 3, 4, 3, 2, 1, 2)])]
    plan = plan_of(GROUPS[:2], slots=4)
    virtual = run_step(plan, asked, drafts, LATENCY, CLUSTER)
    gate = Gate(tmp_path / "moved")
    with ProcessPool(["cpu"] * 2, faults=PATIENT) as pool:
        wall = pool.run_step(plan, asked, drafts, LATENCY, CLUSTER)
        with gate.opened(lambda: has_moved(pool)):
            moving, gated = replace(plan, rule=Restless(1, 0.004, late=True)), Gated(drafts, gate, last=len(GROUPS[0]) - 1)
            moved = pool.run_step(moving, asked, gated, LATENCY, CLUSTER)
    for i in range(2):
        assert decode_s(wall, f"actor-{i}") == pytest.approx(decode_s(virtual, f"actor-{i}"))
    passes = [{i: c.passes for i, c in record.completions.items()} for record in (virtual, wall, moved)]
    assert passes[0] == passes[1]
    assert {i: c.response_tokens for i, c in moved.completions.items()} == {r.response: r.target_tokens for r in asked}
    assert moved.moves > 0


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    wrong=st.lists(st.builds(Trouble, st.sampled_from(["kill", "stop", "slow"]), st.integers(1, 80)), max_size=3),
    shares=st.booleans(),
)
def test_rules_and_failures_lose_no_response_of_simulated_actors(seed: int, wrong: list[Trouble], shares: bool) -> None:
    run(World(Dice(seed), [replace(t) for t in wrong]), plan_of(GROUPS, Restless(seed, 0.02), slots=3), shares=shares)


def test_a_simulated_actor_that_may_not_be_replaced_ends_the_step() -> None:
    strict = replace(SOON, retries=0)
    with refused(StepFailed, "retried only 0 times"):
        run(World(Punctual(0), [Trouble("kill", 30, actor=1)]), plan_of(GROUPS, slots=3), strict)


@given(st.integers(0, 1000), st.booleans())
def test_iterations_one_by_one_are_those_of_the_whole_schedule(seed: int, shares: bool) -> None:
    """Also with few slots, where responses wait for one."""
    lengths, admission = [(seed * i * i) % 23 for i in range(1, 9)], Admission(3, 400)
    whole, single = (RealTimeEngine(LATENCY, admission, 1.0) for _ in range(2))
    now = [1.0]
    single.sleep = lambda s: now.__setitem__(0, now[0] + s)  # type: ignore[method-assign]
    for engine in (whole, single):
        engine.add([replace(r, available_s=1.0) for r in requests_of(lengths, shares)])
    expected, found = whole.advance(math.inf), []
    while single.running() or single.waiting():
        found += list(single.step(0.0, lambda: now[0]).completions)
    assert [(c.response, c.time_s, c.first_token_s, c.prefill_tokens_computed) for c in found] == [
        (c.response, pytest.approx(c.time_s), pytest.approx(c.first_token_s), c.prefill_tokens_computed)
        for c in expected.completions
    ]


@pytest.mark.parametrize("time_scale", [0.0, -1.0, math.nan, "fast"])
def test_a_time_scale_that_is_none_is_refused(time_scale: Any) -> None:
    with refused(InputError, "time_scale", time_scale):
        SimulatedEngineFactory(time_scale)


def test_real_processes_sleep_for_as_long_as_the_virtual_clock_charges(tmp_path: Path) -> None:
    """A rule moves responses between them meanwhile."""
    plan = plan_of(GROUPS[:2], Restless(1, period_s=0.004, late=True), slots=2)
    asked = requests_of([20 * n for n in (1, 2, 3, 4, 3, 2, 1, 2)])
    asked = [replace(r, max_tokens=100) for r in asked]
    gate, others = Gate(tmp_path / "moved"), set(multiprocessing.active_children())
    working: list[int] = []

    def moved() -> bool:
        if not has_moved(pool):
            return False
        working.extend(pool.working)  # none of them ends before the gate is open
        return True

    with ProcessPool(["cpu"] * 2, faults=PATIENT) as pool, gate.opened(moved):
        gated = Gated(SimulatedEngineFactory(), gate, last=len(GROUPS[0]) - 1)
        record = pool.run_step(plan, asked, gated, LATENCY, CLUSTER, migration="move")
        assert working, "those that had reported when responses moved"
        assert set(working) <= {p.pid for p in multiprocessing.active_children() if p not in others}
        assert pool.working == [], "no step is running"
    assert {i: c.response_tokens for i, c in record.completions.items()} == {r.response: r.target_tokens for r in asked}
    assert record.moves > 0
    decoded = [s for s in record.spans if s["phase"] == "decode"]
    assert sum(s["tokens"] for s in decoded) == sum(r.target_tokens or 0 for r in asked)
    for s in decoded:
        iterations = s["tokens"] / s["batch_mean"]
        assert s["end_s"] - s["start_s"] >= iterations * LATENCY.base_s - 1e-9


@pytest.mark.full
def test_simulated_actors_need_no_torch() -> None:
    """In a program that cannot import it, with the devices of this machine."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from executor_samples import plan_of\n"
        "from rlhfless.engine import Request, SimulatedEngine\n"
        "from rlhfless.executor import ProcessPool\n"
        "from solver import Cluster, LatencyModel\n"
        "asked = [Request(i, 3, 40, target_tokens=5 + i) for i in range(4)]\n"
        "with ProcessPool() as pool:\n"
        "    latency = LatencyModel('tiny', 1, 2e-3, 1e-4)\n"
        "    record = pool.run_step(plan_of([range(4)]), asked, SimulatedEngine, latency, Cluster(1, 1, 1))\n"
        "print(sorted(c.response_tokens for c in record.completions.values()), 'rlhfless.engine.torch.model' in sys.modules)\n"
    )
    here = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SUPPORT.parents[1], SUPPORT)))}
    done = subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[5, 6, 7, 8] False\n", 0), done.stderr

"""Whatever goes wrong, and in whatever order orders and reports arrive: every response arrives once, with its own tokens.

Pools of processes and of Ray actors run in a scripted world (``scripted_world.py``). ``Stage.run`` checks every step: nothing
lost or doubled, tokens equal to those of one actor that nothing happens to, one holder of a GPU at a time, bounded retries,
rules that see only what was reported by then, and no actor left over.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from executor_samples import Restless, plan_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from scripted_engine import ScriptedEngines, requests_of
from scripted_steps import GROUPS, LATENCY, LENGTHS, POOL_KINDS, SOON, Stage, events, spans, stage
from scripted_world import Trouble

from rlhfless.executor import Lifecycle, PlanForecast, ShortestStep, StepFailed
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.trace import held_gpu_seconds
from solver import Cluster, NonGenerationPhases, Objective, Workload
from solver.model.problem import PlanningProblem

KINDS = ("kill", "stop", "zombie", "memory", "fail", "slow", "no room", "unreachable", "unrecoverable", "interrupt")
SAID = re.compile(
    r"actor-\d+ .*; (every other actor would fail in the same way|response \d+ was lost with its actor \d+ times, but may be "
    r"retried only \d+ times|\d+ responses are unfinished, but no actor is left and none may be started again "
    r"\(restarts: \d+\)), so the step was aborted$|memory is full$"
)
troubles = st.lists(st.builds(Trouble, st.sampled_from(KINDS), st.integers(1, 120)), max_size=6)


def runs(on: Stage, *given: Any, **options: Any) -> None:
    """The step ends, or says why not."""
    ended: BaseException | None = None
    try:
        on.run(*given, **options)
    except (StepFailed, KeyboardInterrupt) as error:
        ended = error
    if isinstance(ended, StepFailed):
        assert SAID.match(str(ended)), ended
        assert on.records[-1] is ended.record
    elif ended is not None:
        assert any(t.kind == "interrupt" and t.done for t in on.world.troubles)


@pytest.mark.parametrize("pool_kind", POOL_KINDS)
@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    wrong=troubles,
    moves=st.booleans(),
    release=st.sampled_from(["done", "generation", "step"]),
    late=st.booleans(),
    bounds=st.sampled_from([(50, 50), (2, 1), (0, 0)]),
)
@example(
    seed=0, wrong=[Trouble("kill", 1), Trouble("stop", 35), Trouble("zombie", 5)], moves=False, release="done", late=False,
    bounds=(0, 0),
)  # fmt: skip
@example(
    seed=74, wrong=[Trouble("kill", 1), Trouble("zombie", 11), Trouble("unrecoverable", 1)], moves=True, release="done",
    late=False, bounds=(50, 50),
)  # fmt: skip
@example(seed=3, wrong=[Trouble("zombie", 30)], moves=True, release="done", late=False, bounds=(50, 50))
@example(seed=5, wrong=[Trouble("kill", 20), Trouble("kill", 40)], moves=True, release="step", late=True, bounds=(50, 50))
def test_every_response_arrives_once_with_its_own_tokens(
    pool_kind: str, seed: int, wrong: list[Trouble], moves: bool, release: str, late: bool, bounds: tuple[int, int]
) -> None:
    plan = plan_of(GROUPS, Restless(seed, 0.02) if moves else None, slots=3, release=release)
    if late:
        plan = replace(plan, actors=(*plan.actors[:3], replace(plan.actors[3], start_s=0.04)))
    faults = replace(SOON, retries=bounds[0], restarts=bounds[1])
    with stage(pool_kind, seed, [replace(t) for t in wrong], faults) as on:
        runs(on, plan)
        on.world.troubles = [t for t in on.world.troubles if t.kind == "interrupt" and t.done]
        for actor in on.world.actors:
            actor.troubles, actor.slowness = set(), 1.0
        runs(on)


@pytest.mark.parametrize("pool_kind", POOL_KINDS)
@pytest.mark.parametrize("policy", ["static", "random", "fold", "rlhfuse", "rlhfless", "solver+replan"])
def test_rules_of_every_policy_survive_losses(policy: str, pool_kind: str) -> None:
    """With moves of KV states and without; actors that were not in the plan are theirs too."""
    workload = Workload(np.full(len(LENGTHS), 3), range(len(LENGTHS)), LENGTHS, max_response_tokens=60)
    for seed in range(3):
        given = (PlanningProblem(workload, Cluster(1, 4, 1), LATENCY, Objective(0.96)), PlanningOptions())
        plan = make_policy(policy, tau=0.5).plan(*given)
        wrong = [Trouble("kill", 25 + seed), Trouble("stop", 60)] if seed else []
        with stage(pool_kind, seed, wrong) as on:
            record = on.run(plan, migration="recompute" if seed == 1 else "move")
            assert len(events(record, "lost")) <= len(wrong)
            if seed == 1:
                assert not [s for s in spans(record, "transfer") if s["bytes"]]
            on.trace()


# --- a pool from step to step -----------------------------------------------------------------------------------------


class Pools(RuleBasedStateMachine):
    """Steps, pauses, learners and losses in any order, with a pool of any life-cycle."""

    pool_kind = "local"

    @initialize(
        seed=st.integers(0, 1000),
        lifecycle=st.sampled_from(
            [
                Lifecycle.cold(),
                Lifecycle.serverful(),
                Lifecycle(),
                Lifecycle(idle_timeout_s=0.2),
                Lifecycle(prewarm=ShortestStep(0.05), patience_s=0.3),
                Lifecycle(idle_timeout_s=0.0, prewarm=ShortestStep(0.05), patience_s=0.3),
                Lifecycle(idle_timeout_s=0.1, prewarm=PlanForecast(0.02), patience_s=0.3),
            ]
        ),
    )
    def begin(self, seed: int, lifecycle: Lifecycle) -> None:
        """A pool without actors."""
        self._context = stage(self.pool_kind, seed, lifecycle=lifecycle, start_s=lambda number: 0.01 + 0.02 * (number % 3))
        self.on, self.lifecycle = self._context.__enter__(), lifecycle
        self.stopped = False

    @rule(
        groups=st.sampled_from([GROUPS, GROUPS[:1], GROUPS[:2], [[0], [], [1, 2]]]),
        wrong=st.lists(
            st.builds(Trouble, st.sampled_from(["kill", "stop", "fail", "interrupt"]), st.integers(1, 60)), max_size=2
        ),
        moves=st.booleans(),
        weights=st.integers(1, 3),
        rest_s=st.sampled_from([0.0, 0.1]),
        release=st.sampled_from(["done", "generation", "step"]),
    )
    def step(
        self, groups: list[list[int]], wrong: list[Trouble], moves: bool, weights: int, rest_s: float, release: str
    ) -> None:
        """One step, with weights of its own."""
        world, responses = self.on.world, sum(map(len, groups))
        world.troubles = [replace(t, turn=world.turns + t.turn) for t in wrong]
        plan = plan_of(groups, Restless(world.turns, 0.02, late=True) if moves else None, slots=3, release=release)
        runs(
            self.on, plan, requests=requests_of(LENGTHS[:responses]), engines=ScriptedEngines(weights),
            phases=NonGenerationPhases(0.0, rest_s, 1),
        )  # fmt: skip
        world.troubles = []
        for actor in world.actors:
            actor.troubles = set()

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.15, 0.5, 5.0]))
    def wait(self, seconds: float) -> None:
        """Something else happens."""
        self.on.world.sleep(seconds)

    @precondition(lambda self: self.on.waiting)
    @rule(which=st.integers(0, 3))
    def kill_one_that_waits(self, which: int) -> None:
        """It is not missed."""
        waiting = self.on.waiting
        waiting[which % len(waiting)].end("was killed by SIGKILL", 0)

    @precondition(lambda self: self.on.records)
    @rule()
    def finalise(self) -> None:
        """What was held until now is in the record."""
        record = self.on.records[-1]
        self.on.pool.finalise_allocations(record)
        warm_s = [a["end_s"] for a in record.allocations if a["role"] == "warm"]
        now_s = self.on.pool.now_s()
        assert max(warm_s, default=0.0) <= now_s + 1e-9
        if self.on.waiting and not any(a["role"] == "learner" for a in record.allocations):
            held_s = max(a["end_s"] for a in record.allocations)
            assert held_s == pytest.approx(now_s, abs=1e-6), "until now"

    @rule()
    def release(self) -> None:
        """Who waits ends."""
        self.on.pool.release()
        assert not self.on.waiting

    @invariant()
    def who_waits_is_alive_on_gpus_of_its_own(self) -> None:
        """Nobody is forgotten."""
        if not hasattr(self, "on"):
            return
        places = [gpu for place in self.on.pool.idle for gpu in place.gpu_ids]
        assert len(places) == len(set(places))
        living = {a.number for a in self.on.alive}
        assert living <= {a.number for a in self.on.waiting}
        if self.lifecycle == Lifecycle.cold():
            now_s = self.on.pool.now_s()
            kept = [one for one in self.on.pool._idle.values() if one.until_s is None or one.until_s > now_s]
            assert all(one.until_s == np.inf for one in kept), "only where the plan wishes it"

    def teardown(self) -> None:
        """All that was held is in the trace, once."""
        if not hasattr(self, "on"):
            return
        if self.on.records:
            self.on.pool.close(self.on.records[-1])
            whole = [r for r in self.on.records if r.completions]
            if whole:
                held = held_gpu_seconds(self.on.trace())
                assert held["total"].sum() == pytest.approx(held[["start", "sync", "work", "hold"]].to_numpy().sum())
        self._context.__exit__(None, None, None)


class RayPools(Pools):
    """The same with Ray actors."""

    pool_kind = "ray"


@pytest.mark.parametrize("machine", [Pools, pytest.param(RayPools, marks=pytest.mark.full)])
def test_a_pool_forgets_nobody_and_charges_every_second_once(machine: type[Pools]) -> None:
    if machine is RayPools:
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=12))  # type: ignore[no-untyped-call]

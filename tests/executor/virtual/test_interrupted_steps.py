"""Ctrl-C in the middle of a step on the virtual clock: what was done is a valid trace, and the next step runs in this kernel.

On the wall clock: ``test_scripted_ends.py`` and, with a real signal to real processes, ``test_nothing_left_behind.py``."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from executor_samples import Restless, plan_of, random_step
from torch_wall_samples import CLUSTER, LATENCY, actor_plan, factory_of, requests, token_bytes

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.executor import Executor, StepFailed, StepRecord, run_step
from rlhfless.trace import Trace
from solver.model.objective import NonGenerationPhases
from solver.model.runtime_rules import ActorView, Decision, StepState, Trigger


@dataclass
class CtrlC(Restless):
    """Moves responses about, and is interrupted by a real signal once so many of the step are complete."""

    completions: int = 5

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return replace(super().next_trigger(view) or Trigger(), step_completions=self.completions)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        if np.count_nonzero(state.complete) >= self.completions:
            signal.raise_signal(signal.SIGINT)
        return super().decide(now_s, state)


def assert_valid(record: StepRecord) -> None:
    """Its rows are a trace, in which every actor holds its GPUs for as long as it did anything."""
    done = [{"run": record.run, "step": record.step, "prompt_id": i, "sample": 0, **record.rollout_times(i)}
            for i in sorted(record.completions)]  # fmt: skip
    Trace(rollouts=pd.DataFrame(done), **{t: pd.DataFrame(getattr(record, t)) for t in ("allocations", "spans", "events")})
    held = {a["holder"]: a for a in record.allocations}
    assert set(held) >= {f"actor-{i}" for i in range(len(record.plan.actors))}
    for s in record.spans:
        a = held[s["holder"]]
        assert a["start_s"] - 1e-9 <= s["start_s"] < s["end_s"] <= a["end_s"] + 1e-9 <= record.end_s + 2e-9
    for i, c in record.completions.items():
        assert c.time_s <= held[record.actor_of[i]]["end_s"] + 1e-9
    decoded = sum(s["tokens"] for s in record.spans if s["phase"] == "decode")
    assert decoded >= sum(c.response_tokens for c in record.completions.values())


@pytest.mark.parametrize("release", ["done", "generation", "step"])
@pytest.mark.parametrize("seed", range(12))
def test_an_interrupted_step_leaves_a_valid_trace(seed: int, release: str) -> None:
    """Simulated, with responses under way between actors."""
    step = random_step(seed, transfer_base_s=0.05)
    rule = CtrlC(seed, completions=1 + seed)
    plan = plan_of([range(0, 6), range(6, 12), range(12, 18)], rule, slots=4, release=release)
    with pytest.raises(KeyboardInterrupt) as error:
        run_step(
            plan,
            step.requests(),
            SimulatedEngine,
            step.latency,
            step.cluster,
            phases=NonGenerationPhases(1.0, 1.0, 1),
            migration="move",
        )
    record = StepFailed.of(error.value).record
    assert seed < len(record.completions) < 18
    assert_valid(record)


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    return factory_of(longest=140)


def forced() -> list[Request]:
    """Long enough for things to happen in the middle."""
    lengths = np.random.default_rng(3).integers(20, 110, len(requests()))
    return [replace(r, target_tokens=int(n), max_tokens=110) for r, n in zip(requests(), lengths, strict=True)]


@pytest.mark.full
@pytest.mark.parametrize("clock", ["virtual", "measured"])
def test_the_next_step_runs_in_the_same_kernel(clock: str, factory: TorchEngineFactory) -> None:
    undisturbed = run_step(plan_of([range(24)]), forced(), factory, LATENCY, CLUSTER)
    engines = factory_of(longest=140)  # the executor gives the weights back
    charging = "measured" if clock == "measured" else "profile"
    with Executor(engines, CLUSTER, latency=LATENCY, charging=charging, migration="move") as executor:
        before = executor.run(actor_plan("static"), forced())
        with pytest.raises(KeyboardInterrupt) as error:
            executor.run(actor_plan("static", CtrlC(1, period_s=0.004, late=True)), forced())
        record = StepFailed.of(error.value).record
        assert 5 <= len(record.completions) < 24
        assert_valid(record)
        assert record.start_s >= before.end_s
        assert executor.next_step == 1
        after = executor.run(actor_plan("static"), forced())
        assert (after.step, after.start_s >= before.end_s) == (1, True)
        assert token_bytes(before) == token_bytes(after) == token_bytes(undisturbed)
        assert token_bytes(record).items() <= token_bytes(undisturbed).items()

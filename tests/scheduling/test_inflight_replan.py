"""Re-planning with a forecast that learns while the step runs: it is used, it never looks ahead, and the truth stays unseen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import StepRecord, run_step
from rlhfless.predict import EwmaPredictor, InFlightPredictor
from rlhfless.predict.length_model import InFlightLengths
from rlhfless.scheduling.replan import OracleReplan, SolverReplan
from rlhfless.simulate import LoggedStep, SimulationConfig, logged_steps, simulate
from solver import Cluster, LatencyModel
from solver.lengths.remaining import KnownLengths
from solver.lengths.survival import from_batch
from solver.model.runtime_rules import Decision

LATENCY = LatencyModel(
    "x", 2, 5.6e-3, 2.2e-5, 2.5e-8, prefill_base_s=5e-3, prefill_per_token_s=3e-5, transfer_base_s=5e-3,
    transfer_per_kv_token_s=1e-6, start_s=0.1, max_batch=128,
)  # fmt: skip
LIMIT = 600
SETTING = SimulationConfig(Cluster(2, 8, 2), LATENCY, max_response_tokens=LIMIT)


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    """Three visits of 48 prompts whose lengths change together from visit to visit."""
    rng = np.random.default_rng(0)
    level = rng.normal(5.0, 0.5, 48)
    parts = []
    for step in range(3):
        lengths = np.exp((level + rng.normal(0, 0.4, 48))[:, None] + rng.normal(0, 0.3, (48, 6)))
        prompt, sample = np.divmod(np.arange(lengths.size), 6)
        parts.append(
            pd.DataFrame(
                {
                    "run": "r",
                    "step": step,
                    "epoch": step,
                    "prompt_id": [f"p{p}" for p in prompt],
                    "sample": sample,
                    "prompt_tokens": 20,
                    "response_tokens": np.clip(lengths.ravel(), 1, LIMIT).astype(int),
                    "finish_reason": "stop",
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def last_step(log: pd.DataFrame, predictor: Any) -> LoggedStep:
    (step,) = logged_steps(log, predictor, LIMIT, steps=[2])
    return step


@dataclass
class Watched:
    """Another rule, with a note of what it decided when, and of its forecast at the last look."""

    rule: Any
    decided: list[tuple[float, list[Decision]]] = field(default_factory=list)
    name: str = "watched"

    def next_trigger(self, view):
        return self.rule.next_trigger(view)

    def decide(self, now_s, state):
        self.decided.append((now_s, self.rule.decide(now_s, state)))
        return self.decided[-1][1]


def watched(step: LoggedStep) -> StepRecord:
    plan = SolverReplan(looks_ahead=False).plan(*step.inputs(SETTING))
    return run_step(replace(plan, rule=Watched(plan.rule)), step.requests(), SimulatedEngine, LATENCY, SETTING.cluster)


def test_the_predictors_own_forecast_is_followed_and_learns_while_the_step_runs(log):
    step = last_step(log, InFlightPredictor())
    assert isinstance(step.forecast.remaining, InFlightLengths)
    rule = watched(step).rule.rule
    assert isinstance(rule.remaining, InFlightLengths)
    assert rule.remaining is not step.forecast.remaining
    assert 0 < len(rule.remaining.curve) < len(step.forecast.remaining.curve) == 48, (
        "prompts whose responses have ended need none"
    )
    assert last_step(log, EwmaPredictor()).forecast.remaining is None


def test_a_forecast_that_is_given_comes_first_and_the_truth_is_told_to_nobody_else(log):
    step = last_step(log, InFlightPredictor())
    given = step.inputs(SETTING)
    plan = SolverReplan(from_batch, looks_ahead=False).plan(*given)
    assert not isinstance(plan.rule.remaining, InFlightLengths)
    clairvoyant = step.inputs(SETTING, clairvoyant=True)
    assert clairvoyant[1].forecast is None
    assert isinstance(OracleReplan(looks_ahead=False).plan(*clairvoyant).rule.remaining, KnownLengths)


def test_decisions_depend_on_lengths_only_through_what_has_happened(log):
    """Two truths that agree on everything up to a time lead to the same decisions up to that time."""
    record = watched(last_step(log, InFlightPredictor()))
    middle = 0.5 * record.makespan_s
    late = [i for i, c in record.completions.items() if c.time_s > middle]
    rows = log.index[log["step"] == 2][late]
    other = log.copy()
    other.loc[rows, "response_tokens"] = np.maximum(other.loc[rows, "response_tokens"], LIMIT - np.arange(len(late)) % 50)
    again = watched(last_step(other, InFlightPredictor()))
    first, second = ([(t, d) for t, d in r.rule.decided if t <= middle] for r in (record, again))
    assert any(d for _, d in first)
    assert first == second


def test_a_simulation_takes_it_as_it_takes_any_predictor(log):
    result = simulate(log, SETTING, ["random", "solver+replan"], InFlightPredictor(), steps=[1, 2])
    again = simulate(log, SETTING, ["random", "solver+replan"], InFlightPredictor(), steps=[1, 2])
    columns = ["policy", "step", "time_s", "gpu_seconds", "moves"]
    pd.testing.assert_frame_equal(result.table[columns], again.table[columns])
    assert len(result.table) == 4

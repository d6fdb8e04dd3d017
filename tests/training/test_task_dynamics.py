"""The shipped run, and the warm-up it starts from, have the dynamics that a workload worth scheduling has."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
import task_dynamics  # noqa: E402

from rlhfless.trace import read_trace  # noqa: E402


def test_dynamics_are_those_of_the_rollouts():
    rows = [
        {"epoch": e, "prompt_id": p, "response_tokens": tokens, "reward": e / 2}
        for e, scale in ((0, 1), (1, 2), (2, 3))
        for p, mean in enumerate((10, 20, 40))
        for tokens in (scale * mean - 5, scale * mean + 5)
    ]
    found = task_dynamics.dynamics(pd.DataFrame(rows))
    assert found["rank correlation between epochs"] == pytest.approx(1)
    assert found["change of mean length"] == pytest.approx(2)
    assert found["rise of mean reward"] == pytest.approx(1)
    expected = np.mean([np.sqrt(50) / (scale * mean) for scale in (1, 2, 3) for mean in (10, 20, 40)])
    assert found["variation of length within a prompt"] == pytest.approx(expected)


def test_the_shipped_run_has_the_required_dynamics():
    trace = read_trace(ROOT / "data" / "traces" / "arithmetic-grpo")
    assert trace.rollouts["epoch"].nunique() >= 4
    found = task_dynamics.dynamics(trace.rollouts)
    for name in task_dynamics.REQUIRED:
        if name != "warm-up accuracy":
            assert task_dynamics.holds(name, found[name]), (name, found[name])


def test_the_shipped_plans_come_true():
    """From the second epoch on, planned and actual makespan differ by less than 25 % (median over steps)."""
    trace = read_trace(ROOT / "data" / "traces" / "arithmetic-grpo")
    decode = trace.allocations[trace.allocations["role"] == "decode"].groupby("step")
    actual = decode["end_s"].max() - decode["start_s"].min()
    planned = pd.Series({plan["step"]: plan["makespan_s"] for plan in trace.plans})
    epoch = trace.rollouts.groupby("step")["epoch"].first()
    later = epoch[epoch > 0].index
    assert ((actual - planned).abs() / actual).loc[later].median() < 0.25


@pytest.mark.nightly
def test_the_warm_up_leaves_something_to_learn():
    from rlhfless.training.run_start import make_model

    model, tokenizer = make_model(0, progress=False)
    answers = task_dynamics.answers(model, tokenizer)
    assert len(answers) == 1000
    assert task_dynamics.holds("warm-up accuracy", float(answers["right"].mean()))
    assert np.percentile(answers["response_tokens"], 2) >= 8
    assert np.percentile(answers["response_tokens"], 98) >= 150

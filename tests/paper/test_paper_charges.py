"""What steps are charged after generation, and what planning is said to take."""

from __future__ import annotations

import pandas as pd
import pytest
from paper_samples import Paper

from rlhfless.paper.lengths import GSM8K
from rlhfless.paper.machine import QWEN_3B_L40S
from rlhfless.paper.runs import Runs, compare
from rlhfless.paper.workloads import Sources, modelled
from rlhfless.scheduling.assignments import Static


def after_generation(paper: Paper, name: str, *keys: str, **where: str) -> pd.DataFrame:
    """``gpus``: the mean that each policy of a figure is charged from the end of generation to the end of the step."""
    rows = paper.table(name, **where)
    policies = rows[~rows["policy"].isin(["bound", "bound-on-all"])]
    by = policies.pivot_table(index=["policy", *keys], columns="scope", values=["time_s", "gpu_s"])
    rest = by.xs("step", axis=1, level="scope") - by.xs("generation", axis=1, level="scope")
    return pd.DataFrame({"gpus": rest["gpu_s"] / rest["time_s"]}).reset_index()


@pytest.mark.full
def test_no_step_is_charged_more_gpus_than_the_cluster_has_when_generation_is_over(paper: Paper) -> None:
    most = 16 * (1 + 1e-9)  # the testbed's
    charged = [
        after_generation(paper, "10", "panel", "algorithm", "data_set", "responses"),
        after_generation(paper, "11", "step", row="step"),
        after_generation(paper, "12", panel="total"),
        after_generation(paper, "13", "step", panel="scaling"),
    ]
    for found_here in charged:
        assert (found_here["gpus"] <= most).all()
        assert (found_here.query("policy == 'static'")["gpus"].round(6) == 8 + 3 * 2).all(), "the learner's and 3 actors'"
        assert (found_here.query("policy in ['elastic', 'elastic-90']")["gpus"].round(6) == 16).all(), "it learns on all"
    for name in ("2b", "17"):
        parts = paper.table(name).pivot_table(index=["algorithm", "policy"], columns=["of", "part"], values="amount")
        after = parts["cost"][["waiting", "prepare", "learn"]].sum(axis=1) / parts["time"][["prepare", "learn"]].sum(axis=1)
        assert (after <= most).all()


@pytest.mark.parametrize(("actors", "gpus"), [(3, 14), (4, 16), (8, 16)])
def test_a_learner_takes_gpus_from_waiting_actors_where_no_others_are_left(actors: int, gpus: int) -> None:
    history = modelled(GSM8K, 1, responses=16, epochs=2)
    outcome = compare(Runs(Sources(None)), history, QWEN_3B_L40S, "PPO", [Static(actors, name="static")])
    steps = outcome.steps
    after = (steps["step_gpu_s"] - steps["generation_gpu_s"]) / (steps["step_s"] - steps["generation_s"])
    assert after.tolist() == pytest.approx([gpus])
    waiting = (steps["step_idle_gpu_s"] - steps["generation_idle_gpu_s"]) / outcome.phases.seconds
    assert waiting.tolist() == pytest.approx([gpus - 8])


def test_every_plan_of_a_timed_policy_has_its_own_cpu_time() -> None:
    history = modelled(GSM8K, 1, responses=16, epochs=4)
    outcome = compare(Runs(Sources(None)), history, QWEN_3B_L40S, "PPO", ["static", "random"], timed=True)
    assert len(outcome.steps) == 6
    assert (outcome.steps["cpu_s"] > 0).all()

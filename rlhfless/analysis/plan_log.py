"""Plans every step of a log: how many actors the plan would have started, with its expected time and cost.

Input are the rollouts of one run; nothing is simulated. Lengths are predicted as in the paper, by the mean of the prompt's last
visit (EWMA of window 1). This takes one pass over the log, so a million responses take seconds. New prompts get the median of
the earlier steps. ``rlhfless.simulate`` measures what other predictors and scenarios gain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.simulate import SimulationConfig
from rlhfless.trace.schema.validation import refuse_several_runs
from solver.model.workload import Workload


def last_visits(rollouts: pd.DataFrame) -> pd.Series:
    """Return the mean length of each response's prompt in the epoch before (NaN in the first); index of the rows."""
    visits = rollouts.groupby(["prompt_id", "step"], sort=True)["response_tokens"].mean()
    before = visits.groupby(level="prompt_id", sort=False).shift(1).rename("before")
    keys = pd.MultiIndex.from_frame(rollouts[["prompt_id", "step"]])
    return pd.Series(before.reindex(keys).to_numpy(dtype=float), index=rollouts.index)


def plan_every_step(rollouts: pd.DataFrame, setting: SimulationConfig, steps: Sequence[int] | None = None) -> pd.DataFrame:
    """Plan each step from the steps before it, by policy ``solver``.

    Args:
        rollouts: rows of one run. steps: step numbers; all when None.

    Returns:
        One row per step: ``step, responses, mean_tokens`` (true), ``known`` (share of responses to prompts seen before),
        ``actors, makespan_s, gpu_seconds`` of the plan by predicted lengths, and its ``gap`` to the best one.

    Raises:
        TraceError: the log holds several runs.
        PlanningError: a response fits on no actor.
    """
    refuse_several_runs(rollouts["run"].unique())
    limit = setting.max_response_tokens or max(1, int(rollouts["response_tokens"].max()))
    predicted = last_visits(rollouts)
    medians, policy = _medians_before(rollouts), make_policy("solver")
    rows = []
    for step, of_step in rollouts.groupby("step", sort=True):
        if steps is not None and step not in steps:
            continue
        lengths = predicted.loc[of_step.index]
        predicted_share = float(lengths.notna().mean())
        guess = medians[int(step)]
        lengths = lengths.fillna(limit / 2 if np.isnan(guess) else guess).clip(1, limit)
        owner, _ = pd.factorize(of_step["prompt_id"])
        first = np.unique(owner, return_index=True)[1]
        prompt_tokens = of_step["prompt_tokens"].fillna(0).to_numpy(dtype=np.int64)[first]
        workload = Workload(prompt_tokens, owner, np.ceil(lengths.to_numpy()), max_response_tokens=limit)
        plan = policy.plan(setting.problem(workload), PlanningOptions(quick=True, seed=setting.seed))
        rows.append(
            {
                "step": int(step), "responses": len(of_step), "mean_tokens": float(of_step["response_tokens"].mean()),
                "known": predicted_share, "actors": len(plan.actors), "makespan_s": plan.makespan_s,
                "gpu_seconds": plan.gpu_seconds, "gap": plan.gap,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _medians_before(rollouts: pd.DataFrame) -> dict[int, float]:
    """Return, by step, the median of the earlier steps' median lengths; NaN for the first."""
    medians = rollouts.groupby("step", sort=True)["response_tokens"].median()
    before = medians.expanding().median().shift(1)
    return {int(step): float(value) for step, value in before.items()}

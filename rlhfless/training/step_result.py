"""Result of one training step: plan, record, texts, rewards, metrics, and the step's part of the trace."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.executor import StepRecord
from rlhfless.scheduling.policy import PlanningTime
from rlhfless.trace import Trace, step_metrics
from rlhfless.trace.metrics.phase_costs import STEP_PHASES, step_costs
from rlhfless.training.problem import RewardWarning
from solver.model.plan import Plan
from solver.model.plurals import counted


@dataclass(frozen=True, eq=False, repr=False)
class TrainedStep:
    """Result of one training step.

    Attributes:
        rollouts: its rows of the trace, with texts and rewards.
        planning: seconds of planning, and how many of them delayed generation.
        learning: numbers of the algorithm, such as the loss.
        judging: numbers of the rewards.
        evaluation: numbers on held-out prompts with the new weights (``Evaluator.numbers``); empty if no evaluation was due.
        meta: of the run, as in ``meta.json``.
        baseline: the evaluation of the weights before the first step, in the result of that step.
    """

    step: int
    plan: Plan
    record: StepRecord
    rollouts: pd.DataFrame
    planning: PlanningTime
    learning: Mapping[str, float] = field(default_factory=dict)
    judging: Mapping[str, float] = field(default_factory=dict)
    evaluation: Mapping[str, float] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        line = ", ".join(f"{name} {value}" for name, value in self.in_short.items())
        return f"TrainedStep(step {self.step}: {counted(len(self.rollouts), 'response')}, {line}; {self.record})"

    @cached_property
    def trace(self) -> Trace:
        """Return the step's part of the trace."""
        record, plan = self.record, {"step": self.step, **self.plan.to_dict(), **vars(self.planning)}
        allocations, spans, events = (pd.DataFrame(rows) for rows in (record.allocations, record.spans, record.events))
        return Trace(self.rollouts, allocations, spans, events, [plan], dict(self.meta))

    @property
    def mean_reward(self) -> float:
        """Mean reward of the step's responses."""
        return float(self.rollouts["reward"].mean())

    @property
    def in_short(self) -> dict[str, str]:
        """The step in one line: reward, tokens per response, actors and, if known, the mismatch of engine and learner (mean
        difference of log-probabilities) and the held-out accuracy or reward.
        """
        line = {
            "reward": f"{self.mean_reward:.2f}",
            "tokens": f"{self.rollouts['response_tokens'].mean():.0f}",
            "actors": str(len(self.plan.actors)),
        }
        if "mismatch_mean" in self.learning:
            line["mismatch"] = f"{self.learning['mismatch_mean']:.1g}"
        if self.evaluation:
            known = "accuracy" if "accuracy" in self.evaluation else "reward_mean"
            line[f"held-out {known.removesuffix('_mean')}"] = f"{self.evaluation[known]:.2f}"
        return line

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Metrics by name with unit: rewards; tokens; seconds of planning; seconds by phase, with the plan's promise for
        generation; ``gpu_seconds``, ``idle_gpu_seconds``; ``cost_usd``, NaN without a price. The algorithm's numbers are there
        as ``learn_...``, with seconds measured here, and those of an evaluation as ``eval_...``.
        """
        rows = self.rollouts
        sums = step_metrics(self.trace).iloc[0]
        phases = step_costs(self.trace, gpus=0).set_index("phase")["time_s"]
        numbers = {
            "reward_mean": self.mean_reward,
            "reward_std": float(rows["reward"].std(ddof=0)),
            "response_tokens_mean": float(rows["response_tokens"].mean()),
            "response_tokens_max": float(rows["response_tokens"].max()),
            "truncated_share": float(sums["truncated_share"]),
            "prediction_error_tokens": float(np.abs(rows["predicted_tokens"] - rows["response_tokens"]).mean()),
            "actors": float(len(self.plan.actors)),
            "moves": float(self.record.moves),
            **vars(self.planning),
            "planned_makespan_s": self.plan.makespan_s,
            "makespan_s": self.record.makespan_s,
            **{f"{name}_s": float(phases[name]) for name in STEP_PHASES},
            "step_s": float(sums["time_s"]),
            "gpu_seconds": float(sums["gpu_seconds"]),
            "idle_gpu_seconds": float(sums["idle_gpu_seconds"]),
            "cost_usd": float(sums["cost_usd"]),
        }
        if taken := sorted(self.judging.keys() & numbers.keys()):
            warnings.warn(
                f"the number {taken[0]!r} of a reward has the name of another metric of a step, and is left out; give the "
                "function, or what it logs with log_metric, another name",
                RewardWarning,
                stacklevel=2,
            )
        first = {name: numbers[name] for name in ("reward_mean", "reward_std")}
        numbers = {**first, **self.judging, **numbers}
        learned = {f"learn_{name}": float(value) for name, value in self.learning.items()}
        return numbers | learned | evaluation_metrics(self.evaluation)


def evaluation_metrics(evaluation: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of an evaluation by their names among metrics, ``eval_...``."""
    return {f"eval_{name}": float(value) for name, value in evaluation.items()}

"""Sums up what a whole logged run cost in GPU-seconds, and how much of it was idle: logged times where there are some.

A step takes its logged time. Where the log has only the time of generation, the mean seconds of the other phases are added. A
step without a logged time takes the mean of the simulated steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.analysis.framework_defaults import RunSetup
from rlhfless.analysis.gpu_seconds import Account, PhaseSeconds
from rlhfless.analysis.savings import saved_range
from rlhfless.trace import OpenedLog, with_step_times
from rlhfless.trace.schema.prices import dollars

OF_A_STEP = ("step_s", "generate_s", "response_tokens_mean")  # scalars that only a step of training has


@dataclass(frozen=True)
class RunCost:
    """What the steps of a whole run cost.

    Attributes:
        steps: number of them. logged_steps: those whose time was logged.
        gpus: that are paid for. time_s: of all steps together.
        low_s, high_s: the same, as far as it may differ: over resampled steps, and over all dispatches that the run may have
            used. Equal to ``time_s`` where every step was logged.
        idle_gpu_s: GPU-seconds in which a GPU had nothing to run.
        usd_per_gpu_hour: price of a GPU.
    """

    steps: int
    logged_steps: int
    gpus: int
    time_s: float
    low_s: float
    high_s: float
    idle_gpu_s: float
    usd_per_gpu_hour: float

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the run."""
        return self.gpus * self.time_s / 3600.0

    @property
    def usd(self) -> float:
        """Dollars of the run; NaN without a price."""
        return float(dollars(3600.0 * self.gpu_hours, self.usd_per_gpu_hour / 3600.0))

    @property
    def idle_share(self) -> float:
        """Share of the GPU-seconds that were idle."""
        return self.idle_gpu_s / (self.gpus * self.time_s) if self.time_s else 0.0

    @property
    def all_logged(self) -> bool:
        """Whether the time of every step was logged."""
        return self.logged_steps == self.steps


def run_cost(
    log: OpenedLog,
    account: Account,
    generation_s: Mapping[str, Mapping[int, float]],
    setup: RunSetup,
    phases: PhaseSeconds,
    usd_per_gpu_hour: float,
) -> RunCost:
    """Return what the run cost.

    Args:
        account: GPU-seconds of the simulated steps. generation_s: their seconds of generation, for each of
            ``setup.candidates``. phases: seconds of a step outside generation.
    """
    outside_s = phases.seconds if setup.synchronous else 0.0
    scalars = with_step_times(log.scalars, log.trace).scalars
    logged = _logged_s(scalars, outside_s, setup.synchronous)
    steps = steps_of_run(log)
    known = logged.reindex(steps).dropna()
    missing = len(steps) - len(known)
    means = [_range_of_mean(list(generation_s[name].values()), outside_s) for name in setup.candidates]
    own = float(account.steps["generation_s"].mean()) + outside_s
    known_s = float(known.sum())
    low, high = min(mean[0] for mean in means), max(mean[1] for mean in means)
    time_s = known_s + missing * own
    idle_s = float(account.lines.loc[account.lines["idle"], "gpu_s"].sum()) / len(account.steps) * len(steps)
    idle = min(idle_s, account.idle_share * account.gpus * time_s)  # a logged step may be shorter than a simulated one
    return RunCost(
        len(steps), len(known), account.gpus, time_s, known_s + missing * min(low, own), known_s + missing * max(high, own),
        idle, usd_per_gpu_hour,
    )  # fmt: skip


def steps_of_run(log: OpenedLog) -> list[int]:
    """Return the steps of training, in order: those with responses, and those with scalars that only such a step has."""
    scalars = with_step_times(log.scalars, log.trace).scalars
    of_training = scalars[scalars.reindex(columns=list(OF_A_STEP)).notna().any(axis=1)]["step"]
    return sorted({int(step) for step in (*log.trace.steps, *of_training)})


def _logged_s(scalars: pd.DataFrame, outside_s: float, synchronous: bool) -> pd.Series:
    """Return the seconds of steps with a logged time, by step; of generation alone where learning goes on beside it."""
    table = scalars.set_index("step").reindex(columns=["step_s", "generate_s"]).astype(float)
    table = table.where(np.isfinite(table) & (table > 0))
    generation = table["generate_s"] + outside_s
    return (table["step_s"].fillna(generation) if synchronous else generation).dropna()


def _range_of_mean(generation_s: list[float], outside_s: float) -> tuple[float, float]:
    """Return percentiles 5 and 95 of the mean seconds of a step, by resampling."""
    seconds = np.array(generation_s) + outside_s
    less, _, more = saved_range(seconds, np.ones(len(seconds)))  # saved of 1 s: 1 - mean
    return 1.0 - more, 1.0 - less

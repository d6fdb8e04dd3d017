"""Results of policies on one step at several time weights, and which of them are on a front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from rlhfless.errors import InputError
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.simulate.run import simulate_steps
from rlhfless.simulate.steps import LoggedStep, SimulationConfig


def check_time_weights(time_weights: Sequence[float]) -> None:
    """Refuse to simulate at no time weight.

    Raises:
        InputError: there is none.
    """
    if not len(time_weights):
        raise InputError("there is no time weight; at least one is needed, such as 0.5")


def at_time_weights(
    logged: LoggedStep,
    setting: SimulationConfig,
    policies: Sequence[str | SchedulingPolicy],
    time_weights: Sequence[float],
) -> list[pd.DataFrame]:
    """Plan and run a step under every policy, once per time weight, without bounds; the tables say at which."""
    tables = []
    for weight in time_weights:
        weighed = replace(setting, objective=replace(setting.objective, time_weight=weight), bound_work=0)
        tables.append(simulate_steps([logged], weighed, policies).steps.assign(time_weight=weight))
    return tables


def on_front(results: pd.DataFrame, by: str) -> pd.Series:
    """Return (R,) whether none with the same ``by`` is as fast and cheaper, or as cheap and faster.

    Args:
        results: sorted by ``time_s`` and ``gpu_seconds`` within each ``by``.
    """
    least = results.groupby(by, sort=False)["gpu_seconds"].transform(lambda cost: cost.cummin().shift(fill_value=np.inf))
    return results["gpu_seconds"] < least

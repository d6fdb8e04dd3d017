"""Computes what other schedules would have saved of a run's time and GPU-seconds, as a range, and the most that is possible.

Inputs are the parts of the run's own steps and simulated results of other schedules on the same steps. There are two savings,
because GPUs are bought in two ways. Reserved GPUs are paid for the whole step, used or not, so only time can be saved. GPUs
that can be released (or given to another job) save their GPU-seconds. What no schedule changes (preparation, learning, syncing)
is part of both schedules.

The range of a saving covers two unknowns. One is which steps were sampled (percentiles 5 and 95 over resampled steps). The
other is how the run assigned its responses (one completed trace for each way in which it may have).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rlhfless.simulate import Comparison

RESAMPLES = 2_000
PERCENTILES = (5.0, 95.0)


def savings(
    simulation: Comparison, policies: Sequence[str], own: Sequence[pd.DataFrame], steps: Sequence[int] | None = None
) -> pd.DataFrame:
    """Return the share of time and GPU-seconds that each policy would have saved, compared with the run itself.

    Args:
        simulation: generation alone (no ``NonGenerationPhases``) under ``policies``, with the bound of every step.
        own: the run's own steps (``step_parts`` of its traces), for each dispatch that it may have used; the likeliest comes
            first. Phases outside generation are added to the policies' steps, too.
        steps: steps to compare; all simulated ones when None.

    Returns:
        One row per policy: ``policy``, ``replicas low`` and ``replicas high`` (the fewest and the most that it starts in a
        step), and for ``time`` (all GPUs are paid for in any case) and ``GPU-seconds`` (GPUs are
        released when an actor is done) the columns ``low, mean, high``: shares of the run's own, negative where a policy loses;
        ``mean`` is against the likeliest dispatch. ``time most`` and ``GPU-seconds most`` are the most that any schedule saves;
        of GPU-seconds, any schedule that takes as long as the policy does.
    """
    chosen = [int(step.step) for step in simulation.logged] if steps is None else list(steps)
    results = simulation.table.set_index(["policy", "step"])
    bounds = {logged.step: bound for logged, bound in zip(simulation.logged, simulation.bounds, strict=True)}
    shortest_s = np.array([bounds[step].shortest_s() for step in chosen])
    runs = [parts.set_index("step").loc[chosen] for parts in own]
    rows = []
    for policy in policies:
        time_s, gpu_s = (
            np.array([float(results.loc[(policy, step), column]) for step in chosen]) for column in ("time_s", "gpu_seconds")
        )
        min_gpu_s = np.array([bounds[step].gpu_seconds(t) for step, t in zip(chosen, time_s, strict=True)])
        started = [int(results.loc[(policy, step), "actors"]) for step in chosen]
        row: dict[str, object] = {"policy": policy, "replicas low": min(started), "replicas high": max(started)}
        times = [(_column(run, "time_s"), _column(run, "fixed_s")) for run in runs]
        row |= _saved("time", [(time_s + fixed, shortest_s + fixed, base) for base, fixed in times])
        costs = []
        for run in runs:
            fixed = _column(run, "fixed_gpu_s") + _column(run, "waiting_gpus") * time_s
            costs.append((gpu_s + fixed, min_gpu_s + fixed, _column(run, "gpu_s")))
        rows.append(row | _saved("GPU-seconds", costs))
    return pd.DataFrame(rows)


def _column(run: pd.DataFrame, name: str) -> np.ndarray:
    return np.asarray(run[name], dtype=float)


def _saved(kind: str, runs: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Return the cells of a kind of saving, from (steps,) of a policy, of the least that is possible, and of each own run."""
    ranges = [saved_range(ours, base) for ours, _, base in runs]
    return {
        f"{kind} low": min(low for low, _, _ in ranges), f"{kind} mean": ranges[0][1],
        f"{kind} high": max(high for _, _, high in ranges),
        f"{kind} most": max(saved_range(best, base)[2] for _, best, base in runs),
    }  # fmt: skip


def saved_range(ours: np.ndarray, base: np.ndarray) -> tuple[float, float, float]:
    """Return low, mean and high of the share of ``base`` that ``ours`` saves, both (steps,), by resampling steps."""
    mean = 1.0 - float(ours.sum() / base.sum())
    if len(base) < 2:
        return mean, mean, mean
    drawn = np.random.default_rng(0).integers(0, len(base), (RESAMPLES, len(base)))
    low, high = np.percentile(1.0 - ours[drawn].sum(axis=1) / base[drawn].sum(axis=1), PERCENTILES)
    return float(low), mean, float(high)

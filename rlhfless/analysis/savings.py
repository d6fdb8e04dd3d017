"""Computes what other schedules would have saved of a run's time and GPU-seconds, as a range, and the most that is possible.

Inputs are simulated results of the run's own schedule and of others on the same steps. There are two savings, because GPUs are
bought in two ways. Reserved GPUs are paid for the whole step, used or not, so only time can be saved. GPUs that can be released
(or given to another job) save their GPU-seconds. What no schedule changes (preparation, learning, syncing) is part of both
schedules.

The range of a saving covers two unknowns. One is which steps were sampled (percentiles 5 and 95 over resampled steps). The
other is how the run assigned its responses (all candidates of its set-up).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.analysis.framework_defaults import RunSetup
from rlhfless.analysis.gpu_seconds import PhaseSeconds
from rlhfless.simulate import Simulation
from solver.model.cluster import Cluster

RESAMPLES = 2_000
PERCENTILES = (5.0, 95.0)


class StepTotals(NamedTuple):
    """Seconds and GPU-seconds of whole steps, each (steps,)."""

    time_s: np.ndarray
    gpu_s: np.ndarray


def savings(
    simulation: Simulation,
    theirs: Mapping[str, Mapping[int, float]],
    setup: RunSetup,
    cluster: Cluster,
    policies: Sequence[str],
    phases: PhaseSeconds | None = None,
    *,
    steps: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Return what each policy would have saved against the own schedule of a logged run that has no executed trace.

    Args:
        simulation: generation alone (no ``NonGenerationPhases``) under ``policies``.
        theirs: for each of ``setup.candidates`` the seconds of generation by step (``generation_s``).
        phases: the step outside generation, the same for both schedules.
        steps: only these; all that were simulated when None.

    Returns:
        See ``compared``; the base is the schedule of each of ``setup.candidates``, with all GPUs allocated.
    """
    phases = PhaseSeconds() if phases is None or not setup.synchronous else phases  # else learning is a part of no step
    learner_gpus = setup.counted_learner_gpus
    chosen = [int(step.step) for step in simulation.logged] if steps is None else list(steps)
    fixed = cluster.gpus * phases.seconds if setup.colocated else 0.0

    def whole(generation_s: np.ndarray, gpu_s: np.ndarray) -> StepTotals:
        time_s = generation_s + phases.seconds
        return StepTotals(time_s, np.asarray(gpu_s + fixed + learner_gpus * time_s))

    base = {}
    for name in setup.candidates:
        time_s = np.array([theirs[name][step] for step in chosen]) + phases.seconds
        base[name] = StepTotals(time_s, (cluster.gpus + learner_gpus) * time_s)
    return compared(simulation, policies, chosen, base, whole)


def compared(
    simulation: Simulation,
    policies: Sequence[str],
    steps: Sequence[int],
    base: Mapping[str, StepTotals],
    whole: Callable[[np.ndarray, np.ndarray], StepTotals],
) -> pd.DataFrame:
    """Return what each policy would have saved against what the run's own steps took.

    Args:
        simulation: generation alone under ``policies``, with the bound of every step. steps: the steps that are compared.
        base: totals of the run's own steps, for each possible dispatch; the likeliest comes first.
        whole: whole steps from (steps,) seconds and GPU-seconds of generation.

    Returns:
        One row per policy: ``policy``, ``replicas low`` and ``replicas high`` (the fewest and the most that it starts in a
        step), and for ``time`` (all GPUs are paid for in any case) and ``GPU-seconds`` (GPUs are
        released when an actor is done) the columns ``low, mean, high``: shares of the run's own, negative where a policy loses;
        ``mean`` is against the likeliest base. ``time most`` and ``GPU-seconds most`` are the most that any schedule saves; of
        GPU-seconds, any schedule that takes as long as the policy does.
    """
    results = simulation.steps.set_index(["policy", "step"])
    bounds = {logged.step: bound for logged, bound in zip(simulation.logged, simulation.bounds, strict=True)}
    shortest_s = np.array([bounds[step].shortest_s() for step in steps])

    def against(ours: np.ndarray, theirs: Sequence[np.ndarray]) -> tuple[float, float, float]:
        ranges = [saved_range(ours, executed) for executed in theirs]
        return min(low for low, _, _ in ranges), ranges[0][1], max(high for _, _, high in ranges)

    rows = []
    for policy in policies:
        time_s, gpu_s = (
            np.array([float(results.loc[(policy, step), column]) for step in steps]) for column in ("time_s", "gpu_seconds")
        )
        min_gpu_s = np.array([bounds[step].gpu_seconds(t) for step, t in zip(steps, time_s, strict=True)])
        ours = whole(time_s, gpu_s)
        started = [int(results.loc[(policy, step), "actors"]) for step in steps]
        row: dict[str, object] = {"policy": policy, "replicas low": min(started), "replicas high": max(started)}
        for kind, policy_values, best, theirs in (
            ("time", ours.time_s, whole(shortest_s, min_gpu_s).time_s, [whole_step.time_s for whole_step in base.values()]),
            ("GPU-seconds", ours.gpu_s, whole(time_s, min_gpu_s).gpu_s, [whole_step.gpu_s for whole_step in base.values()]),
        ):
            row |= dict(zip((f"{kind} low", f"{kind} mean", f"{kind} high"), against(policy_values, theirs), strict=True))
            row[f"{kind} most"] = against(best, theirs)[2]
        rows.append(row)
    return pd.DataFrame(rows)


def generation_s(simulation: Simulation, policies: Sequence[str]) -> dict[str, dict[int, float]]:
    """Return the seconds of generation by policy and step, of a simulation of generation alone."""
    steps = simulation.steps
    return {
        name: {int(row.step): float(row.time_s) for row in steps[steps["policy"] == name].itertuples()} for name in policies
    }


def saved_range(ours: np.ndarray, base: np.ndarray) -> tuple[float, float, float]:
    """Return low, mean and high of the share of ``base`` that ``ours`` saves, both (steps,), by resampling steps."""
    mean = 1.0 - float(ours.sum() / base.sum())
    if len(base) < 2:
        return mean, mean, mean
    drawn = np.random.default_rng(0).integers(0, len(base), (RESAMPLES, len(base)))
    low, high = np.percentile(1.0 - ours[drawn].sum(axis=1) / base[drawn].sum(axis=1), PERCENTILES)
    return float(low), mean, float(high)

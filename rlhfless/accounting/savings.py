"""What better schedules would have saved of a run's time and GPU-seconds, from where to where, and the most that there is.

Knows simulated results of the run's own schedule and of others on the same steps; nothing of how they came about. Two
questions, because GPUs are bought in two ways: reserved GPUs are paid for the whole step whoever works on them, so only
time can be saved; GPUs that can be given back (or to somebody else) save their seconds. What no schedule changes (preparation,
learning, syncing) is part of both sides.

The range of a saving is over what is not known: which steps were looked at (percentiles 5 and 95 over resampled steps) and how
the run dealt its responses (all candidates of its set-up).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from rlhfless.accounting.account import Rest
from rlhfless.accounting.run_setup import RunSetup
from rlhfless.simulate import Simulation
from solver.cluster import Cluster

RESAMPLES = 2_000
PERCENTILES = (5.0, 95.0)


def savings(
    simulation: Simulation,
    theirs: Mapping[str, Mapping[int, float]],
    setup: RunSetup,
    cluster: Cluster,
    policies: Sequence[str],
    rest: Rest | None = None,
    *,
    steps: Sequence[int] | None = None,
) -> pd.DataFrame:
    """What each policy would have saved against the run's own schedule.

    Args:
        simulation: generation alone (no ``StepRest``) under ``policies``.
        theirs: for each of ``setup.candidates`` the seconds of generation by step (``generation_s``).
        rest: the step outside generation, the same on both sides.
        steps: only these; all that were simulated when None.

    Returns:
        One row per policy: ``policy``, and for ``time`` (all GPUs are paid for in any case) and ``GPU-seconds`` (GPUs are given
        back when an actor is done) the columns ``low, mean, high``: shares of the run's own, negative where a policy loses;
        ``mean`` is against ``setup.dispatch``. ``time most`` and ``GPU-seconds most``: what any schedule saves at most, of
        GPU-seconds one that takes as long as the policy does.
    """
    rest = Rest() if rest is None or not setup.synchronous else rest  # else learning is a part of no step
    learner_gpus = setup.counted_learner_gpus
    chosen = [int(one.step) for one in simulation.logged] if steps is None else list(steps)
    results = simulation.steps.set_index(["policy", "step"])
    bounds = {one.step: bound for one, bound in zip(simulation.logged, simulation.bounds, strict=True)}
    fixed = cluster.gpus * rest.seconds if setup.colocated else 0.0
    base_s = {name: np.array([theirs[name][step] for step in chosen]) + rest.seconds for name in setup.candidates}
    shortest = np.array([bounds[step].shortest_s() for step in chosen]) + rest.seconds

    def whole(generation_s: np.ndarray, gpu_s: np.ndarray) -> np.ndarray:
        return np.asarray(gpu_s + fixed + learner_gpus * (generation_s + rest.seconds))

    def against(ours: np.ndarray, base: Mapping[str, np.ndarray]) -> tuple[float, float, float]:
        ranges = [_range(ours, base[name]) for name in setup.candidates]
        return min(low for low, _, _ in ranges), ranges[0][1], max(high for _, _, high in ranges)

    base_gpu_s = {name: (cluster.gpus + learner_gpus) * seconds for name, seconds in base_s.items()}
    rows = []
    for policy in policies:
        time_s, gpu_s = (
            np.array([float(results.loc[(policy, step), column]) for step in chosen]) for column in ("time_s", "gpu_seconds")
        )
        least = np.array([bounds[step].gpu_seconds(t) for step, t in zip(chosen, time_s, strict=True)])
        row: dict[str, object] = {"policy": policy}
        for kind, own, best, base in (
            ("time", time_s + rest.seconds, shortest, base_s),
            ("GPU-seconds", whole(time_s, gpu_s), whole(time_s, least), base_gpu_s),
        ):
            row |= dict(zip((f"{kind} low", f"{kind} mean", f"{kind} high"), against(own, base), strict=True))
            row[f"{kind} most"] = against(best, base)[2]
        rows.append(row)
    return pd.DataFrame(rows)


def generation_s(simulation: Simulation, policies: Sequence[str]) -> dict[str, dict[int, float]]:
    """Seconds of generation by policy and step, of a simulation of generation alone."""
    steps = simulation.steps
    return {
        name: {int(row.step): float(row.time_s) for row in steps[steps["policy"] == name].itertuples()} for name in policies
    }


def _range(ours: np.ndarray, base: np.ndarray) -> tuple[float, float, float]:
    """Low, mean and high of the share of ``base`` that ``ours`` saves, both (steps,): sums, resampled over steps."""
    mean = 1.0 - float(ours.sum() / base.sum())
    if len(base) < 2:
        return mean, mean, mean
    drawn = np.random.default_rng(0).integers(0, len(base), (RESAMPLES, len(base)))
    low, high = np.percentile(1.0 - ours[drawn].sum(axis=1) / base[drawn].sum(axis=1), PERCENTILES)
    return float(low), mean, float(high)

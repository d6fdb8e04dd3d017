"""Simulates a logged run with other numbers and sizes of replicas, each with all its GPUs held until a step ends.

This is what frameworks do when their number of GPUs is configured. Generation is by the run's own dispatch. Preparation and
learning on the GPUs that generate are taken to need the same GPU-seconds on any number of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhfless.analysis.framework_defaults import DISPATCHES, RunSetup
from rlhfless.analysis.gpu_seconds import PhaseSeconds
from rlhfless.analysis.savings import saved_range
from rlhfless.analysis.what_if import profiles_of_the_same_model
from rlhfless.latency import load_profile, scaled
from rlhfless.simulate import LoggedStep, SimulationConfig, execute_steps
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel


@dataclass(frozen=True, eq=False)
class GpuCount:
    """A number of replicas of one size, and what the steps of the run would have taken with it.

    Attributes:
        gpus_per_actor: size of a replica. replicas: number of them. gpus: all that are paid for, those of the learner included.
        time_s: (steps,) seconds of whole steps, for each dispatch that the run may have used, the likeliest first.
    """

    gpus_per_actor: int
    replicas: int
    gpus: int
    time_s: Mapping[str, np.ndarray]

    @property
    def seconds(self) -> float:
        """Seconds of all steps together, under the likeliest dispatch."""
        return float(next(iter(self.time_s.values())).sum())

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of all steps together, under the likeliest dispatch."""
        return self.gpus * self.seconds

    def saved(self, own: GpuCount) -> tuple[float, float, float]:
        """Return low, mean and high of the share of GPU-seconds that this saves against the run's own numbers; over resampled
        steps, and over every dispatch that the run may have used."""
        ranges = [saved_range(self.gpus * self.time_s[name], own.gpus * own.time_s[name]) for name in own.time_s]
        return min(one[0] for one in ranges), ranges[0][1], max(one[2] for one in ranges)


def gpu_counts(
    logged: Sequence[LoggedStep], setting: SimulationConfig, setup: RunSetup, phases: PhaseSeconds, *, factor: float = 1.0
) -> tuple[GpuCount, ...]:
    """Return the run's own numbers first, then other numbers of replicas, and other sizes that have a profile.

    Args:
        logged: the steps. setting: cluster and calibrated profile. factor: ratio of the run's times to its profile; other
            profiles are assumed to be off by the same factor.

    Raises:
        PlanningError: the run's own replicas cannot hold the responses.
    """
    cluster = setting.cluster
    names = list(dict.fromkeys([setup.dispatch, *(name for name in setup.candidates if name in DISPATCHES)]))
    found: list[GpuCount] = []
    for latency, replicas in _choices(setting, factor):
        size = latency.gpus_per_actor
        gpus = replicas * size if latency is setting.latency and found else cluster.gpus
        of_count = Cluster(replicas, size, size, cluster.kind, cluster.usd_per_gpu_hour)
        try:
            changed = replace(setting, cluster=of_count, latency=latency, bound_work=0)
            executed = execute_steps(logged, changed, names)
        except PlanningError:
            if not found:
                raise
            continue
        outside_s = phases.seconds * (cluster.gpus / gpus if setup.colocated else 1.0) if setup.synchronous else 0.0
        time_s = {name: np.array([rec.end_s - rec.start_s for rec, _ in executed[name]]) + outside_s for name in names}
        found.append(GpuCount(size, replicas, gpus + setup.counted_learner_gpus, time_s))
    return tuple(found)


def _choices(setting: SimulationConfig, factor: float) -> Iterator[tuple[LatencyModel, int]]:
    """Yield the run's own profile and replicas; other numbers of them, from 1 to twice as many; other sizes on as many GPUs."""
    cluster, own = setting.cluster, setting.latency
    most = cluster.max_actors
    yield own, most
    halves = {max(1, round(most * share)) for share in (0.125, 0.25, 0.375, 0.5, 0.75, 2.0)}
    for replicas in sorted(halves - {most}):
        yield own, replicas
    for name in profiles_of_the_same_model(own.name):
        other = load_profile(name)
        if other.kind == cluster.kind and other.gpus_per_actor <= cluster.gpus_per_node:
            yield scaled(other, factor), cluster.nodes * (cluster.gpus_per_node // other.gpus_per_actor)

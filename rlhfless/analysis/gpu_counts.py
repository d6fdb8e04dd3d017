"""Simulates a logged run with other numbers, sizes and kinds of replicas, each with all its GPUs held until a step ends.

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
from rlhfless.latency import PriceError, list_profiles, load_profile, profiles_of_the_same_model, scaled, usd_per_gpu_hour
from rlhfless.simulate import LoggedStep, SimulationConfig, execute_steps
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel


@dataclass(frozen=True, eq=False)
class GpuCount:
    """A number of replicas of one size and kind, and what the steps of the run would have taken with it.

    Attributes:
        kind: of its GPUs. gpus_per_actor: size of a replica. replicas: number of them.
        gpus: all that are paid for, those of the learner included. usd_per_gpu_hour: of one; 0 where it is not known.
        time_s: (steps,) seconds of whole steps, for each dispatch that the run may have used, the likeliest first.
    """

    kind: str
    gpus_per_actor: int
    replicas: int
    gpus: int
    usd_per_gpu_hour: float
    time_s: Mapping[str, np.ndarray]

    @property
    def key(self) -> tuple[str, int, int]:
        """Kind, size and number: no two choices have the same."""
        return self.kind, self.gpus_per_actor, self.replicas

    @property
    def seconds(self) -> float:
        """Seconds of all steps together, under the likeliest dispatch."""
        return float(next(iter(self.time_s.values())).sum())

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of all steps together, under the likeliest dispatch."""
        return self.gpus * self.seconds

    def saved_time(self, own: GpuCount) -> tuple[float, float, float]:
        """Return low, mean and high of the share of time that this saves against the run's own numbers.

        Ranges are over resampled steps and every dispatch that the run may have used.
        """
        return self._saved(own, 1.0)

    def saved_cost(self, own: GpuCount) -> tuple[float, float, float]:
        """Return the same of the cost: of GPU-seconds for the same kind of GPU, of dollars for another; NaN without prices."""
        prices = 1.0
        if self.kind != own.kind:
            known = self.usd_per_gpu_hour > 0 and own.usd_per_gpu_hour > 0
            prices = self.usd_per_gpu_hour / own.usd_per_gpu_hour if known else np.nan
        return self._saved(own, prices * self.gpus / own.gpus)

    def _saved(self, own: GpuCount, weight: float) -> tuple[float, float, float]:
        if np.isnan(weight):
            return (np.nan,) * 3
        ranges = [saved_range(weight * self.time_s[name], own.time_s[name]) for name in own.time_s]
        return min(one[0] for one in ranges), ranges[0][1], max(one[2] for one in ranges)


def gpu_counts(
    logged: Sequence[LoggedStep], setting: SimulationConfig, setup: RunSetup, phases: PhaseSeconds, *, factor: float = 1.0
) -> tuple[GpuCount, ...]:
    """Return the run's own numbers first, then other numbers of replicas, and other sizes and kinds that have a profile.

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
        gpus = cluster.gpus if not found else replicas * size
        price = cluster.usd_per_gpu_hour if latency.kind == cluster.kind else _price(latency.kind, cluster)
        of_count = Cluster(replicas, size, size, latency.kind, price)
        try:
            changed = replace(setting, cluster=of_count, latency=latency, bound_work=0)
            executed = execute_steps(logged, changed, names)
        except PlanningError:
            if not found:
                raise
            continue
        outside_s = phases.seconds * (cluster.gpus / gpus if setup.colocated else 1.0) if setup.synchronous else 0.0
        time_s = {name: np.array([rec.end_s - rec.start_s for rec, _ in executed[name]]) + outside_s for name in names}
        found.append(GpuCount(latency.kind, size, replicas, gpus + setup.counted_learner_gpus, price, time_s))
    return tuple(found)


def _choices(setting: SimulationConfig, factor: float) -> Iterator[tuple[LatencyModel, int]]:
    """Yield the run's own profile and replicas; other numbers of them, from 1 to twice as many; other sizes on as many GPUs.

    The last are other kinds of GPUs, as many as the run had.
    """
    cluster, own = setting.cluster, setting.latency
    most = cluster.max_actors
    yield own, most
    halves = {max(1, round(most * share)) for share in (0.125, 0.25, 0.375, 0.5, 0.75, 2.0)}
    for replicas in sorted(halves - {most}):
        yield own, replicas
    others = profiles_of_the_same_model(own.name) if own.name in list_profiles() else []
    models = [scaled(load_profile(name), factor) for name in others]
    for other in sorted(models, key=lambda model: (model.kind != cluster.kind, model.kind, model.gpus_per_actor)):
        if other.gpus_per_actor <= cluster.gpus_per_node:
            yield other, cluster.nodes * (cluster.gpus_per_node // other.gpus_per_actor)


def _price(kind: str, cluster: Cluster) -> float:
    """Return the list price of a kind, scaled by the ratio of the run's own price to its list price: spot buyers pay spot
    prices. 0 where one is unknown."""
    try:
        price = usd_per_gpu_hour(cluster.kind)
        return usd_per_gpu_hour(kind) * (cluster.usd_per_gpu_hour / price if price else 1.0)
    except PriceError:
        return 0.0

"""Lists the actors that may be started (offers): every actor size on every pool, with its latency model, price and count.

Inputs are a cluster and latency models; the options on actor counts are also checked against the number of responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError, as_given, is_whole
from solver.model.latency import LatencyModel
from solver.model.plurals import counted
from solver.model.workload import Workload

Latencies = LatencyModel | Mapping[tuple[str, int], LatencyModel]
"""One latency model, or one for every (GPU kind, GPUs per actor) that actors may have."""
UNNAMED = "gpu"  # the kind of GPUs and of latency models whose kind was not given


@dataclass(frozen=True, eq=False)
class Offer:
    """Actors of one size on one pool, as planning may start them.

    Attributes:
        pool: index of the pool; kind, market, usd_per_gpu_s, prewarmed: of the pool.
        latency: of one actor; gpus: GPUs of one actor; max_actors: how many fit if the pool serves nothing else.
    """

    pool: int
    kind: str
    market: str
    usd_per_gpu_s: float
    prewarmed: int
    latency: LatencyModel
    max_actors: int

    @property
    def gpus(self) -> int:
        """GPUs of one actor."""
        return self.latency.gpus_per_actor


def latency_of(latency: Latencies, kind: str, gpus_per_actor: int) -> LatencyModel:
    """Return the latency model of an actor of ``gpus_per_actor`` GPUs of ``kind``.

    Raises:
        PlanningError: the mapping has none.
    """
    if isinstance(latency, LatencyModel):
        return latency
    try:
        return latency[kind, gpus_per_actor]
    except KeyError:
        known = ", ".join(f"{g} x {k}" for k, g in sorted(latency)) or "none"
        raise PlanningError(f"no latency model for an actor of {gpus_per_actor} x {kind}; there are: {known}") from None


def offers_of(cluster: Cluster | MixedCluster, latency: Latencies) -> tuple[Offer, ...]:
    """Return every actor that may be started, pools in order and sizes rising, without the sizes that no node of a pool can
    hold.

    Raises:
        PlanningError: latency models do not fit the cluster, a key of the mapping differs from its model, or no actor fits.
    """
    if isinstance(cluster, Cluster):
        model = latency_of(latency, cluster.kind, cluster.gpus_per_actor)
        if _differ(cluster.kind, model.kind):
            raise PlanningError(
                f"the cluster's GPUs are of kind {cluster.kind!r}, but latency profile {model.name!r} is of {model.kind!r}; "
                f"use kind={model.kind!r} or a profile of {cluster.kind!r}"
            )
        if cluster.gpus_per_actor != model.gpus_per_actor:
            raise PlanningError(
                f"the cluster gives {counted(cluster.gpus_per_actor, 'GPU')} to an actor, but latency profile {model.name!r} "
                f"is for {model.gpus_per_actor}; state {model.gpus_per_actor} per actor, or a profile of that size"
            )
        offered = [(cluster.kind, model)]
    elif isinstance(latency, LatencyModel):
        offered = [(latency.kind, latency)]
    else:
        for (kind, gpus), model in latency.items():
            if gpus != model.gpus_per_actor:
                raise PlanningError(
                    f"latency model {model.name!r} is for {counted(model.gpus_per_actor, 'GPU')}, but is listed for "
                    f"{gpus} x {kind}; list it under its own number of GPUs"
                )
            if _differ(kind, model.kind):
                raise PlanningError(
                    f"latency model {model.name!r} is of kind {model.kind!r}, but is listed for {gpus} x {kind}; list it under "
                    f"its own kind"
                )
        offered = [(kind, model) for (kind, _), model in sorted(latency.items(), key=lambda item: item[0])]
    kinds = [kind for kind, _ in offered]
    if priced := [pool.kind for pool in cluster.pools if pool.kind not in kinds]:
        raise PlanningError(
            f"the GPUs of kind {priced[0]!r} have no latency model; there are models for "
            f"{', '.join(dict.fromkeys(kinds)) or 'none'}, so add one or leave these GPUs out"
        )
    offers = [
        Offer(i, pool.kind, pool.market, pool.usd_per_gpu_s, pool.prewarmed, model, pool.max_actors(model.gpus_per_actor))
        for i, pool in enumerate(cluster.pools)
        for kind, model in offered
        if kind == pool.kind and model.gpus_per_actor <= pool.gpus_per_node
    ]
    if not offers:
        pools = ", ".join(f"{p.gpus_per_node} x {p.kind} a node" for p in cluster.pools)
        models = ", ".join(f"{m.gpus_per_actor} x {k}" for k, m in offered) or "none"
        raise PlanningError(f"no actor fits: the pools have {pools}, the latency models are for {models}")
    return tuple(offers)


def _differ(kind: str, other: str) -> bool:
    """Return whether two GPU kinds are named and differ; a kind that was not given is ``gpu``."""
    return UNNAMED not in (kind, other) and kind.casefold() != other.casefold()


def several(offers: Sequence[Offer]) -> bool:
    """Return whether planning has to choose between offers.

    A single offer on a later pool counts as several, because GPU ids of a single pool count from 0.
    """
    return len(offers) > 1 or offers[0].pool > 0


def one_pool(cluster: Cluster | MixedCluster, offer: Offer) -> Cluster:
    """Return the cluster of the only offer, which is on the first pool."""
    if isinstance(cluster, Cluster):
        return cluster
    pool = cluster.pools[offer.pool]
    return Cluster(
        pool.nodes, pool.gpus_per_node, offer.gpus, pool.kind, pool.usd_per_gpu_hour, pool.market, pool.prewarmed,
        pool.node_bytes_per_s, pool.network_bytes_per_s,
    )  # fmt: skip


def check_priced(cost: str, cluster: Cluster | MixedCluster) -> None:
    """Refuse dollars as the unit of cost where nothing has a price (a PlanningError)."""
    if cost == "usd" and not any(pool.usd_per_gpu_hour > 0 for pool in cluster.pools):
        raise PlanningError("cost is counted in USD, but usd_per_gpu_hour is 0; give a price or count GPU-seconds")


def check_counts(min_actors: int, **most: int | None) -> None:
    """Refuse numbers of actors that are not whole numbers of at least 1 (a PlanningError); ``most`` may be None."""
    for name, value in (("min_actors", min_actors), *most.items()):
        if (value is not None or name not in most) and not is_whole(value):
            raise PlanningError(f"{name} is {as_given(value)}; a whole number of actors is needed")
        if value is not None and value < 1:
            raise PlanningError(f"{name} is {as_given(value)}; at least 1 is needed")


def check_options(
    workload: Workload,
    offers: Sequence[Offer],
    min_actors: int,
    max_actors: int | None,
    keep_together: bool,
) -> None:
    """Refuse bounds on the number of actors that no plan can satisfy.

    Raises:
        PlanningError: the message names the option and what would be right.
    """
    pools = {offer.pool for offer in offers}
    fit = sum(max(offer.max_actors for offer in offers if offer.pool == pool) for pool in pools)
    items = len(np.unique(workload.prompt_of)) if keep_together else len(workload)
    check_counts(min_actors=min_actors, max_actors=max_actors)
    if max_actors is not None and max_actors < min_actors:
        raise PlanningError(f"max_actors is {max_actors}, below min_actors of {min_actors}; raise it")
    if min_actors > fit:
        raise PlanningError(f"min_actors is {min_actors}, but only {fit} actors fit into the cluster; lower it or add nodes")
    if min_actors > items:
        what = "prompts whose responses stay together" if keep_together else "responses"
        raise PlanningError(f"min_actors is {min_actors}, but there are only {items} {what}; lower it")

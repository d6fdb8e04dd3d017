"""Times the transfers of KV caches from the prefill actor to decode actors: seconds per transfer, and the order on each link.

Inputs: a cluster's links and latency models. The prefill actor has two links that work in parallel: one to the GPUs of its own
node, one to all other nodes. Each sends one transfer at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.cluster import Cluster, GpuPool, MixedCluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray


def pool_of_node(cluster: Cluster | MixedCluster, node: int) -> GpuPool:
    """Return the pool of a node; nodes count through the pools in order.

    Raises:
        PlanningError: the cluster has no such node.
    """
    first = 0
    for pool in cluster.pools:
        if first <= node < first + pool.nodes:
            return pool
        first += pool.nodes
    raise PlanningError(f"there is no node {node}; the cluster has nodes 0 to {first - 1}")


def bandwidth_bytes_per_s(source: GpuPool, target: GpuPool, same_node: bool) -> float | None:
    """Return bytes per second within a node, or between nodes of two pools (the slower end counts).

    None if the bandwidth of a pool is not known.
    """
    if same_node:
        return source.node_bytes_per_s
    speeds = [pool.network_bytes_per_s for pool in (source, target)]
    return None if None in speeds else min(s for s in speeds if s is not None)


def transfer_coefficients(latency: LatencyModel, bytes_per_s: float | None) -> tuple[float, float]:
    """Return (base seconds, seconds per KV token) of a transfer.

    Over the link if its bandwidth and the bytes of a token are known, else from the latency model.
    """
    if bytes_per_s is None or latency.kv_bytes_per_token <= 0:
        return latency.transfer_base_s, latency.transfer_per_kv_token_s
    return latency.transfer_base_s, latency.kv_bytes_per_token / bytes_per_s


def schedule_transfers(
    release_s: ArrayLike, transfer_s: ArrayLike, tail_s: ArrayLike, links: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Return (N,) when each transfer starts and ends.

    A free link serves, of the transfers that can start, the one with the longest tail (Schrage's rule). That is optimal for the
    last end when all can start at once (Jackson's rule).

    Args:
        release_s: (N,) when it can start: the prefill is done and the receiver is ready.
        transfer_s: (N,) how long it takes. tail_s: (N,) the receiver's time after it. links: (N,) index of its link.
    """
    release, length, tail = (np.asarray(v, dtype=float) for v in (release_s, transfer_s, tail_s))
    start = release.copy()
    end = release.copy()
    for link in set(links):
        waiting = sorted((i for i in range(len(release)) if links[i] == link and length[i] > 0), key=lambda i: -release[i])
        ready: list[tuple[float, int]] = []
        now = 0.0
        while waiting or ready:
            if not ready:
                now = max(now, float(release[waiting[-1]]))
            while waiting and release[waiting[-1]] <= now:
                heapq.heappush(ready, (-float(tail[waiting[-1]]), waiting.pop()))
            transfer = heapq.heappop(ready)[1]
            start[transfer], now = now, now + float(length[transfer])
            end[transfer] = now
    return start, end


def prefill_done_s(tokens: ArrayLike, latency: LatencyModel, ready_s: float, streamed: bool) -> FloatArray:
    """Return (N,) when the prefill actor has computed the prefixes of each decode actor.

    Args:
        tokens: (N,) tokens that it computes for each actor and has not computed for an earlier one. Actors are in the order in
            which it serves them.
        ready_s: when it can start. streamed: one call per actor with new tokens, whose caches are sent at once; else one call
            for all, after which everything is sent (the paper's timing).
    """
    new_tokens = np.asarray(tokens)
    if not streamed:
        total = int(new_tokens.sum())
        return np.full(len(new_tokens), ready_s + (float(latency.prefill_s(total)) if total else 0.0))
    calls: NDArray[np.bool_] = new_tokens > 0
    return np.asarray(ready_s + np.cumsum(np.where(calls, latency.prefill_s(new_tokens), 0.0)))

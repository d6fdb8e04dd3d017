"""Parses the GPU pools of a mixed cluster from command-line texts, each pool with its latency profiles."""

from __future__ import annotations

from collections.abc import Sequence

from rlhfless.latency.gpus import NODE_GPUS, usd_per_gpu_hour
from rlhfless.latency.profile import ProfileError, load_profile
from solver.model.cluster import Cluster, GpuPool, MixedCluster
from solver.model.latency import LatencyModel

FORM = "GPUS:PROFILE[,PROFILE...][:USD[:MARKET]], such as 8:h100-qwen2.5-3b-tp1,h100-qwen2.5-3b-tp2:2.5:preemptible"


def mixed_pools(
    first: Cluster, latency: LatencyModel, pools: Sequence[str]
) -> tuple[MixedCluster, dict[tuple[str, int], LatencyModel]]:
    """Return a mixed cluster of ``first`` and ``pools``, and its latency models by (kind, GPUs per actor).

    Args:
        pools: each of the form ``GPUS:PROFILE[,PROFILE...][:USD[:MARKET]]``. Nodes have eight GPUs, or all if there are fewer;
            the default price is the list price of kind and market.

    Raises:
        ProfileError: a pool is not of this form, or its profiles are of several kinds; one sentence.
    """
    models = {(latency.kind, latency.gpus_per_actor): latency}
    made = [first.pools[0]]
    for text in pools:
        count, _, rest = text.partition(":")
        names, _, rest = rest.partition(":")
        price, _, market = rest.partition(":")
        if not count.isdigit() or int(count) < 1 or not names:
            raise ProfileError(f"--pool {text}: is not of the form {FORM}")
        try:
            usd = float(price) if price else None
        except ValueError:
            raise ProfileError(f"--pool {text}: {price!r} is not a price in USD per GPU-hour; the form is {FORM}") from None
        offered = [load_profile(name) for name in names.split(",")]
        kinds = sorted({model.kind for model in offered})
        if len(kinds) > 1:
            raise ProfileError(f"--pool {text}: its profiles are for {' and '.join(kinds)}; give each GPU kind its own --pool")
        for model in offered:
            same_size = models.setdefault((model.kind, model.gpus_per_actor), model)
            if same_size.name != model.name:
                raise ProfileError(
                    f"--pool {text}: profiles {same_size.name} and {model.name} are both for {model.gpus_per_actor} x "
                    f"{model.kind}; give one of them"
                )
        per_node = min(NODE_GPUS, int(count))
        if int(count) % per_node:
            raise ProfileError(
                f"--pool {text}: {count} GPUs do not fill whole nodes of {per_node}; give a multiple of {per_node}"
            )
        market = market or "on-demand"
        made.append(
            GpuPool(
                kinds[0], int(count) // per_node, per_node, usd_per_gpu_hour(kinds[0], market) if usd is None else usd, market
            )
        )
    return MixedCluster(made), models

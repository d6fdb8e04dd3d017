"""GPUs, latency profile and price of a study: as stated, else as the trace recorded them.

A profile and a price that neither states are assumed and named. A number of GPUs is never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError
from rlhfless.latency import PriceError, load_profile, usd_per_gpu_hour
from rlhfless.report.not_stated import PRICE, PROFILE, price_assumed, profile_assumed, stand_in_profile
from solver.model.cluster import Cluster
from solver.model.errors import as_given
from solver.model.latency import LatencyModel

NODE_GPUS = 8


@dataclass(frozen=True)
class Hardware:
    """GPUs, latency profile and price as a user states them; None where something was not stated.

    Attributes:
        gpus: of the cluster. gpus_per_node: 8, or all if they are fewer, when None. gpus_per_actor: the profile's when None.
        profile: name of a shipped latency profile, or the path of a JSON file.
        usd_per_gpu_hour: the list price of the profile's GPU kind when None.
    """

    gpus: int | None = None
    gpus_per_node: int | None = None
    gpus_per_actor: int | None = None
    profile: str | Path | None = None
    usd_per_gpu_hour: float | None = None

    def cluster(self) -> tuple[Cluster, LatencyModel]:
        """Return the cluster and the latency model; ``gpus`` and ``profile`` must not be None.

        Raises:
            InputError: the number of GPUs is not a multiple of the GPUs per node.
            ProfileError: there is no such profile, or its file is broken.
            PriceError: the GPU kind has no list price, and none is stated.
        """
        assert self.gpus is not None
        assert self.profile is not None
        latency = load_profile(self.profile)
        per_node = min(NODE_GPUS, self.gpus) if self.gpus_per_node is None else self.gpus_per_node
        if self.gpus % per_node:
            raise InputError(f"gpus is {self.gpus}, which is no multiple of the {per_node} GPUs per node; give whole nodes")
        try:
            price = usd_per_gpu_hour(latency.kind) if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour
        except PriceError as error:
            raise PriceError(f"{error}; or give hardware=Hardware(usd_per_gpu_hour=...)") from None
        per_actor = latency.gpus_per_actor if self.gpus_per_actor is None else self.gpus_per_actor
        return Cluster(self.gpus // per_node, per_node, per_actor, latency.kind, price), latency

    def completed(self, meta: Mapping[str, Any], source: str) -> tuple[Hardware, dict[str, str]]:
        """Return the same with what a trace recorded, and a profile in any case, in place of None.

        Args:
            meta: of the trace; empty for a log that is none. source: its path, for messages.

        Returns:
            The hardware, whose number of GPUs is None where neither says it; and what was assumed, one sentence each, by what
            was not stated.

        Raises:
            InputError: the trace's ``meta.json`` has a cluster or profile of another form than runs write.
        """
        refuse_wrong_meta(Path(source), meta)
        recorded, assumed, stated = meta.get("cluster") or {}, {}, self
        if self.gpus is None and "nodes" in recorded:
            per_node = self.gpus_per_node or recorded["gpus_per_node"]
            stated = replace(self, gpus=recorded["nodes"] * recorded["gpus_per_node"], gpus_per_node=per_node)
        stand_in = stand_in_profile(stated.gpus)
        if self.profile is None and not meta.get("profile"):
            assumed[PROFILE] = profile_assumed(stand_in)
        profile = self.profile or meta.get("profile") or stand_in
        if self.usd_per_gpu_hour is None:
            assumed[PRICE] = price_assumed(load_profile(profile).kind)
        return replace(stated, profile=profile), assumed


def refuse_wrong_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Refuse a trace whose meta.json has a cluster, profile or config of another form than runs write.

    Raises:
        InputError: the message names the key, its value and the form that is needed.
    """

    def is_count(value: Any) -> bool:
        return isinstance(value, int) and value > 0

    cluster, profile, config = (meta.get(key) for key in ("cluster", "profile", "config"))
    sizes = [cluster[key] for key in ("nodes", "gpus_per_node") if key in cluster] if isinstance(cluster, dict) else []
    if cluster and (not isinstance(cluster, dict) or len(sizes) == 1 or not all(map(is_count, sizes))):
        wrong, needed = "cluster", "an object with whole numbers above 0 as nodes and gpus_per_node, or with neither,"
    elif profile and not isinstance(profile, str):
        wrong, needed = "profile", "a profile's name"
    elif config and not isinstance(config, dict):
        wrong, needed = "config", "an object"
    elif config and config.get("max_response_tokens") is not None and not is_count(config["max_response_tokens"]):
        wrong, needed = "config", "an object with a whole number above 0 as max_response_tokens, or without it,"
    else:
        return
    raise InputError(f"{path / 'meta.json'}: {wrong} is {as_given(meta[wrong])}; {needed} is needed")

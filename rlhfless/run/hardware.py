"""GPUs, latency profile and price of a study: as stated, else as the trace recorded them.

A profile and a price that neither states are assumed and named. A number of GPUs is never assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhfless.analysis.assumptions import PRICE, PROFILE
from rlhfless.errors import InputError
from rlhfless.latency import PriceError, load_profile, other_sizes, usd_per_gpu_hour
from rlhfless.latency.counts import gpu_number
from rlhfless.latency.gpus import NODE_GPUS
from rlhfless.report.not_stated import NO_PRICE, price_assumed, profile_assumed, profile_of_size_assumed, stand_in_profile
from rlhfless.trace import response_limit
from solver.model.cluster import Cluster
from solver.model.errors import as_given, is_number
from solver.model.latency import LatencyModel
from solver.model.plurals import counted


@dataclass(frozen=True)
class Hardware:
    """GPUs, latency profile and price as a user states them; None means not stated.

    Attributes:
        gpus: number of GPUs of the cluster.
        gpus_per_node: when None 8, or ``gpus`` if fewer.
        gpus_per_actor: GPUs of one replica (tensor parallelism); the profile's when None.
        profile: name of a shipped latency profile, or the path of a JSON file.
        usd_per_gpu_hour: price of a GPU for an hour, in USD; the list price of the profile's GPU kind when None. 0 means no
            price: costs are then in GPU-seconds.

    Raises:
        InputError: a number of GPUs is not a whole number above 0, or more than any cluster has; or the profile or the price is
            of the wrong type.
    """

    gpus: int | None = None
    gpus_per_node: int | None = None
    gpus_per_actor: int | None = None
    profile: str | Path | None = None
    usd_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        for name in ("gpus", "gpus_per_node", "gpus_per_actor"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, gpu_number(name, value))
        if self.profile is not None and not isinstance(self.profile, str | Path):
            raise InputError(f"profile is {as_given(self.profile)}; the name of a latency profile or a path is needed")
        if self.usd_per_gpu_hour is not None and not is_number(self.usd_per_gpu_hour, 0):
            raise InputError(f"usd_per_gpu_hour is {as_given(self.usd_per_gpu_hour)}; a price of 0 or more is needed")

    def cluster(self) -> tuple[Cluster, LatencyModel]:
        """Return the cluster and the latency model.

        Raises:
            InputError: ``gpus`` or ``profile`` is not stated, the number of GPUs is not a multiple of the GPUs per node, or
                actors of the profile do not fit, but those of another one of the same model and GPU kind would.
            ProfileError: there is no such profile, or its file is broken.
            PriceError: the GPU kind has no list price, and none is stated.
        """
        if self.gpus is None or self.profile is None:
            missing = "gpus" if self.gpus is None else "profile"
            raise InputError(
                f"{missing} of the hardware is not stated; give both, as in Hardware(gpus=8, profile='cpu-tiny-qwen2')"
            )
        latency = load_profile(self.profile)
        per_node = self._per_node
        if self.gpus % per_node:
            raise InputError(f"gpus is {self.gpus}, which is not a multiple of the {per_node} GPUs per node; give whole nodes")
        try:
            price = usd_per_gpu_hour(latency.kind) if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour
        except PriceError as error:
            raise PriceError(f"{error}; or give hardware=Hardware(usd_per_gpu_hour=...)") from None
        per_actor = latency.gpus_per_actor if self.gpus_per_actor is None else self.gpus_per_actor
        if fitting := self._fitting(self.profile):
            wanted = self.gpus_per_actor or f"at most {per_node}"
            raise InputError(
                f"profile {latency.name!r} has {counted(latency.gpus_per_actor, 'GPU')} per actor, but these GPUs allow "
                f"{wanted}; give profile={fitting!r}"
            )
        return Cluster(self.gpus // per_node, per_node, per_actor, latency.kind, price), latency

    @property
    def _per_node(self) -> int:
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        return NODE_GPUS if self.gpus is None else min(NODE_GPUS, self.gpus)

    def _fitting(self, profile: str | Path) -> str | None:
        """Return a profile of the same model and GPU kind whose actors fit, if there is one and those of ``profile`` do not."""

        def fits(size: int) -> bool:
            return size <= self._per_node and self.gpus_per_actor in (None, size)

        if fits(load_profile(profile).gpus_per_actor):
            return None
        return next((model.name for model in reversed(other_sizes(profile)) if fits(model.gpus_per_actor)), None)

    def completed(self, meta: Mapping[str, Any], source: str, kind: str | None = None) -> tuple[Hardware, dict[str, str]]:
        """Return the hardware with every None replaced by what a trace recorded; a profile is assumed if none is known.

        If actors of a profile that the user did not name do not fit the GPUs, one of the same model and GPU kind stands in.
        GPUs of unknown kind have no price, because the assumed profile is of other GPUs.

        Args:
            meta: ``meta.json`` of the trace; empty for other logs.
            source: path of the log, for messages.
            kind: kind of GPU, if the user states it.

        Returns:
            The hardware, with ``gpus`` None if neither the user nor the trace states it; and the assumptions, one sentence
            each, by the fact that was not stated.

        Raises:
            InputError: the trace's ``meta.json`` has a cluster or profile in an unknown form.
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
        if self.profile is None and (fitting := stated._fitting(profile)) is not None:
            assumed[PROFILE] = profile_of_size_assumed(fitting, str(profile))
            profile = fitting
        stated = replace(stated, profile=profile)
        if self.usd_per_gpu_hour is None:
            of_profile = load_profile(profile).kind
            named = PROFILE not in assumed or kind == of_profile
            assumed[PRICE] = price_assumed(of_profile) if named else NO_PRICE
            stated = stated if named else replace(stated, usd_per_gpu_hour=0.0)
        return stated, assumed


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
    elif (limit := response_limit(meta)) is not None and not is_count(limit):
        wrong, needed = "config", "an object with a whole number above 0 as max_response_tokens, or without it,"
    else:
        return
    raise InputError(f"{path / 'meta.json'}: {wrong} is {as_given(meta[wrong])}; {needed} is needed")

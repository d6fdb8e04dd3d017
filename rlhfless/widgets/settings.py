"""Settings of a what-if as one value: GPUs, price, objective and predictor, convertible to JSON and to Python code.

Profiles, prices and predictors are given by name and checked here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from numbers import Integral, Real
from typing import Any

from rlhfless.analysis import ProfileScale
from rlhfless.errors import InputError
from rlhfless.latency import PriceError, list_profiles, load_profile, read_profile, usd_per_gpu_hour
from rlhfless.latency.gpus import NODE_GPUS
from rlhfless.predict import EwmaPredictor, InFlightPredictor, Predictor, unknown_predictor
from rlhfless.simulate import SimulationConfig
from rlhfless.widgets.loaded_run import RunWithTimes
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel
from solver.model.objective import Objective

PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "last visit": EwmaPredictor,
    "average of 3 visits": lambda: EwmaPredictor(3),
    "inflight": InFlightPredictor,
}
KINDS: dict[str, tuple[tuple[type, ...], Callable[[Any], Any], str]] = {
    "profile": ((str, os.PathLike), os.fspath, "the name of a profile or the path of its file"),
    "gpus": ((Integral,), int, "a whole number"),
    "gpus_per_node": ((Integral,), int, "a whole number"),
    "time_weight": ((Real,), float, "a number"),
    "tau": ((Real,), float, "a number"),
    "usd_per_gpu_hour": ((Real,), float, "a number"),
    "predictor": ((str,), str, "the name of a predictor"),
    "any_size": ((bool,), bool, "True or False"),
}
"""What each setting is: types that are taken, what they are made into, and the same in words."""
ALWAYS_STATED = ("tau", "predictor")
"""Settings that a run does not have."""


@dataclass(frozen=True)
class Settings:
    """Settings of a what-if: GPUs, price, objective and predictor. What is None is as in the run.

    Args:
        profile: latency profile, the name of a shipped one or the path of a file; it sets the GPU kind and the GPUs per actor.
        gpus: in the cluster; up to ``gpus_per_node`` are one node, more are whole nodes.
        gpus_per_node: in a whole node; where the run has a single node and None is given, at least 8.
        any_size: the plan chooses the GPUs per actor where there are profiles of several sizes, as ``run.plan`` does; if not,
            all actors have the size of ``profile``.
        time_weight: w in ``T^w C^(1-w)``; 1 is time only, 0 is cost only. tau: of the policy ``rlhfless``; 1 never cuts.
        usd_per_gpu_hour: price; for GPUs of another kind than the run's, None is their list price.
        predictor: one of ``PREDICTORS``.

    Raises:
        InputError: a value is of another type or out of its range, or the GPUs hold no actor.
        ProfileError: there is no such profile, or its file is broken.
    """

    profile: str | None = None
    gpus: int | None = None
    time_weight: float | None = None
    tau: float = 0.7
    usd_per_gpu_hour: float | None = None
    predictor: str = "last visit"
    gpus_per_node: int | None = None
    any_size: bool | None = None

    def __post_init__(self) -> None:
        for name, (types, make, needed) in KINDS.items():
            value = getattr(self, name)
            if value is None and name not in ALWAYS_STATED:
                continue
            if isinstance(value, bool) is not (types == (bool,)) or not isinstance(value, types):
                raise InputError(f"{name} is {value!r:.80}; {needed} is needed")
            object.__setattr__(self, name, make(value))
        if self.profile is not None:
            latency_of(self.profile)  # refuses what is no profile
        if self.predictor not in PREDICTORS:
            raise InputError(unknown_predictor(self.predictor, PREDICTORS))
        for name in ("gpus", "gpus_per_node"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"{name} is {count}; at least 1 is needed")
        self._check_nodes()
        if not 0 < self.tau <= 1:
            raise InputError(f"tau is {self.tau}; a share above 0 and up to 1 is needed")
        if self.time_weight is not None and not 0 <= self.time_weight <= 1:
            raise InputError(f"time_weight is {self.time_weight}; a number from 0 to 1 is needed")
        price = self.usd_per_gpu_hour
        if price is not None and not (math.isfinite(price) and price >= 0):
            raise InputError(f"usd_per_gpu_hour is {price}; a finite price of 0 or more is needed")

    def _check_nodes(self) -> None:
        """Refuse GPUs that are no whole nodes, or hold no actor (an InputError), as far as they are given."""
        gpus, per_node = self.gpus, self.gpus_per_node
        if gpus is not None and per_node is not None and not fill_nodes(gpus, per_node):
            raise InputError(f"gpus is {gpus}; 1 to {per_node}, or a multiple of {per_node}, is needed")
        if self.profile is None:
            return
        per_actor = latency_of(self.profile).gpus_per_actor
        for name, count in (("gpus", gpus), ("gpus_per_node", per_node)):
            if count is not None and count < per_actor:
                raise InputError(
                    f"{name} is {count}, but an actor of profile {self.profile} takes {per_actor}; give at least {per_actor}"
                )

    def of_run(self, run: RunWithTimes) -> Settings:
        """Return the settings with all that is None taken from a run, as ``rlhfless.load`` returns it.

        The price is the run's where the GPUs are of its kind; the list price stays None.

        Raises:
            InputError: neither these settings nor the run state a number of GPUs, or the GPUs hold no actor.
        """
        stated, profile = run.hardware, run.profile if self.profile is None else self.profile
        known: dict[str, Any] = {
            "profile": profile,
            "time_weight": run.objective.time_weight,
            "any_size": stated.gpus_per_actor is None,
            "gpus_per_node": NODE_GPUS,
        }
        if self.gpus is None or stated.gpus is not None:
            cluster = run.setting.cluster  # refuses a run whose number of GPUs nobody states
            known |= _of_nodes(cluster.nodes, cluster.gpus_per_node)
        if latency_of(profile).kind == latency_of(run.profile).kind:
            known["usd_per_gpu_hour"] = stated.usd_per_gpu_hour
        return replace(self, **{name: value for name, value in known.items() if getattr(self, name) is None})

    @cached_property
    def setting(self) -> SimulationConfig:
        """The settings as a ``SimulationConfig`` for ``rlhfless.simulate``; a whole node has 8 GPUs where it is not given.

        Raises:
            InputError: profile, GPUs or time weight are not given; or no price is, and there is no list price of the profile's
                GPU kind.
        """
        if self.profile is None or self.gpus is None or self.time_weight is None:
            missing = next(name for name in ("profile", "gpus", "time_weight") if getattr(self, name) is None)
            raise InputError(f"{missing} of the settings is None, as in a run; give it, or call Settings(...).of_run(run)")
        latency = latency_of(self.profile)
        try:
            price = usd_per_gpu_hour(latency.kind) if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour
        except PriceError as error:
            raise InputError(f"{error}; give usd_per_gpu_hour for profile {self.profile}") from None
        per_node = min(self.gpus, NODE_GPUS if self.gpus_per_node is None else self.gpus_per_node)
        cluster = Cluster(self.gpus // per_node, per_node, latency.gpus_per_actor, latency.kind, price)
        return SimulationConfig(cluster, latency, Objective(self.time_weight), tau=self.tau)

    def to_json(self) -> str:
        """Return one JSON object with the arguments of ``Settings`` by name."""
        return json.dumps(asdict(self), indent=2)

    def to_python(self, source: str, step: int, scale: ProfileScale, max_response_tokens: int | None = None) -> str:
        """Return lines of Python that compute the same without a widget.

        Args:
            source: the log's path; the empty text where it has none, then the code needs it as ``trace``.
            scale: of latency profiles, to the run's own times.
            max_response_tokens: the longest response allowed; the trace's own, or the longest of the log, when None.
        """
        log = repr(source) if source else "trace"
        limit = "" if max_response_tokens is None else f", max_response_tokens={max_response_tokens}"
        given = {name: value for name, value in asdict(self).items() if value is not None}
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return (
            "import rlhfless as rl\nfrom rlhfless.analysis import ProfileScale\n"
            "from rlhfless.widgets import Settings, WhatIf\n\n"
            f"run = rl.load({log}{limit}, verbose=False)\n"
            f"what_if = WhatIf(run, step={step}, scale={scale!r})\n"
            f"planned = what_if.plan(Settings({arguments}))\n"
            "others = what_if.alternatives(planned)\n"
            "print(planned.plan)\nprint(planned.actors)\nprint(others.table)\n"
        )


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with some of them changed.

    Raises:
        InputError: they are no settings, a name is no setting's, or a value is wrong.
    """
    if not isinstance(settings, Settings):
        raise InputError(
            f"settings is of type {type(settings).__name__}; Settings(...) is needed, or single settings such as gpus=8"
        )
    unknown = [name for name in changes if name not in KINDS]
    if unknown:
        raise InputError(f"there is no setting {unknown[0]!r}; the settings are {', '.join(KINDS)}")
    return replace(settings, **changes)


def fill_nodes(gpus: int, gpus_per_node: int) -> bool:
    """Return whether so many GPUs are a part of one node or whole nodes."""
    return gpus <= gpus_per_node or gpus % gpus_per_node == 0


@lru_cache(maxsize=32)
def latency_of(profile: str) -> LatencyModel:
    """Return the latency model of a profile, read once."""
    return load_profile(profile)


def _of_nodes(nodes: int, gpus_per_node: int) -> dict[str, Any]:
    """Return the settings of a cluster of such nodes; a single node may be a part of one."""
    return {"gpus": nodes * gpus_per_node, "gpus_per_node": gpus_per_node if nodes > 1 else max(NODE_GPUS, gpus_per_node)}


def models(*names: str) -> dict[str, dict[int, str]]:
    """Return ``kind · model`` → GPUs per actor → the profile of both, of shipped profiles and those ``names`` by name or path.

    A second profile of the same kind, model and size has an entry of its own, which ends in its name or path.
    """
    by_kind: dict[str, dict[int, str]] = {}
    for name in dict.fromkeys((*list_profiles(), *names)):
        profile = read_profile(name)
        kind, size = f"{profile['kind']} · {profile['model']}", int(profile["gpus_per_actor"])
        if size in by_kind.get(kind, {}):
            kind += f" · {name}"
        by_kind.setdefault(kind, {})[size] = name
    return by_kind

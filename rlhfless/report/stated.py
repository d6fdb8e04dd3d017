"""What a diagnosis may take as known of a run's GPUs: what was stated or recorded of them, and nothing that was assumed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from rlhfless.analysis import FRAMEWORK_DEFAULTS
from rlhfless.analysis.assumptions import PRICE, PROFILE, Assumptions
from rlhfless.diagnosis import Stated
from rlhfless.latency import list_gpus, list_profiles, read_profile
from rlhfless.simulate import SimulationConfig


def stated_of(
    *,
    gpus: int | None,
    learner_gpus: int | None,
    gpus_per_actor: int | None,
    profile: str,
    usd_per_gpu_hour: float | None,
    max_response_tokens: int | None,
    assumed: Collection[str],
) -> Stated:
    """Return what is known of a run beside its log.

    Args:
        gpus: that generate; the learner's too where ``learner_gpus`` is None or 0. profile: name or file.
        assumed: what nobody stated (``report.not_stated``): profile and price are not known then.

    Raises:
        ProfileError: there is no such profile, or its file is broken.
    """
    known = {} if PROFILE in assumed else read_profile(profile)
    kind, learner = known.get("kind"), learner_gpus or None
    return Stated(
        gpus=gpus if gpus is None or learner is None else gpus + learner,
        gpus_generate=None if learner is None else gpus,
        gpus_train=learner,
        gpu=kind if kind in {row["kind"] for row in list_gpus()} else None,  # not one of its own, nor emulated ones
        tensor_parallel=gpus_per_actor or known.get("gpus_per_actor"),
        usd_per_gpu_hour=None if PRICE in assumed else usd_per_gpu_hour,
        model=known.get("model"),
        max_response_tokens=max_response_tokens,
    )


def stated_phases_of(assumptions: Assumptions, framework: str) -> dict[str, Any]:
    """Return the stated seconds of a step outside generation, by name; nothing where learning does not follow generation."""
    habit = FRAMEWORK_DEFAULTS.get(framework)
    if habit is not None and not habit.synchronous:  # a step is not the sum of its phases
        return {}
    return {"prepare_s": assumptions.prepare_s, "learn_s": assumptions.learn_s}


def stated_in(setting: SimulationConfig | None, assumptions: Assumptions, framework: str) -> Stated:
    """Return the same of a setting; a latency model that is no shipped profile is known by its GPUs alone."""
    phases = stated_phases_of(assumptions, framework)
    if setting is None:
        return Stated(**phases)
    cluster, name = setting.cluster, setting.latency.name
    assumed = set(assumptions.not_stated) | (set() if name in list_profiles() else {PROFILE})
    known = stated_of(
        gpus=cluster.gpus, learner_gpus=assumptions.learner_gpus, gpus_per_actor=cluster.gpus_per_actor, profile=name,
        usd_per_gpu_hour=cluster.usd_per_gpu_hour, max_response_tokens=setting.max_response_tokens, assumed=assumed,
    )  # fmt: skip
    return replace(known, **phases)

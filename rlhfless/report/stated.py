"""What a diagnosis may take as known of a run's GPUs: what was stated or recorded of them, and nothing that was assumed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rlhfless.analysis import FRAMEWORK_DEFAULTS
from rlhfless.analysis.assumptions import PRICE, PROFILE, Assumptions
from rlhfless.diagnosis import Stated
from rlhfless.latency import list_gpus, list_profiles, read_profile
from rlhfless.simulate import SimulationConfig


def stated_of(
    assumptions: Assumptions,
    framework: str,
    *,
    gpus: int | None,
    gpus_per_actor: int | None,
    profile: str,
    usd_per_gpu_hour: float | None,
    max_response_tokens: int | None,
    assumed: Collection[str] = (),
) -> Stated:
    """Return what is known of a run beside its log.

    Args:
        assumptions: of which the learner's GPUs and the seconds outside generation are known.
        gpus: that generate; the learner's too where ``assumptions`` have none. profile: name or file.
        assumed: what nobody stated beside ``assumptions.not_stated``: profile and price are not known then.

    Raises:
        ProfileError: there is no such profile, or its file is broken.
    """
    not_stated = {*assumptions.not_stated, *assumed}
    known = {} if PROFILE in not_stated else read_profile(profile)
    kind, learner = known.get("kind"), assumptions.learner_gpus or None
    return Stated(
        gpus=gpus if gpus is None or learner is None else gpus + learner,
        gpus_generate=None if learner is None else gpus,
        gpus_train=learner,
        gpu=kind if kind in {row["kind"] for row in list_gpus()} else None,  # not one of its own, nor emulated ones
        tensor_parallel=gpus_per_actor or known.get("gpus_per_actor"),
        usd_per_gpu_hour=None if PRICE in not_stated else usd_per_gpu_hour,
        model=known.get("model"),
        max_response_tokens=max_response_tokens,
        **_phases(assumptions, framework),
    )


def stated_in(setting: SimulationConfig | None, assumptions: Assumptions, framework: str) -> Stated:
    """Return the same of a setting; a latency model that is no shipped profile is known by its GPUs alone."""
    if setting is None:
        return Stated(**_phases(assumptions, framework))
    cluster, name = setting.cluster, setting.latency.name
    return stated_of(
        assumptions, framework, gpus=cluster.gpus, gpus_per_actor=cluster.gpus_per_actor, profile=name,
        usd_per_gpu_hour=cluster.usd_per_gpu_hour, max_response_tokens=setting.max_response_tokens,
        assumed=() if name in list_profiles() else (PROFILE,),
    )  # fmt: skip


def _phases(assumptions: Assumptions, framework: str) -> dict[str, Any]:
    """Return the stated seconds of a step outside generation, by name; nothing where learning does not follow generation."""
    habit = FRAMEWORK_DEFAULTS.get(framework)
    if habit is not None and not habit.synchronous:  # a step is not the sum of its phases
        return {}
    return {"prepare_s": assumptions.prepare_s, "learn_s": assumptions.learn_s}

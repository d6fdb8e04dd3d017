"""Names under which frameworks log the seconds of a step's phases to TensorBoard or wandb; standard columns from them.

verl's file logger and OpenRLHF's console have the same names, in ``verl_scalars.py`` and ``openrlhf.py``. TRL logs the time of
every call instead, which ``trl_profiling.py`` adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers import openrlhf, verl_scalars
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.scalars import standard
from rlhfless.trace.schema.casts import listed

NEMO_RL = {
    "step_s": ("timing/train/total_step_time",),
    "generate_s": ("timing/train/generation",),
    "prepare_s": tuple(
        f"timing/train/{name}"
        for name in (
            "reward_calculation", "logprob_inference_prep", "policy_and_reference_logprobs", "value_inference_prep",
            "value_inference", "advantage_calculation",
        )
    ),
    "learn_s": tuple(
        f"timing/train/{name}" for name in ("training_prep", "policy_training", "value_training_prep", "value_training")
    ),
    "sync_s": ("timing/train/prepare_for_generation/total", "timing/train/prepare_for_generation"),
    "response_tokens_mean": ("train/mean_gen_tokens_per_sample",),
    "prompt_tokens_mean": ("train/mean_prompt_length",),
    "reward_mean": ("train/reward",),
}  # fmt: skip
SLIME = {
    "step_s": ("perf/step_time",),
    "generate_s": ("perf/rollout_time",),
    "prepare_s": ("perf/log_probs_time", "perf/ref_log_probs_time"),
    "learn_s": ("perf/actor_train_time", "perf/critic_train_time"),
    "sync_s": ("perf/update_weights_time",),
    "response_tokens_mean": ("rollout/response_len/mean",),
    "response_tokens_min": ("rollout/response_len/min",),
    "response_tokens_max": ("rollout/response_len/max",),
    "truncation_rate": ("rollout/truncated_ratio",),
    "reward_mean": ("rollout/raw_reward",),
}
PHASES = ("generate_s", "prepare_s", "learn_s", "sync_s")


@dataclass(frozen=True)
class TrackedNames:
    """How one framework names its metrics.

    Attributes:
        title: its display name. sources: see ``scalars.standard``.
        step: metric that is the step in a wandb row; None: wandb's own step.
    """

    title: str
    sources: Mapping[str, tuple[str, ...]]
    step: str | None = None


TRACKED = (
    TrackedNames("NeMo-RL", NEMO_RL),
    TrackedNames("slime", SLIME, "rollout/step"),
    TrackedNames("verl", verl_scalars.SOURCES),
    TrackedNames(
        "OpenRLHF",
        {column: tuple(f"train/{name}" for name in names) for column, names in openrlhf.SOURCES.items()},
        "train/global_step",
    ),
)

KNOWN = listed(["TRL", *(one.title for one in TRACKED)])
NO_TIMES = f"has no seconds of a step's phases under a known name; names of {KNOWN} are known"


def framework_of(names: Iterable[str]) -> TrackedNames | None:
    """Return the framework that logs times of phases under some of these names; None if there is none."""
    present = set(names)
    return next((one for one in TRACKED if any(present.intersection(one.sources.get(column, ())) for column in PHASES)), None)


def refuse_without(reading: ImportSession) -> None:
    """Raise an error if nothing was found.

    Raises:
        TraceError: no step has a known scalar.
    """
    if not reading.scalars:
        raise TraceError(f"{reading.path}: {NO_TIMES}")


def add_steps(reading: ImportSession, path: Path, steps: Mapping[int, Mapping[str, float]]) -> None:
    """Add standard columns of steps to the session's scalars, and a note of whose names they were.

    Nothing is added where no known framework logs its times under these names; a note says so.

    Args:
        path: of the log. steps: metrics by step.
    """
    framework = framework_of({name for values in steps.values() for name in values})
    if framework is None:
        reading.note(f"scalars: {path.name} {NO_TIMES}")
        return
    used = {name for names in framework.sources.values() for name in names}
    for step in sorted(steps):
        values = {name: value for name, value in steps[step].items() if name in used}
        if columns := standard(values, framework.sources):
            row: dict[str, Any] = {**values, **columns, "step": step}
            reading.guard.check_rows(path, len(reading.scalars) + 1)
            reading.scalars.append(row)
    reading.note(f"scalars: seconds of phases under {framework.title}'s names")
    found = {name for row in reading.scalars for name in row}
    for column in PHASES:
        if column not in found:
            reading.note(f"scalars: {column} is unknown, as the log has none of {listed(framework.sources.get(column, ()))}")

"""The names under which frameworks log the numbers of a step, and the standard columns that are read from them.

One table for every reader: console text, loggers' files, TensorBoard and wandb.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlhfless.trace.schema.casts import listed

Source = str | tuple[str, ...]
"""A framework's own name; or several for the same number, of other versions, of which the first that a step has counts."""


@dataclass(frozen=True)
class Names:
    """How one framework names its numbers.

    Attributes:
        title: the framework's display name.
        columns: standard column (``scalars.STANDARD``) → own names to add up.
        tracked_prefix: stands before these names in TensorBoard and wandb.
        tracked_step: metric that is the step in a row of wandb; None: wandb's own step.
    """

    title: str
    columns: Mapping[str, tuple[Source, ...]]
    tracked_prefix: str = ""
    tracked_step: str | None = None

    def own(self, *columns: str) -> tuple[str, ...]:
        """Return the framework's names behind these standard columns; behind all of them, if none is named."""
        sources = [source for column in columns or self.columns for source in self.columns.get(column, ())]
        names = [name for source in sources for name in ((source,) if isinstance(source, str) else source)]
        return tuple(dict.fromkeys(names))

    def standard(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the standard columns of one step, computed from the framework's own numbers.

        Args:
            values: numbers by the framework's names; what the step lacks is left out of a sum.
        """
        found = {}
        for column, sources in self.columns.items():
            present = [value for source in sources if (value := _value(source, values)) is not None]
            if present:
                found[column] = float(sum(present))
        return found

    def tracked(self) -> Names:
        """Return the names as they stand in TensorBoard and wandb."""
        if not self.tracked_prefix:
            return self
        columns = {column: tuple(_prefixed(self.tracked_prefix, one) for one in own) for column, own in self.columns.items()}
        return Names(self.title, columns, tracked_step=self.tracked_step)


def _value(source: Source, values: Mapping[str, float]) -> float | None:
    return next((values[name] for name in ((source,) if isinstance(source, str) else source) if name in values), None)


def _prefixed(prefix: str, source: Source) -> Source:
    return prefix + source if isinstance(source, str) else tuple(prefix + name for name in source)


NAMES: Mapping[str, Names] = {
    "nemo-rl": Names("NeMo-RL", {
        "step_s": ("timing/train/total_step_time",),
        "generate_s": ("timing/train/generation",),
        "prepare_s": (
            "timing/train/reward_calculation", "timing/train/logprob_inference_prep",
            "timing/train/policy_and_reference_logprobs", "timing/train/value_inference_prep",
            "timing/train/value_inference", "timing/train/advantage_calculation",
        ),
        "learn_s": (
            "timing/train/training_prep", "timing/train/policy_training",
            "timing/train/value_training_prep", "timing/train/value_training",
        ),
        "sync_s": ("timing/train/prepare_for_generation/total", "timing/train/prepare_for_generation"),
        "response_tokens_mean": ("train/mean_gen_tokens_per_sample",),
        "prompt_tokens_mean": ("train/mean_prompt_length",),
        "reward_mean": ("train/reward",),
    }),
    "slime": Names("slime", {
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
    }, tracked_step="rollout/step"),
    "verl": Names("verl", {
        "step_s": ("timing_s/step",),
        "generate_s": ("timing_s/gen",),
        "prepare_s": ("timing_s/reward", "timing_s/old_log_prob", "timing_s/ref", "timing_s/values", "timing_s/adv"),
        "learn_s": ("timing_s/update_critic", "timing_s/update_actor"),
        "sync_s": ("timing_s/update_weights",),
        "response_tokens_mean": ("response_length/mean",),
        "response_tokens_min": ("response_length/min",),
        "response_tokens_max": ("response_length/max",),
        "prompt_tokens_mean": ("prompt_length/mean",),
        "truncation_rate": ("response_length/clip_ratio",),
        "reward_mean": ("critic/score/mean",),
    }),
    "openrlhf": Names("OpenRLHF", {
        "step_s": ("timing/step_total",),
        "generate_s": ("timing/generation",),
        "prepare_s": ("timing/make_experience",),
        "learn_s": ("timing/ppo_train",),
        "sync_s": ("timing/broadcast",),
        "responses": ("rollout/num_samples",),
        "response_tokens_mean": ("rollout/response_length_mean",),
        "truncation_rate": ("rollout/truncated_rate",),
    }, tracked_prefix="train/", tracked_step="train/global_step"),
    "trl": Names("TRL", {
        "step_s": ("step_time",),
        "response_tokens_mean": ("completions/mean_length",),
        "response_tokens_min": ("completions/min_length",),
        "response_tokens_max": ("completions/max_length",),
        "truncation_rate": ("completions/clipped_ratio",),
        "reward_mean": ("reward",),
    }, tracked_prefix="train/", tracked_step="train/global_step"),
}  # fmt: skip
"""In the order in which they are tried, where a log does not say whose it is; keys are the names of the frameworks' formats."""

PHASES = ("generate_s", "prepare_s", "learn_s", "sync_s")

KNOWN = listed(one.title for one in NAMES.values())
NO_TIMES = f"has no seconds of a step's phases under a known name; names of {KNOWN} are known"


def framework_of(names: Iterable[str]) -> str | None:
    """Return the key of the framework that logs times of phases under some of these names; None if there is none."""
    present = set(names)
    of_phases = {key: (*one.own(*PHASES), *one.tracked().own(*PHASES)) for key, one in NAMES.items()}
    return next((key for key, own in of_phases.items() if present.intersection(own)), None)


def unknown_phases(names: Names, found: Iterable[str]) -> list[str]:
    """Return a sentence for every phase whose seconds the framework may log and a log lacks.

    Args:
        found: columns of the log's steps.
    """
    present = set(found)
    return [
        f"scalars: {column} is unknown, as the log has none of {listed(names.own(column))}"
        for column in PHASES
        if column not in present and column in names.columns
    ]

"""The names under which frameworks log the numbers of a step, and the standard columns that are read from them.

One table for every reader: console text, loggers' files, TensorBoard and wandb.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rlhfless.trace.schema.casts import listed

Source = str | tuple[str, ...]
"""A framework's own name; or several for the same number, of other versions, of which the first that a step has counts."""


@dataclass(frozen=True)
class Names:
    """How one framework names its numbers.

    Attributes:
        title: the framework's display name.
        columns: standard column (``scalars.STANDARD``) → own names to add up.
        variants: name that a step of another trainer of the framework has → columns that are then read otherwise. One that
            ends in ``/`` stands for all names that begin with it.
        tracked_prefix: stands before these names in TensorBoard and wandb.
        tracked_step: metric that is the step in a row of wandb; None: wandb's own step.
    """

    title: str
    columns: Mapping[str, tuple[Source, ...]]
    variants: Mapping[str, Mapping[str, tuple[Source, ...]]] = field(default_factory=dict)
    tracked_prefix: str = ""
    tracked_step: str | None = None

    def own(self, *columns: str) -> tuple[str, ...]:
        """Return the framework's names behind these standard columns; behind all of them, if none is named."""
        tables = (self.columns, *self.variants.values())
        sources = [one for table in tables for column in columns or table for one in table.get(column, ())]
        names = [name for source in sources for name in ((source,) if isinstance(source, str) else source)]
        return tuple(dict.fromkeys(names))

    def first(self, column: str) -> tuple[str, ...]:
        """Return the framework's names behind a standard column; of several for the same number, the first."""
        return tuple(one if isinstance(one, str) else one[0] for one in self.columns.get(column, ()))

    def standard(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the standard columns of one step, computed from the framework's own numbers.

        Args:
            values: numbers by the framework's names; what the step lacks is left out of a sum.
        """
        columns = self._read(values)
        found = {}
        for column, sources in columns.items():
            present = [value for source in sources if (value := _value(source, values)) is not None]
            if present:
                found[column] = float(sum(present))
        return found

    def used(self, column: str, present: Collection[str]) -> tuple[str, ...]:
        """Return the names that a standard column is the sum of, in steps that have the present names."""
        several = [(source,) if isinstance(source, str) else source for source in self._read(present).get(column, ())]
        first = (next((name for name in names if name in present), None) for names in several)
        return tuple(name for name in first if name is not None)

    def _read(self, present: Collection[str]) -> dict[str, tuple[Source, ...]]:
        """Return the names behind the standard columns of steps that have the present names."""
        columns = dict(self.columns)
        for mark, others in self.variants.items():
            columns |= others if _has(present, mark) else {}
        return columns

    def tracked(self) -> Names:
        """Return the names as they stand in TensorBoard and wandb."""
        if not self.tracked_prefix:
            return self
        columns = {column: tuple(_prefixed(self.tracked_prefix, one) for one in own) for column, own in self.columns.items()}
        return replace(self, columns=columns, tracked_prefix="")


def _has(present: Collection[str], mark: str) -> bool:
    return mark in present if not mark.endswith("/") else any(name.startswith(mark) for name in present)


def _value(source: Source, values: Mapping[str, float]) -> float | None:
    return next((values[name] for name in ((source,) if isinstance(source, str) else source) if name in values), None)


def _prefixed(prefix: str, source: Source) -> Source:
    return prefix + source if isinstance(source, str) else tuple(prefix + name for name in source)


TRL_CALLS = {
    "generate_s": ("vLLM.generate", "transformers.generate", "transformers.generate_batch", "vllm_generate"),
    "sync_s": ("sync_weights", "_move_model_to_vllm"),
}
"""Standard column → methods of TRL's trainers whose seconds are in its profile, in ``profiling/Time taken: TRAINER.METHOD``."""


def _of_profile(column: str) -> tuple[Source, ...]:
    """Return TRL's names of a phase, where its profile is within the entries of steps; a run calls one of the methods."""
    trainers = ("GRPOTrainer", "RLOOTrainer")
    return (tuple(f"profiling/Time taken: {one}.{call}" for call in TRL_CALLS[column] for one in trainers),)


NAMES: Mapping[str, Names] = {
    "nemo-rl": Names("NeMo-RL", {
        "step_s": ("timing/train/total_step_time",),
        "generate_s": ("timing/train/generation",),
        "wait_s": ("timing/train/exposed_generation",),
        "prepare_s": (
            "timing/train/reward_calculation", "timing/train/logprob_inference_prep",
            "timing/train/policy_and_reference_logprobs", "timing/train/value_inference_prep",
            "timing/train/value_inference", "timing/train/advantage_calculation",
        ),
        "learn_s": (
            "timing/train/training_prep", "timing/train/policy_training",
            "timing/train/value_training_prep", "timing/train/value_training",
        ),
        "sync_s": (
            ("timing/train/prepare_for_generation/total", "timing/train/prepare_for_generation"), "timing/train/weight_sync",
        ),
        "responses": ("console/responses",),  # the console's reader adds up its batches
        "response_tokens_mean": (("train/mean_gen_tokens_per_sample", "train/gen_tokens_per_sample/mean"),),
        "response_tokens_max": (("train/max_gen_tokens_per_sample", "train/gen_tokens_per_sample/max"),),
        "prompt_tokens_mean": ("train/mean_prompt_length",),
        "sequence_tokens_mean": ("train/mean_total_tokens_per_sample",),
        "tokens_per_s": ("performance/tokens_per_sec",),
        "truncation_rate": ("train/truncation_rate",),
        "off_policy_steps": ("train/avg_trajectory_age",),
        "gpus_generate": ("console/gpus_generate",),
        "gpus_train": ("console/gpus_train",),
        "reward_mean": ("train/reward",),
    }),
    "slime": Names("slime", {
        "step_s": (("perf/step_time", "perf/total_train_time"),),
        "generate_s": ("perf/rollout_time",),
        "wait_s": ("perf/train_wait_time",),
        "prepare_s": ("perf/log_probs_time", "perf/ref_log_probs_time", "perf/teacher_log_probs_time"),
        "learn_s": (("perf/actor_train_time", "perf/train_time"), "perf/critic_train_time"),
        "sync_s": ("perf/update_weights_time",),
        "request_s_mean": ("perf/request/e2e_latency/mean",),
        "request_s_max": ("perf/request/e2e_latency/max",),
        "responses": ("train/global_batch_size",),  # of the updates of a rollout, added up by the console's reader
        "response_tokens_mean": (("rollout/response_len/mean", "rollout/response_lengths"),),
        "response_tokens_min": ("rollout/response_len/min",),
        "response_tokens_max": ("rollout/response_len/max",),
        "sequence_tokens_mean": ("rollout/total_lengths",),
        "tokens_per_gpu_s": ("perf/tokens_per_gpu_per_sec",),
        "truncation_rate": (("rollout/truncated_ratio", "rollout/truncated"),),
        "reward_mean": ("rollout/raw_reward",),
    }, tracked_step="rollout/step"),
    "verl": Names("verl", {
        "step_s": (("timing_s/step", "perf/time_per_step"),),
        "generate_s": ("timing_s/gen",),
        "prepare_s": (
            "timing_s/reward", ("timing_s/old_log_prob", "timing_s/old"), "timing_s/ref", "timing_s/values", "timing_s/adv",
        ),
        "learn_s": ("timing_s/update_critic", "timing_s/update_actor"),
        "sync_s": ("timing_s/update_weights", "timing_s/sync_rollout_weights"),
        "request_s_mean": ("timing_s/agent_loop/generate_sequences/mean",),
        "request_s_max": (("timing_s/agent_loop/generate_sequences/max", "timing_s/generation_timing/max"),),
        "response_tokens_mean": ("response_length/mean",),
        "response_tokens_min": ("response_length/min",),
        "response_tokens_max": ("response_length/max",),
        "prompt_tokens_mean": ("prompt_length/mean",),
        "tokens_total": ("perf/total_num_tokens",),
        "truncation_rate": ("response_length/clip_ratio",),
        "reward_mean": ("critic/score/mean",),
    }, variants={  # in asynchronous trainers, timing_s/gen is what the step waits for responses
        "timing_s/generate_async": {"generate_s": ("timing_s/generate_async",), "wait_s": ("timing_s/gen",)},
        "timing_s/wait_prev_gen": {  # one_step_off_policy before timing_s/gen was its wait
            "generate_s": ("timing_s/generate_sequences",), "wait_s": ("timing_s/wait_prev_gen",),
        },
        "separate_async/": {"generate_s": (), "wait_s": ("timing_s/gen",)},
        "fully_async/": {  # seconds of all updates between two transfers of weights, added up
            "generate_s": (),
            "wait_s": ("timing_s/gen",),
            "sync_s": (("timing_s/timing_s/param_sync", "timing_s/param_sync"),),
            "request_s_mean": ("fully_async/processing_time/avg",),
            "request_s_max": ("fully_async/processing_time/max",),
            "generators_idle_rate": ("fully_async/rollouter/idle_ratio",),
        },
    }),
    "openrlhf": Names("OpenRLHF", {
        "step_s": ("timing/step_total",),
        "generate_s": ("timing/generation",),
        "prepare_s": ("timing/make_experience",),
        "learn_s": ("timing/ppo_train",),
        "sync_s": ("timing/broadcast",),
        "responses": ("rollout/num_samples",),
        "response_tokens_mean": (("rollout/response_length_mean", "response_length", "glen"),),  # the latter are in its bar
        "sequence_tokens_mean": (("total_length", "tlen"),),
        "truncation_rate": (("rollout/truncated_rate", "truncated", "response_clip_ratio"),),  # of its versions, newest first
        "reward_mean": (("reward", "rm"),),
    }, tracked_prefix="train/", tracked_step="train/global_step"),
    "trl": Names("TRL", {
        "step_s": ("step_time",),
        "generate_s": _of_profile("generate_s"),
        "sync_s": _of_profile("sync_s"),
        "response_tokens_mean": (("completions/mean_length", "completion_length"),),
        "response_tokens_min": ("completions/min_length",),
        "response_tokens_max": ("completions/max_length",),
        "truncation_rate": ("completions/clipped_ratio",),
        "no_signal_rate": ("frac_reward_zero_std",),
        "reward_mean": ("reward",),
    }, tracked_prefix="train/", tracked_step="train/global_step"),
    "prime-rl": Names("prime-rl", {
        "step_s": (("Time", "trainer/Time", "time/step"),),  # the latter, with a folder, are the trainer's in wandb
        "generate_s": ("Generating rollouts",),  # its bar in the console
        "wait_s": ("time/wait_for_batch",),
        "learn_s": ("time/forward_backward",),
        "sync_s": ("time/broadcast_weights",),
        "responses": ("Rollouts",),
        "sequence_tokens_mean": ("Seq. Length",),
        "tokens_per_s": ("Throughput",),
        "truncation_rate": ("Truncation",),
        "no_signal_rate": ("Untrainable",),
        "off_policy_steps": (("Max. Off-Policy Level", "Max Off-Policy"),),
        "reward_mean": ("Reward",),
    }),
    "areal": Names("AReaL", {  # its actor is grpo_actor in older versions
        "wait_s": ("timeperf/rollout",),
        "prepare_s": (
            "timeperf/recompute_logp", "timeperf/ref_logp", "timeperf/teacher_logp", "timeperf/critic_values",
            "timeperf/compute_advantage",
        ),
        "learn_s": ("timeperf/train_step", "timeperf/critic_train_step"),
        "sync_s": ("timeperf/update_weights",),
        "responses": (("ppo_actor/n_seqs", "grpo_actor/n_seqs"),),
        "sequence_tokens_mean": (("ppo_actor/seq_len/avg", "grpo_actor/seq_len/avg"),),
        "prompt_tokens_mean": (("ppo_actor/prompt_len/avg", "grpo_actor/prompt_len/avg"),),
        "reward_mean": (("ppo_actor/task_reward/avg", "grpo_actor/task_reward/avg"),),
    }),
    "skyrl": Names("SkyRL", {
        "step_s": ("timing/step",),
        "generate_s": ("timing/generate",),
        "wait_s": ("timing/wait_for_generation_buffer",),
        "prepare_s": (
            "timing/postprocess_generator_output", "timing/convert_to_training_input",
            ("timing/fwd_logprobs_values_reward", "timing/fwd_logprobs"), "timing/apply_reward_kl_penalty",
            "timing/compute_advantages_and_returns",
        ),
        "learn_s": (("timing/train_critic_and_policy", "timing/policy_train"),),
        "sync_s": (("timing/sync_weights", "timing/sync_weights_to_inference_engines"),),
        "request_s_mean": ("generate/trajectory_time_completion_mean",),
        "request_s_max": ("generate/trajectory_time_completion_max",),
        "responses": (("generate/batch_num_seq", "console/sequences"),),  # the latter beside timers, by the console's reader
        "response_tokens_mean": (("generate/avg_num_tokens", "avg_response_length"),),
        "response_tokens_min": ("generate/min_num_tokens",),
        "response_tokens_max": ("generate/max_num_tokens",),
        "off_policy_steps": ("async/staleness_max",),
        "reward_mean": ("reward/avg_raw_reward",),
    }),
    "roll": Names("ROLL", {
        "step_s": ("time/step_total",),
        "generate_s": (("time/step_generate", "time/step_rollout"),),
        "prepare_s": (
            ("time/ref_log_probs_values", "time/step_ref_log_probs_values_reward"),
            ("time/old_log_probs", "time/step_old_log_probs_values"), "time/step_cal_norm_rewards",
            "time/step_cal_token_reward", "time/step_adv",
        ),
        "learn_s": ("time/step_train",),
        "sync_s": ("time/step_model_update",),
        "response_tokens_mean": (("token/response_length/mean", "tokens/response_length/mean"),),
        "response_tokens_min": (("token/response_length/min", "tokens/response_length/min"),),
        "response_tokens_max": (("token/response_length/max", "tokens/response_length/max"),),
        "prompt_tokens_mean": (("token/prompt_length/mean", "tokens/prompt_length/mean"),),
        "sequence_tokens_mean": ("token/total_length/mean",),
        "tokens_per_s": (("system/tps/tps", "system/tps"),),
        "tokens_per_gpu_s": ("system/actor_infer/response/tps_gpu",),
        "reward_mean": ("critic/score/mean",),
    }, variants={  # the RLVR pipeline logs the seconds of the step before; the console's reader moves them to their step
        "time/step_generate": {"step_s": ("pre_step_total_time",)},
    }),
}  # fmt: skip
"""In the order in which they are tried, where a log does not say whose it is; keys are the names of the frameworks' formats."""

PHASES = ("generate_s", "prepare_s", "learn_s", "sync_s")

KNOWN = listed(one.title for one in NAMES.values())
NO_TIMES = f"has no seconds of a step's phases and no lengths under known names; names of {KNOWN} are known"


def framework_of(names: Iterable[str]) -> str | None:
    """Return the key of the framework that logs under these names; None if there is none.

    Seconds of phases decide. Without them it is the framework with most of the names: with at least two, or with one that no
    other framework has. Names without a folder, such as ``reward``, are anybody's.
    """
    present = {name for name in names if "/" in name}
    of_phases = {key: (*one.own(*PHASES), *one.tracked().own(*PHASES)) for key, one in NAMES.items()}
    if (sure := next((key for key, own in of_phases.items() if present.intersection(own)), None)) is not None:
        return sure
    shared = {key: len(present.intersection((*one.own(), *one.tracked().own()))) for key, one in NAMES.items()}
    best = max(shared, key=lambda key: shared[key])
    return best if shared[best] > 1 or sum(shared.values()) == 1 else None


def unknown_phases(names: Names, found: Iterable[str]) -> list[str]:
    """Return a sentence for every phase whose seconds the framework may log and a log lacks.

    Args:
        found: columns of the log's steps, and its own names.
    """
    present = set(found)
    return [
        f"scalars: {column} is unknown, as the log has none of {', '.join(names.first(column))}"
        for column in PHASES
        if column not in present and names.first(column) and present.isdisjoint(names.own(column))
    ]

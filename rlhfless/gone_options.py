"""Configurations that earlier versions stored: without sections, or with options that no longer exist.

A run stores its options in ``meta.json``, a checkpoint in ``state.json``, and users keep configurations of their own. Where a
gone option was off, what is stored is read without it: nothing changes. Where it was on, it is refused in one sentence, as the
rest of the run would not be what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhfless.errors import UserError

GONE_OPTIONS: dict[str, tuple[Any, ...]] = {
    "attention": ("masked",), "weight_sync": ("folder",), "levers": ("given",),
    "pipeline": (None,), "pipeline_critic": (None,), "micro_batches": (None,), "pipeline_schedule": (None, "fused"),
    "preparation_tp": (None,),
    "time_limit_s": (0.3,),  # its default; planning does a constant amount of work
    "max_line_mib": (None,), "max_rows": (None,), "max_unpacked_gib": (None,),  # the variable RLHFLESS_LIMITS has them now
}  # fmt: skip
"""Name of a gone option -> the stored values that mean "off", such as ``"learner_grows": (False,)`` or ``"tp": (None, 1)``."""

_PIPELINES = "rlhfless.training.run_pipelines demonstrates fused pipelines on processes"
INSTEAD = {
    "attention": "the torch engine has one attention, and vLLM is the engine with a paged KV cache",
    "weight_sync": "weights reach vLLM by a folder in memory",
    "levers": "each optimisation is an option of its own, such as cluster.learning",
    **dict.fromkeys(("pipeline", "pipeline_critic", "micro_batches", "pipeline_schedule"), _PIPELINES),
    "preparation_tp": "rlhfless.training.reallocate demonstrates moves between layouts on processes",
    "time_limit_s": "planning does a constant amount of work",
    **dict.fromkeys(("max_line_mib", "max_rows", "max_unpacked_gib"), "the variable RLHFLESS_LIMITS has the limits of readers"),
}
"""Name of a gone option -> what there is in its place, as a clause."""

RENAMED_VALUES: dict[str, tuple[Any, Any]] = {"preparation": ("freed", "released")}
"""Name of an option -> a value of it by its old and its new name."""

LEFT_OUT: dict[str, Any] = {"tensor_parallel": 1}
"""Options of one engine today that runs without sections stored for others, too, with the value that is left out."""


FLAT: dict[str, tuple[str, ...]] = {
    "task": (
        "prompt_column", "answer_column", "rewards", "offload_reward_models", "prompts", "max_prompt_tokens", "eval_prompts",
    ),
    "rollout": (
        "prompts_per_step", "samples_per_prompt", "max_response_tokens", "max_model_len", "temperature", "top_k", "top_p",
        "min_p", "repetition_penalty", "generation_dtype",
    ),
    "algorithm": (
        "num_updates", "loss_aggregation", "clip_ratio_low", "clip_ratio_high", "kl_coef", "mask_truncated",
        "old_logprobs_from", "importance_ratio_cap", "advantage_std", "critic", "critic_learning_rate", "gamma", "lam",
        "value_clip", "vf_coef", "whiten",
    ),
    "optimizer": (
        "learning_rate", "lr_scheduler_type", "warmup_steps", "lr_scheduler_steps", "weight_decay", "max_grad_norm",
        "learner_dtype", "num_mini_batches", "max_tokens_per_micro_batch", "gradient_checkpointing", "offload_reference",
        "lora_rank", "lora_alpha", "lora_targets",
    ),
    "planner": ("policy", "time_weight", "tau", "window", "scenarios"),
    "cluster": (
        "executor", "engine", "drafts", "draft_length", "gpus", "gpus_per_node", "profile", "tensor_parallel", "memory_gib",
        "charging", "ray_address", "idle_timeout_s", "prewarm", "preparation", "preparation_actors", "reward_s_per_response",
        "learning", "learner_gpus", "learner_start", "learner_grows", "learner_load_s", "learner_loss_per_doubling",
        "stream_order", "learner_processes", "learner_placement", "learner_threads", "actor_threads",
        "gpu_memory_utilization", "heartbeat_timeout_s", "device",
    ),
}  # fmt: skip
"""Section of today -> options of it that runs stored without sections. ``task``, ``algorithm`` and ``optimizer`` were names."""


def in_sections(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in sections; one that is in sections already is returned as it is.

    Example:
        >>> in_sections({"steps": 3, "algorithm": "ppo", "gamma": 1.0, "gpus": 16})
        {'steps': 3, 'algorithm': {'name': 'ppo', 'gamma': 1.0}, 'cluster': {'gpus': 16}}
    """
    section_of = {name: section for section, names in FLAT.items() for name in names}
    config: dict[str, Any] = {}
    for name, value in stored.items():
        if name in ("task", "algorithm", "optimizer") and isinstance(value, str):
            config.setdefault(name, {})["name"] = value
        elif name == "draft_length" and str(value).isdecimal():
            config.setdefault("cluster", {})[name] = int(value)
        elif name in section_of:
            config.setdefault(section_of[name], {})[name] = value
        else:
            config[name] = value
    return config


def without_gone(stored: Mapping[str, Any], where: object, error: type[UserError]) -> dict[str, Any]:
    """Return stored options without those that no longer exist, and with values by their names of today.

    Args:
        stored: options by name, or in sections, as in ``meta.json``.
        where: the file or run that stores them, for the message.
        error: class to raise.

    Raises:
        error: a gone option was on.

    Example:
        >>> without_gone({"samples_per_prompt": 8, "gpus": 16}, "meta.json", UserError)
        {'samples_per_prompt': 8, 'gpus': 16}
        >>> without_gone({"cluster": {"preparation": "freed"}}, "meta.json", UserError)
        {'cluster': {'preparation': 'released'}}
    """
    options = _checked(stored, where, error)
    for section in FLAT:
        if isinstance(keys := options.get(section), Mapping):
            options[section] = _checked(keys, where, error)
    return {name: value for name, value in options.items() if name not in LEFT_OUT or value != LEFT_OUT[name]}


def _checked(stored: Mapping[str, Any], where: object, error: type[UserError]) -> dict[str, Any]:
    options = {**stored}
    for name, off in GONE_OPTIONS.items():
        if name in options and (value := options.pop(name)) not in off:
            raise error(
                f"{where}: option {name} is {value!r}, but there is no such option any more; {INSTEAD[name]}; start again "
                f"without {name}, or use the version of rlhfless that stored it"
            )
    for name, (old, new) in RENAMED_VALUES.items():
        if options.get(name) == old:
            options[name] = new
    return options

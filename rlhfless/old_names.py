"""Names of training options that earlier versions stored, and the names of today.

Runs store their configuration in ``meta.json``, checkpoints theirs in ``state.json``. Both are read under today's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPTIONS = {
    "pool": "prompts",
    "samples": "samples_per_prompt",
    "response_limit": "max_response_tokens",
    "updates": "num_updates",
    "clip_low": "clip_ratio_low",
    "clip_high": "clip_ratio_high",
    "aggregation": "loss_aggregation",
    "std": "advantage_std",
    "kl_weight": "kl_coef",
    "old_logprobs": "old_logprobs_from",
    "importance_cap": "importance_ratio_cap",
    "value_weight": "vf_coef",
    "token_budget": "max_tokens_per_micro_batch",
    "judge_s": "reward_s_per_response",
    "keep": "save_total_limit",
    "keep_s": "idle_timeout_s",
    "precision": "learner_dtype",
    "schedule": "lr_scheduler_type",
    "schedule_steps": "lr_scheduler_steps",
}
"""Stored name -> name of today; version 0.1.0 wrote the former."""

UNUSED = {
    "grpo": ("critic", "critic_learning_rate", "gamma", "lam", "value_clip", "vf_coef", "whiten"),
    "ppo": ("advantage_std",),
}
"""Algorithm -> the other algorithm's options; version 0.1.0 stored those of both."""


GONE = {"levers": "given"}
"""Option that was removed -> the value with which it changed nothing."""


def current_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration under today's names, without options that its algorithm does not have.

    Options that were removed are left out where they changed nothing. With another value they stay, so that whoever runs the
    configuration refuses them.

    Example:
        >>> current_options({"samples": 8, "gpus": 16, "algorithm": "grpo", "gamma": 1.0})
        {'samples_per_prompt': 8, 'gpus': 16, 'algorithm': 'grpo'}
    """
    named = {OPTIONS.get(name, name): value for name, value in {**stored}.items()}
    if named.pop("minibatches", "batch") == "prompts":  # each update had a mini-batch of its own
        named |= {"num_mini_batches": named["num_updates"], "num_updates": 1}
    algorithm = named.get("algorithm")
    unused = UNUSED.get(algorithm, ()) if isinstance(algorithm, str) else ()
    return {name: value for name, value in named.items() if name not in unused and (name not in GONE or value != GONE[name])}

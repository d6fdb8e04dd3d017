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
    "schedule": "lr_scheduler_type",
    "schedule_steps": "lr_scheduler_steps",
}
"""Stored name -> name of today; version 0.1.0 wrote the former."""


def current_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration under today's names; other names stay as they are.

    Example:
        >>> current_options({"samples": 8, "gpus": 16})
        {'samples_per_prompt': 8, 'gpus': 16}
    """
    return {OPTIONS.get(name, name): value for name, value in {**stored}.items()}

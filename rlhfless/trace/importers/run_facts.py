"""Numbers that a log has once for the whole run, beside those of its steps."""

from __future__ import annotations

RUN_FACTS = {
    "planned_steps": "steps of the whole run, as planned",
    "steps_done": "steps that were done when the log ends, by its progress bar",
    "elapsed_s": "seconds since the first step, by its progress bar",
    "seconds_per_step": "seconds per step, by its progress bar",
    "run_s": "seconds of the whole run, as logged at its end",
    "samples_per_s": "responses per second over the whole run, as logged at its end",
    "steps_per_s": "steps per second over the whole run, as logged at its end",
    "responses_per_step": "responses of a step, as the framework states its batch",
    "samples_per_prompt": "responses per prompt, as the framework states it",
    "logging_steps": "steps that one entry of the log covers",
    "gpus": "GPUs of the run",
    "max_response_tokens": "limit of a response",
    "kv_cache_tokens": "KV tokens that fit into the memory of one engine, as it states when it starts",
    "max_context_tokens": "limit of a prompt with its response",
}
"""Names of ``ImportSession.facts``; what a log does not say is absent."""

"""Numbers that a log has once for the whole run, beside those of its steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rlhfless.trace import storage
from rlhfless.trace.importers.record import finite, is_number
from rlhfless.trace.limits import Guard, Limits

FILE = "run_facts.json"
RUN_FACTS = {
    "planned_steps": "steps of the whole run, as planned",
    "steps_done": "steps that were done when the log ends, by its progress bar",
    "elapsed_s": "seconds since the first step, by its progress bar",
    "seconds_per_step": "seconds per step, by its progress bar",
    "run_s": "seconds of the whole run, as logged at its end",
    "samples_per_s": "responses per second over the whole run, as logged at its end; of TRL, prompts where epochs were planned",
    "steps_per_s": "steps per second over the whole run, as logged at its end",
    "responses_per_step": "responses of a step, as the framework states its batch",
    "samples_per_prompt": "responses per prompt, as the framework states it",
    "logging_steps": "steps that one entry of the log covers",
    "steps_per_generation": "optimizer steps that learn from one generation; absent where each generates",
    "gpus": "GPUs of the run",
    "max_response_tokens": "limit of a response",
    "kv_cache_tokens": "KV tokens that fit into the memory of one engine, as it states when it starts",
    "cached_tokens": "KV tokens in one engine's cache, of its line with the fullest cache",
    "cached_share": "share of the cache that these take, with two decimals",
    "max_context_tokens": "limit of a prompt with its response",
    "model_layers": "layers of the model, of a log that is a model's configuration",
}
"""Names of ``ImportSession.facts``; what a log does not say is absent."""


def write_facts(folder: Path, facts: Mapping[str, float], framework: str) -> Path:
    """Write the numbers into a folder, atomically, with the framework's name.

    Raises:
        TraceError: the folder cannot be written.
    """
    path = folder / FILE
    storage.write_text(path, json.dumps({"framework": framework, "facts": dict(facts)}, indent=2) + "\n")
    return path


def read_facts(folder: str | Path, limits: Limits | None = None) -> tuple[dict[str, float], str]:
    """Return the numbers of a folder that an import wrote, and the framework's name; none if the log had none.

    Raises:
        TraceError: the file is damaged.
    """
    path = Path(folder) / FILE
    if not path.exists():
        return {}, ""
    content = storage.read_json(path, guard=Guard(limits))
    facts = content.get("facts")
    known = facts.items() if isinstance(facts, dict) else ()
    numbers = {
        name: number
        for name, value in known
        if name in RUN_FACTS and is_number(value) and (number := finite(value)) is not None
    }
    framework = content.get("framework")
    return numbers, framework if isinstance(framework, str) else ""

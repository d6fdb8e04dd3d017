"""Small traces for the tests: two decode actors and a learner, with numbers that a reader adds up by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

PUBLIC_DATA = Path(__file__).parents[2].parent / "shared" / "data"
GSM8K_LENGTHS = PUBLIC_DATA / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv"
needs_gsm8k_lengths = pytest.mark.skipif(not GSM8K_LENGTHS.exists(), reason=f"public data absent: {GSM8K_LENGTHS.name}")
AREAL_MAP = {"prompt_id": "prompt_index", "sample": "rollout", "step": "visit"}


def rollouts(step: int = 0, prompts: int = 3, samples: int = 2, **same: Any) -> list[dict[str, Any]]:
    """Responses of one step, of 10, 11, 12, ... tokens; ``same`` goes into every row."""
    rows = []
    for prompt in range(prompts):
        for sample in range(samples):
            tokens = 10 + prompt * samples + sample
            row = {"step": step, "prompt_id": prompt, "sample": sample, "prompt_tokens": 5, "response_tokens": tokens}
            rows.append({**row, "finish_reason": "stop", "reward": float(sample), "weights_version": step, **same})
    return rows


def step(number: int = 0) -> dict[str, Any]:
    """One step that starts at 10 s times its number, as ``TraceWriter.append_step`` takes it.

    decode-0: 2 GPUs for 4 s, busy 3 s (a background transfer does not count), half of its slots empty in 2 s of decode.
    decode-1: 2 GPUs for 2 s, busy all the time. learner: 4 GPUs for 1 s, idle. So 16 GPU-seconds, 6 idle, 2 of empty slots.
    """
    t = 10.0 * number
    held = [
        ("decode-0", "decode", [0, 1], 0, 4),
        ("decode-1", "decode", [2, 3], 0, 2),
        ("learner", "learner", [0, 1, 2, 3], 4, 5),
    ]
    did: list[tuple[Any, ...]] = [
        ("decode-0", "prefill", 0, 1, None, None, False),
        ("decode-0", "decode", 1, 3, 2.0, 4, False),
        ("decode-0", "transfer", 3, 4, None, None, True),
        ("decode-1", "decode", 0, 2, 4.0, 4, False),
        ("decode-1", "prefill", 0.5, 1, None, None, False),
    ]
    kind = {"node": 0, "kind": "l40s", "usd_per_gpu_s": 0.001}
    return {
        "rollouts": rollouts(number),
        "allocations": [
            {"step": number, "holder": who, "role": role, "gpu_ids": ids, "start_s": t + a, "end_s": t + b, **kind}
            for who, role, ids, a, b in held
        ],
        "spans": [
            {"step": number, "holder": who, "phase": phase, "start_s": t + a, "end_s": t + b, "batch_mean": batch}
            | {"slots": slots, "background": background, "detail": {"note": phase}}
            for who, phase, a, b, batch, slots, background in did
        ],
        "events": [{"step": number, "time_s": t + 2, "name": "cut", "holder": "decode-1", "detail": {"moved": [1, 2]}}],
        "plan": {"actors": 2, "gap": np.float64(0.25), "bound": float("inf")},
    }

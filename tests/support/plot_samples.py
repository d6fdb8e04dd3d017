"""Small traces for the plot tests, with numbers that a reader adds up by hand, and every degenerate one."""

from __future__ import annotations

import functools
from typing import Any

from rlhfless.trace import Trace

EVIL = "<script>alert('x')</script>"


def rollouts(step: int = 0, **same: Any) -> list[dict[str, Any]]:
    """Six responses of 10, 20, ... 60 tokens, predicted as 20, 20, 30, 30, 50, 50; the last one was cut off."""
    predicted = (20.0, 20.0, 30.0, 30.0, 50.0, 50.0)
    return [
        {
            "step": step, "prompt_id": f"p{i // 2}", "sample": i % 2, "prompt_tokens": 5, "response_tokens": 10 * (i + 1),
            "finish_reason": "length" if i == 5 else "stop", "predicted_tokens": predicted[i], **same,
        }
        for i in range(6)
    ]  # fmt: skip


def tables(step: int = 0, name: str = "actor") -> dict[str, Any]:
    """One step that starts at 10 s times its number.

    actor-0: GPUs 0 and 1 for 4 s, busy 3 s, with a transfer behind it. actor-1: GPUs 2 and 3 for 2 s, busy all the time.
    So 12 GPU-seconds, 2 of them idle, at 0.001 USD each. The plan promised 3 s and 2.5 s.
    """
    t = 10.0 * step
    same = {"step": step, "role": "decode", "node": 0, "kind": "l40s", "usd_per_gpu_s": 0.001, "start_s": t}
    spans = [
        ("0", "prefill", 0.0, 1.0, False),
        ("0", "decode", 1.0, 3.0, False),
        ("0", "transfer", 3.0, 4.0, True),
        ("1", "decode", 0.0, 2.0, False),
    ]
    return {
        "rollouts": rollouts(step),
        "allocations": [
            {"holder": f"{name}-0", "gpu_ids": [0, 1], "end_s": t + 4, **same},
            {"holder": f"{name}-1", "gpu_ids": [2, 3], "end_s": t + 2, **same},
        ],
        "spans": [
            {"step": step, "holder": f"{name}-{who}", "phase": phase, "start_s": t + a, "end_s": t + b, "background": behind}
            for who, phase, a, b, behind in spans
        ],
        "events": [{"step": step, "time_s": t + 2, "name": "cut", "holder": f"{name}-1"}],
        "plans": [{"step": step, "actors": [planned(3.0), planned(2.5)]}],
    }


def planned(predicted_s: float) -> dict[str, Any]:
    """An actor of a plan, as traces hold it."""
    return {"start_s": 0.0, "predicted_s": predicted_s, "responses": [0, 1, 2]}


def sample_trace(steps: int = 2, name: str = "actor", **changed: Any) -> Trace:
    """Such steps in one trace; ``changed`` replaces tables."""
    of_steps = [tables(step, name) for step in range(steps)]
    joined = {key: [row for one in of_steps for row in one[key]] for key in of_steps[0]}
    return Trace(**{**joined, **changed})


def busy_trace(spans: int) -> Trace:
    """One step of one actor with that many spans of 1 ms, 1 ms apart."""
    rows = [
        {"step": 0, "holder": "actor-0", "phase": "decode", "start_s": 0.002 * i, "end_s": 0.002 * i + 0.001}
        for i in range(spans)
    ]
    held = {**tables()["allocations"][0], "end_s": 0.002 * spans}
    return Trace(rollouts(), allocations=[held], spans=rows)


@functools.cache
def degenerate_traces() -> dict[str, Trace]:
    """Every strange trace that a plot must survive."""
    one = rollouts()[:1]
    bare = {"step": 0, "prompt_id": 1, "sample": 0, "response_tokens": 0}
    nothing_took_time = [{**row, "end_s": row["start_s"]} for row in tables()["allocations"]]
    return {
        "one response": sample_trace(1, rollouts=one),
        "logged only": Trace(rollouts()),
        "one bare logged response": Trace([bare]),
        "no spans": sample_trace(spans=[], events=[]),
        "no allocations": sample_trace(allocations=[]),
        "no plans": sample_trace(plans=[]),
        "strange plans": sample_trace(plans=[{"step": 0, "actors": 2}, {"step": 1}]),
        "plan of more actors": sample_trace(1, plans=[{"step": 0, "actors": [planned(1.0)] * 5}]),
        "other names": sample_trace(name="replica"),
        "markup in names": sample_trace(name=EVIL, rollouts=rollouts(0, prompt_id=EVIL)[:1]),
        "no time": sample_trace(1, allocations=nothing_took_time, spans=[], events=[]),
        "12,000 spans": busy_trace(12_000),
        "all cut off": Trace([{**row, "finish_reason": "length"} for row in rollouts()]),
        "events of no holder": sample_trace(1, events=[{"step": 0, "time_s": 1.0, "name": EVIL}]),
    }

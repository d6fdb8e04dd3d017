"""A step with as many spans as one likes, on sixteen actors: for what has to stay fluid however many there are."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlhfless.trace import Trace

ACTORS, LASTS_S = 16, 1200.0


def many_spans(count: int) -> Trace:
    """Decode stretches with short transfers between them, one after the other on every actor, for twenty minutes."""
    each = count // ACTORS
    edges = np.linspace(0.0, LASTS_S, each + 1)
    spans = pd.concat(
        [
            pd.DataFrame(
                {
                    "step": 0, "holder": f"actor-{a}", "phase": np.where(np.arange(each) % 4 == 3, "migrate", "decode"),
                    "start_s": edges[:-1], "end_s": edges[:-1] + 0.8 * np.diff(edges), "batch_mean": 12.0, "slots": 64,
                }
            )
            for a in range(ACTORS)
        ],
        ignore_index=True,
    )  # fmt: skip
    held = [
        {
            "step": 0, "holder": f"actor-{a}", "role": "decode", "node": a // 8, "gpu_ids": [a], "kind": "l40s",
            "usd_per_gpu_s": 0.001, "start_s": 0.0, "end_s": LASTS_S,
        }
        for a in range(ACTORS)
    ]  # fmt: skip
    rollouts = [{"step": 0, "prompt_id": str(i), "sample": 0, "response_tokens": 10} for i in range(8)]
    return Trace(pd.DataFrame(rollouts), allocations=pd.DataFrame(held), spans=spans)

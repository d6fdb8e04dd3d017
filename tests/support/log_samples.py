"""A small log whose prompts come back, with hostile texts: what the dashboards' tests look at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rlhfless.trace import Trace

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "**bold** [link](javascript:window.hacked=1) `code`",
    "x" * 9_000,
    "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\U0001f600\U0001f680 family: \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "<b>bold</b> <a href='javascript:window.hacked=1'>press</a>",
)


def rollouts(steps: int = 3, prompts: int = 12, samples: int = 4, seed: int = 0) -> pd.DataFrame:
    """Lengths of ``prompts`` prompts that are visited in every step; texts and some names are hostile."""
    rng = np.random.default_rng(seed)
    usual = rng.lognormal(4.0, 0.7, prompts)
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        for p in range(prompts):
            for sample in range(samples):
                tokens = int(np.clip(usual[p] * rng.lognormal(0, 0.3), 2, 400))
                text = HOSTILE[p % len(HOSTILE)]
                rows.append(
                    {
                        "step": step, "epoch": step, "prompt_id": f"{text[:40]}-{p}", "sample": sample, "prompt_tokens": 20 + p,
                        "response_tokens": tokens, "finish_reason": "length" if tokens == 400 else "stop",
                        "prompt": text, "response": text[::-1],
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def log(**size: int) -> Trace:
    """The same as a logged trace."""
    return Trace(rollouts(**size))

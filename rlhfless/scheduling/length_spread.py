"""How far the lengths of a step differ between prompts and within them, by the forecast's scenarios.

Where earlier forecasts have shown how wrong they are, these are the calibrated scenarios (rlhfless.scheduling.calibration).

A forecast of prompts can tell responses of different prompts apart, never those of one prompt. So where lengths differ more
within prompts than between them, such a forecast explains at most half of the variance of their logarithms.

The two spreads are the variance components of the logarithms of lengths. Each prompt's draws are its responses in all
scenarios. *Within*: the variance of a prompt's draws, averaged over responses. *Between*: the variance of the prompts' means,
less what the draws' own spread adds to it.
"""

from __future__ import annotations

import math

import numpy as np

from solver.model.workload import Workload


def spreads(workload: Workload) -> tuple[float, float]:
    """Return the standard deviations of the logarithms of lengths between prompts and within them.

    Args:
        workload: with at least two scenarios.
    """
    assert workload.scenarios is not None
    logs, prompts = np.log(np.maximum(workload.scenarios, 1)), workload.prompt_of
    scenarios, size = len(logs), np.bincount(prompts)
    used = size > 0
    draws = size[used] * scenarios
    mean = np.bincount(prompts, logs.sum(axis=0))[used] / draws
    squares = np.bincount(prompts, (logs**2).sum(axis=0))[used]
    variance = np.maximum(squares - draws * mean**2, 0.0) / (draws - 1)
    weight = size[used] / len(prompts)
    within = float((variance * weight).sum())
    between = float((weight * (mean - (weight * mean).sum()) ** 2).sum() - (weight * variance / draws).sum())
    return math.sqrt(max(0.0, between)), math.sqrt(within)


def spread_in_words(workload: Workload) -> str:
    """Return a sentence where lengths differ more within prompts than between them; the empty text elsewhere, and
    where responses of one prompt have different predictions, so that the forecast is not one of prompts."""
    prompts, predicted = workload.prompt_of, workload.response_tokens
    of_prompt = np.zeros(int(prompts.max()) + 1, dtype=predicted.dtype)
    of_prompt[prompts] = predicted
    if not np.array_equal(of_prompt[prompts], predicted):
        return ""
    between, within = spreads(workload)
    if within <= between:
        return ""
    return (
        f"Lengths differ at least as much within prompts as between them ({within:.2f} and {between:.2f}, standard deviations "
        "of their logarithms), so a forecast that knows only the prompt explains at most half of this variance."
    )

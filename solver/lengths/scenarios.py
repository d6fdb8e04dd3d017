"""Samples joint length scenarios from quantiles of each response's length.

Inputs are quantiles and a seed; predictors and plans play no part. The coupling between responses is stated here.

**Coupling.** Response i gets the length at its own quantile level u_i. The levels are joined by a Gaussian copula with a
factor for the step and one for every prompt: ``u_i = Phi(sqrt(s) Z + sqrt(p) Z_prompt(i) + sqrt(1 - s - p) e_i)`` with
independent standard normal Z, Z_prompt and e. s and p are the shares of variance that the step and the prompt explain: 0 and 0
make the lengths independent, s = 1 makes all of them long together. Between the given levels a quantile function is a straight
line, outside of them it stays at its ends.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given
from solver.model.workload import IntArray

_phi = np.vectorize(lambda z: 0.5 * (1.0 + math.erf(z / math.sqrt(2.0))), otypes=[float])


def scenarios_from_quantiles(
    levels: ArrayLike,
    quantile_tokens: ArrayLike,
    prompt_of: ArrayLike,
    *,
    scenarios: int = 16,
    step_share: float = 0.0,
    prompt_share: float = 0.0,
    seed: int = 0,
) -> IntArray:
    """Return (S, R) jointly sampled lengths for ``Workload(..., response_tokens=...)``.

    Args:
        levels: (Q,) rising quantile levels between 0 and 1.
        quantile_tokens: (R, Q) tokens of each response at these levels, never falling along a row.
        prompt_of: (R,) prompt of each response.
        scenarios: S. step_share, prompt_share: shares of variance of the factors in the module docstring.

    Raises:
        PlanningError: shapes differ, levels or quantiles fall, or the shares exceed 1; naming the entry.
    """
    level, tokens = np.asarray(levels, dtype=float), np.asarray(quantile_tokens, dtype=float)
    prompts_of = np.asarray(prompt_of, dtype=np.int64)
    if level.ndim != 1 or len(level) < 1 or np.any(np.diff(level) <= 0) or level.min() < 0 or level.max() > 1:
        raise PlanningError(f"levels are {level.tolist()}; increasing numbers between 0 and 1 are needed")
    if tokens.shape != (len(prompts_of), len(level)):
        raise PlanningError(
            f"quantile_tokens have shape {tokens.shape}; (responses, levels) = ({len(prompts_of)}, {len(level)}) is needed"
        )
    if np.any(~np.isfinite(tokens)) or np.any(np.diff(tokens, axis=1) < 0):
        row = int(np.flatnonzero(np.any(~np.isfinite(tokens), axis=1) | np.any(np.diff(tokens, axis=1) < 0, axis=1))[0])
        raise PlanningError(
            f"quantile_tokens[{row}] are {tokens[row].tolist()}; finite numbers that do not decrease are needed"
        )
    if scenarios < 1:
        raise PlanningError(f"scenarios is {as_given(scenarios)}; at least 1 is needed")
    if not (step_share >= 0 and prompt_share >= 0 and step_share + prompt_share <= 1):
        raise PlanningError(
            f"step_share {step_share} and prompt_share {prompt_share} are shares of variance; 0 or more and at most 1 together"
        )
    rng = np.random.default_rng(seed)
    prompts = int(prompts_of.max(initial=-1)) + 1
    z = (
        math.sqrt(step_share) * rng.standard_normal((scenarios, 1))
        + math.sqrt(prompt_share) * rng.standard_normal((scenarios, prompts))[:, prompts_of]
        + math.sqrt(max(0.0, 1 - step_share - prompt_share)) * rng.standard_normal((scenarios, len(prompts_of)))
    )
    u = _phi(z)
    right = np.clip(np.searchsorted(level, u), 1, max(1, len(level) - 1))
    if len(level) == 1:
        sampled = np.broadcast_to(tokens[:, 0], u.shape)
    else:
        rows = np.arange(len(prompts_of))
        low, high = tokens[rows, right - 1], tokens[rows, right]
        share = np.clip((u - level[right - 1]) / (level[right] - level[right - 1]), 0.0, 1.0)
        sampled = low + share * (high - low)
    return np.asarray(np.ceil(sampled), dtype=np.int64)

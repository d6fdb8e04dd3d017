"""Estimates from the history how log lengths vary around their prediction: between prompts, and within a prompt.

The model: response j to prompt i has ``log L = centre_i + g + u_i + e_ij``. ``g`` is shared by all responses of the step, as
the policy changed since the history. ``u_i`` is shared by those of a prompt. Both are normal; ``e`` has the empirical
distribution of the history. Lengths that are lower bounds are treated as censored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlhfless.predict.censoring import FloatArray
from rlhfless.predict.predictor import PromptHistory
from solver.lengths.survival import kaplan_meier

STEP = 0.05  # of a grid of logs
RESIDUALS = np.arange(-100, 101) * STEP  # at which the distribution of e is known
FEWEST_PROMPTS = 8  # that anything is learned from
SURPRISE, SURPRISE_SD = 0.003, 1.5  # share and spread of responses that are like none before
MIN_VARIANCE = 0.05**2
DRIFT, UNSEEN_DRIFT = 0.15**2, 0.3**2  # variance of g; where no prompt was ever seen to come back
GOES_ON = 0.8  # standard deviations that a response which was cut off is taken to go on for (half a normal distribution's mean)
RETURN = 0.2**2  # variance of a prompt's change until it comes back, where none was seen to


@dataclass(frozen=True, eq=False)
class LengthModelParameters:
    """Parameters of the length model.

    Attributes:
        centres: of prompts with history, by their name; common: that of all others.
        between, between_new: variance of u for prompts with history and without; drift: variance of g.
        shares: equally likely factors on the variance of u in a step.
        residual: (201,) P(e > x) at ``RESIDUALS``. Its last value is the share of responses that end only at the limit.
    """

    centres: dict[str, float]
    common: float
    between: float
    between_new: float
    drift: float
    shares: tuple[float, ...]
    residual: FloatArray


def scatter_of(table: pd.DataFrame, complete: NDArray[np.bool_], visits: PromptHistory) -> LengthModelParameters | None:
    """Estimate the parameters from the last visits of every prompt; None with fewer than 8 prompts.

    If at least 8 prompts were visited again, their last visits are compared with what was predicted for these. Otherwise the
    samples of a visit are compared with each other. With single samples, half of the variance is attributed to prompts, because
    the data cannot separate the two.

    Args:
        table: the history, with ``prompt_id, epoch, response_tokens`` and ``expected``; complete: (H,) False for lower bounds.
    """
    epochs = table.groupby("prompt_id")["epoch"]
    last = (table["epoch"] == epochs.transform("max")).to_numpy()
    names = table["prompt_id"].to_numpy()[last]
    distinct, owner, count = np.unique(names.astype(str), return_inverse=True, return_counts=True)
    if len(distinct) < FEWEST_PROMPTS:
        return None
    logs = np.log(np.maximum(table["response_tokens"].to_numpy(dtype=float)[last], 1.0))
    whole, single = complete[last], count == 1
    informative = (np.bincount(owner, weights=~whole) == 0) & ~single  # of a group that was cut off nobody knows the middle
    informative = informative if informative.sum() >= FEWEST_PROMPTS else ~single
    deviation = (logs - (np.bincount(owner, weights=logs) / count)[owner]) * np.sqrt(count / np.maximum(count - 1, 1))[owner]
    degrees = int((count - 1)[informative].sum())
    squares = deviation**2 * ((count - 1) / count)[owner]
    within = float(squares[informative[owner]].sum() / degrees) if degrees else 0.0
    mean = np.bincount(owner, weights=logs + np.where(whole, 0.0, GOES_ON * math.sqrt(within))) / count
    last_epoch = table["epoch"].to_numpy()[last]
    back = np.unique(owner[(epochs.transform("max") > epochs.transform("min")).to_numpy()[last]])
    average = np.log([max(visits.averages[name], 1.0) for name in distinct])
    if len(back) >= FEWEST_PROMPTS:
        key = dict(zip(owner.tolist(), last_epoch.tolist(), strict=True))
        predicted = np.log([max(visits.predicted[distinct[p], key[p]], 1.0) for p in back])
        off = mean[back] - predicted
        offset, between = float(off.mean()), float(off.var(ddof=1) - within * (1 / count[back]).mean())
        centre, drift, shares = average + offset, DRIFT, (0.5, 1.0, 2.0)
        alone = np.zeros(len(distinct))
        alone[back] = off - offset
        residuals, used = (deviation, informative) if degrees else (alone[owner], np.isin(np.arange(len(distinct)), back))
        if not degrees:
            between = 0.0  # single samples: all that is not foreseen counts as theirs
    else:
        plain = np.log(np.maximum(np.bincount(owner, weights=table["expected"].to_numpy(dtype=float)[last]) / count, 1.0))
        level = mean + average - plain  # what the policy is expected to have changed since
        spread = float(level.var(ddof=1))
        residuals, used = deviation, informative
        if not degrees:
            within, used = spread / 2, np.ones(len(distinct), dtype=bool)
            residuals = (logs - logs.mean()) * math.sqrt(0.5)
        variance = max(spread - within * float((1 / count).mean()), MIN_VARIANCE)
        trust = variance / (variance + within / count)
        centre = level.mean() + trust * (level - level.mean())
        between = float((trust * within / count).mean()) + RETURN
        drift, shares = UNSEEN_DRIFT, (1 / 16, 1 / 4, 1.0)  # as nothing tells, rather too wide than too narrow
    between = max(between, MIN_VARIANCE)
    return LengthModelParameters(
        dict(zip(distinct.tolist(), centre.tolist(), strict=True)), float(centre.mean()), between,
        between + float(centre.var(ddof=1)), drift, shares, _smooth(residuals[used[owner]], whole[used[owner]]),
    )  # fmt: skip


def _smooth(residuals: FloatArray, complete: NDArray[np.bool_]) -> FloatArray:
    """Return (201,) survival of e: Kaplan-Meier, smoothed by Silverman's width, and a small share for what was never seen."""
    survival = kaplan_meier(residuals, complete, RESIDUALS.astype(np.float64))
    width = max(STEP, 0.9 * float(residuals.std()) * len(residuals) ** -0.2)
    reach = math.ceil(4 * width / STEP)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * STEP / width) ** 2)
    padded = np.concatenate([np.ones(reach), survival, np.full(reach, survival[-1])])
    smooth = np.convolve(padded, kernel / kernel.sum(), mode="valid")
    surprise = np.array([0.5 * math.erfc(x / (SURPRISE_SD * math.sqrt(2))) for x in RESIDUALS])
    return np.asarray((1 - SURPRISE) * np.minimum.accumulate(np.clip(smooth, 0.0, 1.0)) + SURPRISE * surprise)

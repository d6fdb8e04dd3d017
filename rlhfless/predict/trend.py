"""Predicts lengths from each prompt's last visit, corrected for the drift of lengths since then (the policy changes).

A visit's time is its column ``step``, else ``epoch``. One drift rate applies to all prompts.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlhfless.predict.predictor import Predictor, PromptHistory

FEWEST_PAIRS = 8  # of visits of the same prompts; with fewer, means of steps say how lengths drift
MOST_DRIFT = np.log(4.0)


class TrendPredictor(Predictor):
    """A prompt's mean length at its last visit, times ``exp(rate x steps since then)``.

    The rate is the least-squares slope of log lengths over steps. Within prompts that were visited again, with m_k the mean of
    a visit, it is ``sum d g / sum g^2`` over d = log(m_k / m_(k-1)) and gaps g. Until there are enough of them, it is fitted to
    means of steps, whose prompts are treated as draws from one pool. It is shrunk by ``max(0, 1 - 1 / t^2)``, t its ratio to
    its standard error, so a drift that may be noise changes nothing. No prediction moves by more than a factor of 4.
    """

    def _learned(self, table: pd.DataFrame) -> PromptHistory:
        when = "step" if "step" in table.columns else "epoch"
        visits = table.groupby(["prompt_id", "epoch"], sort=True).agg(mean=("expected", "mean"), at=(when, "max")).reset_index()
        level = np.log(np.maximum(visits["mean"].to_numpy(dtype=float), 1.0))
        at = visits["at"].to_numpy(dtype=float)
        again = visits["prompt_id"].to_numpy()[1:] == visits["prompt_id"].to_numpy()[:-1]
        gaps, changes = np.diff(at)[again], np.diff(level)[again]
        if len(gaps) < FEWEST_PAIRS:
            steps = pd.DataFrame({"at": at, "level": level}).groupby("at")["level"].mean()
            gaps, changes = steps.index.to_numpy() - steps.index.to_numpy().mean(), steps.to_numpy() - steps.to_numpy().mean()
        rate = _shrunk_slope(gaps, changes)
        predicted: dict[tuple[str, int], float] = {}
        last: dict[str, tuple[float, float]] = {}
        for name, epoch, mean, step in zip(visits["prompt_id"], visits["epoch"], visits["mean"], at, strict=True):
            before, then = last.get(name, (mean, step))
            predicted[name, epoch] = before * _drift(rate, step - then)
            last[name] = (mean, step)
        now = at.max() + 1
        averages = {name: mean * _drift(rate, now - step) for name, (mean, step) in last.items()}
        return PromptHistory(table["expected"].to_numpy(dtype=float), predicted, averages)


def _shrunk_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Slope through the origin, shrunk by its noise; 0 if there are too few points to estimate the noise."""
    scale = float(x @ x)
    if len(x) < 3 or scale <= 0:
        return 0.0
    slope = float(x @ y) / scale
    variance = float(((y - slope * x) ** 2).sum()) / (len(x) - 1) / scale
    return slope * max(0.0, 1.0 - variance / slope**2) if slope else 0.0


def _drift(rate: float, steps: float) -> float:
    return float(np.exp(np.clip(rate * steps, -MOST_DRIFT, MOST_DRIFT)))

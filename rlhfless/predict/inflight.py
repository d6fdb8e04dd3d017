"""Predicts response lengths and updates the forecast while responses are decoded, from tokens and siblings.

Before a step, lengths are predicted from each prompt's last visit, corrected for the drift of lengths since then. The
arithmetic of a running step is in ``length_model.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pandas as pd

from rlhfless.predict.length_model import InFlightLengths, LengthModelParameters, Siblings, scatter_of
from rlhfless.predict.predictor import Predictor, PromptHistory
from solver.lengths.remaining import RemainingLengths
from solver.lengths.survival import from_scenarios
from solver.model.ordered_sums import dot
from solver.model.workload import IntArray, Workload

FEWEST_PAIRS = 8  # of visits of the same prompts; with fewer, means of steps say how lengths drift
MAX_DRIFT = np.log(4.0)


class InFlightPredictor(Predictor):
    """Predicts lengths that drift over training, and updates the remaining lengths while a step runs.

    The prediction is a prompt's mean length at its last visit, times ``exp(rate x steps since then)``. A visit's time is its
    column ``step``, else ``epoch``. The rate, one for all prompts, is the least-squares slope of log lengths over steps. Within
    prompts that were visited again, with m_k the mean of a visit, it is ``sum d g / sum g^2`` over d = log(m_k / m_(k-1)) and
    gaps g. Until there are enough of them, it is fitted to means of steps, whose prompts are treated as draws from one pool. It
    is shrunk by ``max(0, 1 - 1 / t^2)``, t its ratio to its standard error, so a drift that may be noise changes nothing. No
    prediction moves by more than a factor of 4.

    During a step it computes the distribution of every running response's length, conditional on its tokens so far, on finished
    and running responses to the same prompt, and on how this step's lengths differ from the history (``length_model.py``).
    Times are not used: responses of the history are assumed to have decoded at the same speed.
    """

    def _forget(self) -> None:
        super()._forget()
        self._scatters: dict[int, LengthModelParameters | None] = {}

    def update(self, rollouts: pd.DataFrame) -> Self:
        """See ``Predictor.update``."""
        self._scatters = {}
        return super().update(rollouts)

    def _remaining(self, names: Sequence[str], workload: Workload) -> RemainingLengths:
        """See ``Predictor._remaining``. With fewer than 8 prompts of history it is the forecast of the workload's scenarios."""
        siblings = self._siblings(names, workload.prompt_of, workload.max_response_tokens)
        return from_scenarios(workload) if siblings is None else InFlightLengths.of(siblings, workload)

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

    def _siblings(self, names: Sequence[str], prompt_of: IntArray, max_response_tokens: int) -> Siblings | None:
        """Return the model of a step whose prompts have these names; None without enough history."""
        if max_response_tokens not in self._scatters:
            self._scatters[max_response_tokens] = self._scatter(max_response_tokens)
        if (scatter := self._scatters[max_response_tokens]) is None:
            return None
        centre = np.array([scatter.centres.get(name, scatter.common) for name in names])
        has_history = np.array([name in scatter.centres for name in names], dtype=bool)
        return Siblings(scatter, prompt_of, has_history, centre, max_response_tokens)

    def _scatter(self, max_response_tokens: int) -> LengthModelParameters | None:
        if self._history.empty:
            return None
        visits = self._visits(max_response_tokens)
        whole = self._complete & (self._history["response_tokens"].to_numpy() < max_response_tokens)
        return scatter_of(self._history.assign(expected=visits.expected), whole, visits)


def _shrunk_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Slope through the origin, shrunk by its noise; 0 if there are too few points to estimate the noise."""
    scale = float(dot(x, x))
    if len(x) < 3 or scale <= 0:
        return 0.0
    slope = float(dot(x, y)) / scale
    variance = float(((y - slope * x) ** 2).sum()) / (len(x) - 1) / scale
    return slope * max(0.0, 1.0 - variance / slope**2) if slope else 0.0


def _drift(rate: float, steps: float) -> float:
    return float(np.exp(np.clip(rate * steps, -MAX_DRIFT, MAX_DRIFT)))

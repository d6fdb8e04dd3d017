"""Predicts how long responses get from how long the same prompt's responses were in earlier epochs.

Knows the rollouts of earlier steps; nothing of plans or GPUs. The paper's predictor: per prompt an exponentially weighted
moving average over epochs, of which window 1 (the last epoch alone) is what the paper uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlhfless.predict.censoring import FloatArray, expected_tokens
from rlhfless.predict.errors import PredictionError

NEEDED = ("prompt_id", "epoch", "response_tokens")


class _Visits(NamedTuple):
    """A history under one response limit: (H,) expected tokens of its responses, what every visit (prompt, epoch) was
    predicted to take (its own mean on a first visit), and the moving average of every prompt after its last visit."""

    expected: FloatArray
    predicted: dict[tuple[str, int], float]
    averages: dict[str, float]


class EwmaPredictor:
    """Per prompt, the moving average of its mean response length over the epochs that saw it.

    With m_1, m_2, ... the prompt's mean lengths in its epochs, in order: e_1 = m_1 and
    e_k = alpha m_k + (1 - alpha) e_(k-1), alpha = 2 / (window + 1). Every response of a prompt gets the same prediction.

    Responses that ended by ``length`` or were aborted are lower bounds: they enter the mean with what they would be
    expected to take under the response limit that is asked for (see censoring.py). With the limit that cut them off this
    is their own length; it is more when the limit has grown or other responses went on beyond that point. An unknown
    finish reason counts as complete.

    A prompt without history gets, in this order: the length of its reference answer where it is given, the median of all
    expected lengths of the history, half of the response limit. No prediction exceeds the response limit.

    Args:
        window: epochs that the average looks back on; 1 is the last epoch alone.

    Raises:
        PredictionError: the window is below 1.
    """

    def __init__(self, window: int = 1) -> None:
        if window < 1:
            raise PredictionError(f"the window is {window} epochs; at least 1 is needed")
        self.window = window
        self._history = pd.DataFrame({name: [] for name in NEEDED})
        self._complete = np.zeros(0, dtype=bool)
        self._seen: dict[int, _Visits] = {}

    @property
    def alpha(self) -> float:
        """Weight of a prompt's newest epoch."""
        return 2.0 / (self.window + 1)

    def fit(self, history: pd.DataFrame) -> EwmaPredictor:
        """Learn from rollouts of earlier steps of one run, replacing what was learned before.

        Args:
            history: rollouts rows; ``prompt_id, epoch, response_tokens`` are needed, ``finish_reason`` is used. It may
                have no rows.

        Returns:
            The predictor itself.

        Raises:
            PredictionError: a column is missing, or the rows are of several runs.
        """
        self._seen = {}
        if len(history) == 0:
            history = pd.DataFrame({name: [] for name in NEEDED})
        for column in NEEDED:
            if column not in history.columns:
                raise PredictionError(f"the history has no column '{column}'; rollouts with {', '.join(NEEDED)} are needed")
        if "run" in history.columns and history["run"].nunique() > 1:
            runs = ", ".join(map(str, history["run"].unique()))
            raise PredictionError(f"the history holds several runs ({runs}); the earlier steps of one run are needed")
        self._history = history[list(NEEDED)].assign(prompt_id=history["prompt_id"].astype(str))
        if "finish_reason" in history.columns:
            self._complete = ~history["finish_reason"].isin(["length", "aborted"]).to_numpy(dtype=bool)
        else:
            self._complete = np.ones(len(history), dtype=bool)
        return self

    def predict(
        self,
        prompt_ids: Sequence[Any],
        samples_per_prompt: ArrayLike = 1,
        reference_answer_tokens: Mapping[str, int] | None = None,
        *,
        response_limit: int,
    ) -> FloatArray:
        """Predicted tokens of each response.

        Args:
            prompt_ids: (P,) the prompts of the step, or (R,) the prompt of each response.
            samples_per_prompt: responses per prompt, one number or (P,); 1 when ``prompt_ids`` names one per response.
            reference_answer_tokens: prompt id → length of its reference answer, for prompts without history.
            response_limit: no response gets longer.

        Returns:
            (R,) tokens, prompt after prompt.

        Raises:
            PredictionError: the limit is below 1, or samples_per_prompt fits no prompts.
        """
        if response_limit < 1:
            raise PredictionError(f"response_limit is {response_limit}; at least 1 token is needed")
        samples = np.asarray(samples_per_prompt)
        if samples.shape not in ((), (len(prompt_ids),)) or not np.issubdtype(samples.dtype, np.integer) or (samples < 0).any():
            raise PredictionError(
                f"samples_per_prompt is {samples_per_prompt!r}; one whole number of 0 or more, or one per prompt, is needed"
            )
        by_prompt: dict[str, float] = {}
        fallback = response_limit / 2
        if not self._history.empty:
            visits = self._visits(response_limit)
            by_prompt, fallback = visits.averages, float(np.median(visits.expected))
        references = {str(name): float(tokens) for name, tokens in (reference_answer_tokens or {}).items()}
        known = references | by_prompt
        tokens = np.array([known.get(str(prompt_id), fallback) for prompt_id in prompt_ids], dtype=float)
        return np.repeat(np.minimum(tokens, response_limit), samples)

    def sample(
        self,
        prompt_ids: Sequence[Any],
        samples_per_prompt: ArrayLike = 1,
        reference_answer_tokens: Mapping[str, int] | None = None,
        *,
        response_limit: int,
        scenarios: int = 8,
        seed: int = 0,
    ) -> FloatArray:
        """Scenarios of lengths around the prediction: (S, R) tokens, from 1 to the response limit.

        Every response's prediction is multiplied by a ratio drawn from the newest visits of the history: there, the ratio of
        a response's length to what its prompt's earlier visits predicted (on a first visit, to the mean of the prompt's other
        samples). In every scenario a prompt takes over the ratios of one prompt of the history, each of its responses one of
        them: what moves all samples of a prompt together stays together. A history of first visits with one sample each says
        nothing of how well it predicts: then every response draws from all lengths seen, whatever its prompt. Without history
        every scenario is the prediction.

        The arguments are those of ``predict``, and the number of scenarios and a seed.
        """
        predicted = self.predict(prompt_ids, samples_per_prompt, reference_answer_tokens, response_limit=response_limit)
        rng, shape = np.random.default_rng(seed), (scenarios, len(predicted))
        if self._history.empty:
            sampled = np.broadcast_to(predicted, shape)
        elif len(of_prompts := self._ratios(response_limit)):
            pool, size = np.concatenate(of_prompts), np.array([len(r) for r in of_prompts])
            repeats = np.broadcast_to(np.asarray(samples_per_prompt, dtype=np.int64), (len(prompt_ids),))
            asked = np.repeat(pd.factorize(np.array([str(p) for p in prompt_ids], dtype=object))[0], repeats)
            source = rng.integers(len(size), size=(scenarios, int(asked.max(initial=-1)) + 1))[:, asked]
            first = np.cumsum(size) - size
            sampled = predicted * pool[first[source] + np.floor(rng.random(shape) * size[source]).astype(np.int64)]
        else:
            sampled = rng.choice(self._visits(response_limit).expected, size=shape)
        return np.asarray(np.clip(np.ceil(sampled), 1, response_limit), dtype=float)

    def _ratios(self, response_limit: int) -> list[FloatArray]:
        """Length over prediction of the responses of every prompt's newest visit; prompts that were not predicted left out."""
        visits = self._visits(response_limit)
        table = self._history.assign(expected=visits.expected)
        by_prompt = table.groupby("prompt_id")["epoch"]
        newest = table[table["epoch"] == by_prompt.transform("max")]
        first = (newest["epoch"] == by_prompt.transform("min")[newest.index]).to_numpy()
        visit = newest.groupby("prompt_id")["expected"]
        samples = visit.transform("size").to_numpy(dtype=float)
        others = (visit.transform("sum") - newest["expected"]).to_numpy(dtype=float) / np.maximum(samples - 1, 1)
        predicted = np.array([visits.predicted[key] for key in zip(newest["prompt_id"], newest["epoch"], strict=True)])
        base = np.where(first, np.where(samples > 1, others, 0.0), predicted)
        known = newest.assign(ratio=np.where(base > 0, newest["expected"] / np.where(base > 0, base, 1.0), np.nan)).dropna()
        return [group.to_numpy(dtype=float) for _, group in known.groupby("prompt_id")["ratio"]]

    def _visits(self, response_limit: int) -> _Visits:
        """The moving average over the history, worked out once per response limit."""
        if response_limit not in self._seen:
            expected = expected_tokens(self._history["response_tokens"], self._complete, response_limit)
            means = self._history.assign(expected=expected).groupby(["prompt_id", "epoch"], sort=True)["expected"].mean()
            predicted: dict[tuple[str, int], float] = {}
            averages: dict[str, float] = {}
            for (prompt_id, epoch), mean in means.items():
                earlier = averages.get(prompt_id, mean)
                predicted[prompt_id, epoch] = earlier
                averages[prompt_id] = self.alpha * mean + (1 - self.alpha) * earlier
            self._seen[response_limit] = _Visits(expected, predicted, averages)
        return self._seen[response_limit]

    def __repr__(self) -> str:
        prompts = self._history["prompt_id"].nunique()
        return f"EwmaPredictor(window={self.window}, {len(self._history):,} responses to {prompts:,} prompts)"

"""Base class of response-length predictors: input checks, and the forms of a prediction (forecast, values, samples).

A subclass computes predictions in ``_learned``; this class spreads scenarios around them. Randomness comes from a given seed
only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlhfless.predict.checks import NEEDED, PredictionError, check_draws, check_limit, check_rollouts, lengths_of
from solver.lengths.forecast import LengthForecast
from solver.lengths.remaining import RemainingLengths
from solver.lengths.survival import kaplan_meier
from solver.model.plurals import counted
from solver.model.workload import FloatArray, Workload

USED = (*NEEDED, "step", "finish_reason", "run")
PROVED = 30  # responses from which on the errors of forecasts count as known


class PromptHistory(NamedTuple):
    """A history under one response limit.

    It has the (H,) expected tokens of its responses, the prediction of at least each prompt's newest visit (prompt, epoch), and
    the prediction for every prompt's next visit. On a first visit the prediction is the prompt's own mean.
    """

    expected: FloatArray
    predicted: dict[tuple[str, int], float]
    averages: dict[str, float]


class Predictor(ABC):
    """Learns from rollouts of earlier steps of one run, and predicts the responses of the next step.

    Responses that ended by ``length`` or were aborted are lower bounds: they count with their expected length under the
    requested response limit (``expected_tokens``). An unknown finish reason counts as complete.

    A prompt without history is predicted by the length of its reference answer. Without one it is the median of all expected
    lengths of the history, and without any history half of the response limit. No prediction exceeds the response limit.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._history = pd.DataFrame({name: [] for name in NEEDED})
        self._complete = np.zeros(0, dtype=bool)
        self._seen: dict[int, PromptHistory] = {}

    def fit(self, history: pd.DataFrame) -> Self:
        """Learn from all rollouts of earlier steps, replacing what was learned before; otherwise like ``update``."""
        self._forget()
        return self.update(history)

    def update(self, rollouts: pd.DataFrame) -> Self:
        """Learn from rollouts of later steps too.

        Args:
            rollouts: rows of one run; ``prompt_id, epoch, response_tokens`` are needed, ``finish_reason`` is used, and
                ``step`` by predictors that say so. There may be no rows.

        Returns:
            The predictor itself.

        Raises:
            PredictionError: a column is missing, a length is not a number of 0 or more, or the rows are of several runs.
        """
        self._seen = {}
        if len(rollouts) == 0:
            return self
        check_rollouts(rollouts)
        new = rollouts[[name for name in USED if name in rollouts.columns]].assign(prompt_id=rollouts["prompt_id"].astype(str))
        history = new if self._history.empty else pd.concat([self._history, new])
        if "run" in history.columns and history["run"].nunique() > 1:
            runs = ", ".join(map(str, history["run"].unique()))
            raise PredictionError(f"the history holds several runs ({runs}); the earlier steps of one run are needed")
        self._history = history.reset_index(drop=True)
        self._complete = np.ones(len(history), dtype=bool)
        if "finish_reason" in history.columns:
            self._complete = ~history["finish_reason"].isin(["length", "aborted"]).to_numpy(dtype=bool)
        return self

    def predict(
        self,
        prompt_ids: Sequence[Any],
        samples_per_prompt: ArrayLike = 1,
        reference_answer_tokens: Mapping[str, int] | None = None,
        *,
        max_response_tokens: int,
    ) -> FloatArray:
        """Return the predicted tokens of each response.

        Args:
            prompt_ids: (P,) the prompts of the step, or (R,) the prompt of each response.
            samples_per_prompt: responses per prompt, one number or (P,); 1 if ``prompt_ids`` has one entry per response.
            reference_answer_tokens: prompt id → length of its reference answer, for prompts without history.
            max_response_tokens: maximal length of a response.

        Returns:
            (R,) tokens, prompt after prompt.

        Raises:
            PredictionError: the limit is below 1, samples_per_prompt does not fit the prompts, or the length of a reference
                answer is not a number of 0 or more.
        """
        check_limit(max_response_tokens)
        samples = np.asarray(samples_per_prompt)
        if samples.shape not in ((), (len(prompt_ids),)) or not np.issubdtype(samples.dtype, np.integer) or (samples < 0).any():
            raise PredictionError(
                f"samples_per_prompt is {samples_per_prompt!r}; one whole number of 0 or more, or one per prompt, is needed"
            )
        by_prompt: dict[str, float] = {}
        fallback = max_response_tokens / 2
        if not self._history.empty:
            visits = self._visits(max_response_tokens)
            by_prompt, fallback = visits.averages, float(np.median(visits.expected))
        asked = [str(prompt_id) for prompt_id in prompt_ids]
        tokens_of = lengths_of(reference_answer_tokens or {}, set(asked)) | by_prompt
        tokens = np.array([tokens_of.get(name, fallback) for name in asked], dtype=float)
        return np.repeat(np.minimum(tokens, max_response_tokens), samples)

    def sample(
        self,
        prompt_ids: Sequence[Any],
        samples_per_prompt: ArrayLike = 1,
        reference_answer_tokens: Mapping[str, int] | None = None,
        *,
        max_response_tokens: int,
        scenarios: int = 8,
        seed: int = 0,
    ) -> FloatArray:
        """Draw scenarios of lengths around the prediction: (S, R) tokens, from 1 to the response limit.

        Every response's prediction is multiplied by a ratio drawn from the newest visits of the history. There, the ratio is a
        response's length over what its prompt's earlier visits predicted. On a first visit it is over the mean of the prompt's
        other samples. In every scenario a prompt takes the ratios of one prompt of the history, and each of its responses takes
        one of them. So effects that move all samples of a prompt together stay together. A history of first visits with one
        sample each cannot show how accurate predictions are. Then every response draws from all observed lengths, whatever its
        prompt. Without history every scenario is the prediction.

        The arguments are those of ``predict``, the number of scenarios and a seed.

        Raises:
            PredictionError: as ``predict``; or ``scenarios`` is below 1, or the seed is not a whole number of 0 or more.
        """
        check_draws(scenarios, seed)
        predicted = self.predict(
            prompt_ids, samples_per_prompt, reference_answer_tokens, max_response_tokens=max_response_tokens
        )
        rng, shape = np.random.default_rng(seed), (scenarios, len(predicted))
        if self._history.empty:
            sampled = np.broadcast_to(predicted, shape)
        elif len(of_prompts := self._ratios(max_response_tokens)):
            pool, size = np.concatenate(of_prompts), np.array([len(r) for r in of_prompts])
            repeats = np.broadcast_to(np.asarray(samples_per_prompt, dtype=np.int64), (len(prompt_ids),))
            asked = np.repeat(pd.factorize(np.array([str(p) for p in prompt_ids], dtype=object))[0], repeats)
            source = rng.integers(len(size), size=(scenarios, int(asked.max(initial=-1)) + 1))[:, asked]
            first = np.cumsum(size) - size
            sampled = predicted * pool[first[source] + np.floor(rng.random(shape) * size[source]).astype(np.int64)]
        else:
            sampled = rng.choice(self._visits(max_response_tokens).expected, size=shape)
        return np.asarray(np.clip(np.ceil(sampled), 1, max_response_tokens), dtype=float)

    def forecast(
        self,
        prompt_ids: Sequence[Any],
        samples_per_prompt: ArrayLike = 1,
        reference_answer_tokens: Mapping[str, int] | None = None,
        *,
        max_response_tokens: int,
        prompt_tokens: ArrayLike = 0,
        scenarios: int = 8,
        seed: int = 0,
    ) -> LengthForecast:
        """Return the forecast of a step's R responses: expected tokens, scenarios around them, and remaining lengths.

        Args:
            prompt_tokens: tokens of the prompts, one number or one for each of ``prompt_ids``; the remaining lengths need them.

        The other arguments are those of ``predict`` and ``sample``.

        Raises:
            PredictionError: as ``predict`` and ``sample``.
        """
        asked = prompt_ids, samples_per_prompt, reference_answer_tokens
        expected = self.predict(*asked, max_response_tokens=max_response_tokens)
        drawn = self.sample(*asked, max_response_tokens=max_response_tokens, scenarios=scenarios, seed=seed)
        if not len(expected):
            return LengthForecast(expected, drawn)
        owner, names = pd.factorize(np.array([str(prompt_id) for prompt_id in prompt_ids], dtype=object))
        first = np.unique(owner, return_index=True)[1]
        tokens = np.broadcast_to(np.asarray(prompt_tokens), (len(owner),))[first]
        prompt_of = np.repeat(owner, np.broadcast_to(np.asarray(samples_per_prompt), (len(owner),)))
        workload = Workload(tokens, prompt_of, expected, max_response_tokens=max_response_tokens, scenarios=drawn)
        return LengthForecast(expected, drawn, self._remaining(names.tolist(), workload), self._error_sd(max_response_tokens))

    def _remaining(self, names: Sequence[str], workload: Workload) -> RemainingLengths | None:
        """Return the predictor's own forecast for re-planning a running step; None (here) follows the workload's scenarios.

        Args:
            names: (P,) of the workload's prompts.
        """
        return None

    def _ratios(self, max_response_tokens: int, *, again: bool = False) -> list[FloatArray]:
        """Length over prediction of the responses of every prompt's newest visit; prompts that were not predicted left out.

        Args:
            again: only prompts that had been visited before.
        """
        visits = self._visits(max_response_tokens)
        table = self._history.assign(expected=visits.expected)
        by_prompt = table.groupby("prompt_id")["epoch"]
        newest = table[table["epoch"] == by_prompt.transform("max")]
        first = (newest["epoch"] == by_prompt.transform("min")[newest.index]).to_numpy()
        visit = newest.groupby("prompt_id")["expected"]
        samples = visit.transform("size").to_numpy(dtype=float)
        others_mean = (visit.transform("sum") - newest["expected"]).to_numpy(dtype=float) / np.maximum(samples - 1, 1)
        predicted = np.array([visits.predicted[key] for key in zip(newest["prompt_id"], newest["epoch"], strict=True)])
        base = np.where(first, np.where((samples > 1) & (not again), others_mean, 0.0), predicted)
        comparable = newest.assign(
            ratio=np.where(base > 0, newest["expected"] / np.where(base > 0, base, 1.0), np.nan)
        ).dropna()
        return [group.to_numpy(dtype=float) for _, group in comparable.groupby("prompt_id")["ratio"]]

    def _error_sd(self, max_response_tokens: int) -> float | None:
        """Standard deviation of the logarithm of length over prediction, of prompts' newest visits that earlier ones predicted;
        None with fewer than ``PROVED`` responses.
        """
        if self._history.empty:
            return None
        ratios = np.concatenate([np.zeros(0), *self._ratios(max_response_tokens, again=True)])
        errors = np.log(ratios[ratios > 0])
        return float(errors.std()) if len(errors) >= PROVED else None

    def _visits(self, max_response_tokens: int) -> PromptHistory:
        """Return the history under a response limit, computed once per limit."""
        if max_response_tokens not in self._seen:
            expected = expected_tokens(self._history["response_tokens"], self._complete, max_response_tokens)
            self._seen[max_response_tokens] = self._learned(self._history.assign(expected=expected))
        return self._seen[max_response_tokens]

    @abstractmethod
    def _learned(self, table: pd.DataFrame) -> PromptHistory:
        """Return what was learned from a history with its expected lengths (column ``expected``); it has at least one row."""
        ...

    def __repr__(self) -> str:
        prompts = self._history["prompt_id"].nunique()
        return (
            f"{type(self).__name__}({self._facts()}{counted(len(self._history), 'response')} to {counted(prompts, 'prompt')})"
        )

    def _facts(self) -> str:
        """Parameters, for the repr."""
        return ""


def expected_tokens(tokens: ArrayLike, complete: ArrayLike, max_response_tokens: float) -> FloatArray:
    """Return each response's expected length under a response limit, where truncated ones are censored.

    A response that ended by ``length`` or was aborted is right-censored: it would have been longer. The survival function of
    the whole history (Kaplan-Meier, no parametric tail) says how much longer complete responses became that reached the same
    length. Beyond the longest length of the history nothing is added (Efron's convention): a censored length then counts as it
    is.

    A complete length x gives min(x, limit). A length c that is a lower bound gives E[min(X, limit) | X > c], with the
    survival function S of all lengths together: ``c + integral of S(u) / S(c) du from c to limit``.

    Args:
        tokens: (R,) lengths.
        complete: (R,) bool, False where the length is a lower bound.
        max_response_tokens: maximal length.

    Returns:
        (R,) tokens, never below min(tokens, max_response_tokens) and never above the limit.
    """
    length = np.asarray(tokens, dtype=float)
    whole = np.asarray(complete, dtype=bool)
    expected: FloatArray = np.minimum(length, max_response_tokens)
    if whole.all():
        return expected
    at = np.unique(length)
    survival = kaplan_meier(length, whole, at)
    # tail[j] = integral of S from at[j] to the limit; S is survival[j] on [at[j], at[j + 1])
    edges = np.minimum(at, max_response_tokens)
    tail = np.concatenate([np.cumsum((survival[:-1] * np.diff(edges))[::-1])[::-1], [0.0]])
    j = np.searchsorted(at, length[~whole])
    open_ended = survival[j] > 0
    residual = np.divide(tail[j], survival[j], out=np.zeros(len(j)), where=open_ended)
    expected[~whole] = np.minimum(expected[~whole] + residual, max_response_tokens)
    return expected

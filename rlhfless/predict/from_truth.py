"""Predictions of chosen quality, made from true lengths: to study what information is worth.

``SyntheticPredictor`` is right about a share of the prompts. The paper's system with a poor predictor uses one that is 44 %
accurate. The other functions make forecasts of one step: a ``Workload`` with predicted lengths and scenarios around them. The
more a forecast knows of each response, the sharper it is. It knows nothing but the prompt's lengths, then the length itself up
to an error, then the length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlhfless.predict.checks import PredictionError, check_draws
from rlhfless.predict.predictor import Predictor, PromptHistory
from solver.model.workload import FloatArray, Workload

PAPERS_ACCURACY = 0.44
SCENARIOS = 16
SDS = (0.3, 0.2, 0.1, 0.05)


class SyntheticPredictor(Predictor):
    """A predictor of known accuracy: it predicts a share of the prompts by their true means, and permutes the means of the
    others.

    It predicts the first step of ``truth`` after the steps that it was fitted to. The correct prompts are drawn at random for
    every step. All scenarios equal the prediction.

    Args:
        truth: all rollouts, including those to predict. accuracy: share of the prompts, 0 to 1. seed: of the draw.

    Raises:
        PredictionError: the accuracy is not in 0..1, or the truth has no steps.
    """

    def __init__(self, truth: pd.DataFrame, accuracy: float = PAPERS_ACCURACY, seed: int = 0) -> None:
        if not 0 <= accuracy <= 1:
            raise PredictionError(f"the accuracy is {accuracy:g}; a share from 0 to 1 is needed")
        if "step" not in truth.columns or truth.empty:
            raise PredictionError("the truth has no steps; rollouts with the column 'step' are needed")
        super().__init__()
        self.accuracy, self.seed = accuracy, seed
        rows = truth.assign(prompt_id=truth["prompt_id"].astype(str))
        self._means = {int(step): group.groupby("prompt_id")["response_tokens"].mean() for step, group in rows.groupby("step")}

    def predict(
        self,
        prompt_ids: Sequence[Any],
        samples_per_prompt: ArrayLike = 1,
        reference_answer_tokens: Mapping[str, int] | None = None,
        *,
        max_response_tokens: int,
    ) -> FloatArray:
        """See ``Predictor.predict``. Reference answers are not used.

        Raises:
            PredictionError: also if the truth lacks the step, or a prompt in it.
        """
        last_step = -1 if self._history.empty else int(self._history["step"].max())
        step = min((s for s in self._means if s > last_step), default=None)
        asked = [str(p) for p in prompt_ids]
        missing = [name for name in asked if step is None or name not in self._means[step].index]
        if missing:
            problem = (
                "the truth has no later step" if step is None else f"step {step} of the truth has no prompt {missing[0]!r}"
            )
            raise PredictionError(f"{problem}; the true lengths of the predicted step are needed")
        answers = self._dialled(step) if step is not None else {}
        return super().predict(
            asked, samples_per_prompt, {n: answers[n] for n in asked}, max_response_tokens=max_response_tokens
        )

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
        """Return the prediction S times, (S, R)."""
        check_draws(scenarios, seed)
        predicted = self.predict(prompt_ids, samples_per_prompt, max_response_tokens=max_response_tokens)
        return np.broadcast_to(np.clip(np.ceil(predicted), 1, max_response_tokens), (scenarios, len(predicted))).astype(float)

    def _dialled(self, step: int) -> dict[str, Any]:
        """Return the means of a step's prompts; those of the wrong prompts are exchanged in a circle."""
        means = self._means[step].sort_index()
        order = np.random.default_rng([self.seed, step]).permutation(len(means))
        wrong = order[round(self.accuracy * len(means)) :]
        values = means.to_numpy(dtype=float).copy()
        values[wrong] = values[np.roll(wrong, 1)]
        return dict(zip(means.index, values, strict=True))

    def _learned(self, table: pd.DataFrame) -> PromptHistory:
        return PromptHistory(table["expected"].to_numpy(dtype=float), {}, {})

    def _error_sd(self, max_response_tokens: int) -> float | None:
        """Its errors are set, not those of earlier visits."""
        return None

    def _facts(self) -> str:
        return f"accuracy={self.accuracy:g}, "


def noisy_lengths(truth: Workload, sd: float, *, scenarios: int = SCENARIOS, seed: int = 0) -> Workload:
    """Return a forecast per response that misses each length by a lognormal factor, ``predicted = truth * exp(sd * z)``.

    Its scenarios are as far from the prediction as the prediction is from the truth: ``predicted * exp(sd * z')``.

    Args:
        sd: standard deviation of the logarithm of the error.

    Raises:
        PredictionError: ``sd`` is below 0, ``scenarios`` below 1, or the seed is no whole number of 0 or more.
    """
    check_draws(scenarios, seed)
    if not 0 <= sd < np.inf:
        raise PredictionError(f"sd is {sd:g}; a finite number of 0 or more is needed")
    rng = np.random.default_rng([seed, round(1e6 * sd)])
    predicted = truth.response_tokens * np.exp(sd * rng.standard_normal(len(truth)))
    return _forecast(truth, predicted, predicted * np.exp(sd * rng.standard_normal((scenarios, len(truth)))))


def prompt_means(truth: Workload, *, scenarios: int = SCENARIOS) -> Workload:
    """Return the forecast that knows the mean length of every prompt's responses, and takes it for the length of each."""
    predicted = _means(truth)
    return _forecast(truth, predicted, np.tile(predicted, (scenarios, 1)))


def prompt_lengths(truth: Workload, *, scenarios: int = SCENARIOS, seed: int = 0) -> Workload:
    """Return the forecast that knows every prompt's lengths, but not which response has which.

    In every scenario each response has a length drawn from those of its prompt.

    Raises:
        PredictionError: ``scenarios`` is below 1, or the seed is no whole number of 0 or more.
    """
    check_draws(scenarios, seed)
    by_prompt = np.argsort(truth.prompt_of, kind="stable")
    size = np.bincount(truth.prompt_of, minlength=len(truth.prompt_tokens))[truth.prompt_of]
    first = np.searchsorted(truth.prompt_of[by_prompt], truth.prompt_of)
    drawn = first + np.floor(np.random.default_rng(seed).random((scenarios, len(truth))) * size).astype(np.int64)
    return _forecast(truth, _means(truth), truth.response_tokens[by_prompt[drawn]])


def _means(truth: Workload) -> np.ndarray:
    sums = np.bincount(truth.prompt_of, weights=truth.response_tokens)
    return np.asarray((sums / np.maximum(np.bincount(truth.prompt_of), 1))[truth.prompt_of])


def _forecast(truth: Workload, predicted: np.ndarray, scenarios: np.ndarray | Sequence[float]) -> Workload:
    tokens, sampled = (np.clip(np.rint(x), 1, truth.max_response_tokens) for x in (predicted, np.asarray(scenarios)))
    return Workload(
        truth.prompt_tokens, truth.prompt_of, tokens, truth.generated_tokens, truth.max_response_tokens, scenarios=sampled
    )

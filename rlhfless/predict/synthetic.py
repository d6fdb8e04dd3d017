"""A predictor with a chosen accuracy, to study the value of predictions; it knows the true lengths.

The paper's system with a poor predictor uses one that is 44 % accurate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlhfless.predict.censoring import FloatArray
from rlhfless.predict.errors import PredictionError
from rlhfless.predict.predictor import Predictor, PromptHistory
from rlhfless.predict.validation import check_draws

PAPERS_ACCURACY = 0.44


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

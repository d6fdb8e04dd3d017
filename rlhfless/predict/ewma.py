"""Predicts response lengths by the moving average of the same prompt's lengths in earlier epochs (the paper's predictor).

Per prompt an exponentially weighted moving average over epochs; the paper uses window 1, the last value alone.
"""

from __future__ import annotations

import pandas as pd

from rlhfless.predict.checks import PredictionError
from rlhfless.predict.predictor import Predictor, PromptHistory


class EwmaPredictor(Predictor):
    """Predicts the exponential moving average of a prompt's mean length over the epochs that contain it.

    The expected length of a complete response is its length (``Predictor`` says what it is otherwise). With m_1, m_2, ... the
    prompt's mean expected lengths in its epochs, in order: e_1 = m_1 and
    e_k = alpha m_k + (1 - alpha) e_(k-1), alpha = 2 / (window + 1). Every response of a prompt gets the same prediction.

    Args:
        window: number of epochs of the average; 1: only the last epoch.

    Raises:
        PredictionError: the window is below 1.
    """

    def __init__(self, window: int = 1) -> None:
        if window < 1:
            raise PredictionError(f"window is {window} epochs; at least 1 is needed")
        super().__init__()
        self.window = window

    @property
    def alpha(self) -> float:
        """Weight of a prompt's newest epoch."""
        return 2.0 / (self.window + 1)

    def _learned(self, table: pd.DataFrame) -> PromptHistory:
        means = table.groupby(["prompt_id", "epoch"], sort=True)["expected"].mean()
        predicted: dict[tuple[str, int], float] = {}
        averages: dict[str, float] = {}
        for (prompt_id, epoch), mean in means.items():
            earlier = averages.get(prompt_id, mean)
            predicted[prompt_id, epoch] = earlier
            averages[prompt_id] = self.alpha * mean + (1 - self.alpha) * earlier
        return PromptHistory(table["expected"].to_numpy(dtype=float), predicted, averages)

    def _facts(self) -> str:
        return f"window={self.window}, "

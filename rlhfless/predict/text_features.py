"""Predicts the lengths of new prompts by a regression on counts in their text.

Needs scikit-learn (the extra ``predict``). Prompts with history are predicted from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd

from rlhfless.errors import missing_extra
from rlhfless.predict.censoring import FloatArray
from rlhfless.predict.ewma import EwmaPredictor
from rlhfless.predict.predictor import PromptHistory

FEWEST_PROMPTS = 10  # to learn from
STRENGTHS = tuple(float(x) for x in np.logspace(-2, 4, 13))


class FeaturePredictor(EwmaPredictor):
    """For a prompt without history, ridge regression of log lengths on logs of counts in its text (``prompt_features``).

    It is fitted to last visits of prompts with known text: from the column ``prompt`` of rollouts, or from ``describe``. The
    penalty is chosen by leave-one-out. With fewer than 10 such prompts it is ``EwmaPredictor``.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """

    def __init__(self, window: int = 1) -> None:
        try:
            from sklearn.linear_model import RidgeCV
        except ImportError:
            raise missing_extra("predicting from prompts' texts", "scikit-learn", "predict") from None
        super().__init__(window)
        self._model = RidgeCV(STRENGTHS)
        self._texts: dict[str, str] = {}

    def describe(self, prompts: Mapping[Any, str]) -> Self:
        """Set the texts of prompts, also of those of the coming step."""
        self._texts |= {str(name): text for name, text in prompts.items()}
        self._seen = {}
        return self

    def _learned(self, table: pd.DataFrame) -> PromptHistory:
        plain = super()._learned(table)
        if "prompt" in table.columns:
            known = table.dropna(subset=["prompt"]).drop_duplicates("prompt_id")
            self._texts |= dict(zip(known["prompt_id"], known["prompt"].astype(str), strict=True))
        seen = sorted(plain.averages.keys() & self._texts.keys())
        new = sorted(self._texts.keys() - plain.averages.keys())
        if len(seen) < FEWEST_PROMPTS or not new:
            return plain
        inputs = np.array([prompt_features(self._texts[name]) for name in [*seen, *new]])
        scale = np.maximum(inputs[: len(seen)].std(axis=0), 1e-9)
        inputs = np.clip((inputs - inputs[: len(seen)].mean(axis=0)) / scale, -5.0, 5.0)
        lengths = np.log(np.maximum([plain.averages[name] for name in seen], 1.0))
        self._model.fit(inputs[: len(seen)], lengths)
        guessed = np.exp(np.clip(self._model.predict(inputs[len(seen) :]), lengths.min(), lengths.max()))
        return plain._replace(averages=plain.averages | dict(zip(new, map(float, guessed), strict=True)))


def prompt_features(text: str) -> FloatArray:
    """(8,) log(1 + count) of characters, words, lines, distinct characters, numbers, digits, operators and punctuation."""
    numbers = re.findall(r"\d+", text)
    counts = [len(text), len(text.split()), text.count("\n"), len(set(text)), len(numbers), sum(map(len, numbers))]
    counts += [len(re.findall(r"[-+*/=^<>\\]", text)), len(re.findall(r"[.,;:?!()]", text))]
    return np.asarray(np.log1p(np.array(counts, dtype=float)))

"""Predicts a group's lengths from its first finished sample.

For training loops that generate one sample of every prompt before they plan the rest, or plan again. It learns how first
samples and predictions of last visits related to the group's other samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd

from rlhfless.predict.censoring import FloatArray
from rlhfless.predict.ewma import EwmaPredictor
from rlhfless.predict.predictor import PromptHistory

FEWEST_GROUPS = 8
RIDGE = 1e-6  # times the groups: predictions or probes that never differ get no weight of their own


class ProbePredictor(EwmaPredictor):
    """``exp(c + a log(average) + b log(probe))`` where a prompt's first sample (probe) was observed, else the moving average.

    c, a and b are least squares over the newest visits of the history. They predict the mean of a group's samples without the
    first from the moving average before that visit (a = 0 for new prompts) and the first sample. With fewer than 8 such groups,
    and for prompts whose probe is unknown, it is ``EwmaPredictor``.
    """

    def __init__(self, window: int = 1) -> None:
        super().__init__(window)
        self._probes: dict[str, float] = {}

    def observe(self, first_tokens: Mapping[Any, float]) -> Self:
        """Set the lengths of the first samples of the coming step's prompts; ``update`` and ``fit`` discard them."""
        self._probes = {str(name): max(1.0, float(tokens)) for name, tokens in first_tokens.items()}
        self._seen = {}
        return self

    def update(self, rollouts: pd.DataFrame) -> Self:
        """See ``Predictor.update``; the first sample of a group is its smallest ``sample``, else its first row."""
        self._probes = {}
        return super().update(rollouts)

    def _learned(self, table: pd.DataFrame) -> PromptHistory:
        plain = super()._learned(table)
        ordered = table.sort_values("sample", kind="stable") if "sample" in table.columns else table
        known: tuple[list[list[float]], list[list[float]]] = ([], [])
        newest = ordered[ordered["epoch"] == ordered.groupby("prompt_id")["epoch"].transform("max")]
        first_epoch = table.groupby("prompt_id")["epoch"].min()
        for (name, epoch), own in newest.groupby(["prompt_id", "epoch"], sort=True)["expected"]:
            if len(own) > 1:
                seen = epoch > first_epoch[name]
                before = [plain.predicted[name, epoch]] if seen else []
                known[int(seen)].append([*before, own.iloc[0], own.iloc[1:].mean()])
        fitted = [_fitted(rows) for rows in known]
        averages = dict(plain.averages)
        for name, probe in self._probes.items():
            before = [averages[name]] if name in averages else []
            if (line := fitted[len(before)]) is not None:
                averages[name] = float(np.exp(line[0] + np.log(np.maximum([*before, probe], 1.0)) @ line[1:]))
        return plain._replace(averages=averages)


def _fitted(rows: list[list[float]]) -> FloatArray | None:
    """Intercept and slopes of the log of the last column on the logs of the others; None with too few rows."""
    if len(rows) < FEWEST_GROUPS:
        return None
    logs = np.log(np.maximum(np.array(rows), 1.0))
    inputs, centre = logs[:, :-1], logs.mean(axis=0)
    x, y = inputs - centre[:-1], logs[:, -1] - centre[-1]
    slopes = np.linalg.solve(x.T @ x + RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y)
    return np.concatenate([[centre[-1] - centre[:-1] @ slopes], slopes])

"""Predicts a length distribution per prompt: its own last lengths mixed with those of all prompts (shrinkage).

The more samples a prompt has, the less the others count. This is the only predictor with an own spread for each prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlhfless.predict.censoring import FloatArray
from rlhfless.predict.predictor import Predictor, PromptHistory
from rlhfless.predict.validation import check_draws

FEWEST, MAX_LENGTHS = 0.05, 1000.0  # global lengths that stand beside a prompt's own
UNKNOWN = 1.0  # where no prompt has two samples, so that nothing tells how alike a prompt's samples are


class ShrinkagePredictor(Predictor):
    """Predicts for a prompt with n samples at its last visit the distribution ``(n F_own + m F_all) / (n + m)`` of lengths.

    F_own is the distribution of its own samples, F_all that of all prompts. It is the predictive distribution of a Dirichlet
    process around F_all with concentration m. In it the variance within prompts is m times that between them; m is this ratio
    of the history's log lengths (last visits). Predictions are means. Scenarios are drawn jointly (Polya's urn): each drawn
    length is one more sample for the prompt's next response.
    """

    def _learned(self, table: pd.DataFrame) -> PromptHistory:
        is_newest = table["epoch"] == table.groupby("prompt_id")["epoch"].transform("max")
        earlier = _newest_lengths(table[~is_newest])
        before = _means(earlier, _concentration(list(earlier.values()))) if earlier else {}
        self._lengths = _newest_lengths(table)
        self._pool = np.concatenate(list(self._lengths.values()))
        self._weight = _concentration(list(self._lengths.values()))
        epochs = table[is_newest].groupby("prompt_id")["epoch"].first()
        predicted = {(name, epochs[name]): before.get(name, float(lengths.mean())) for name, lengths in self._lengths.items()}
        return PromptHistory(table["expected"].to_numpy(dtype=float), predicted, _means(self._lengths, self._weight))

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
        """See ``Predictor.sample``; a prompt without history draws from the lengths of all prompts, scaled to its
        prediction.
        """
        check_draws(scenarios, seed)
        predicted = self.predict(
            prompt_ids, samples_per_prompt, reference_answer_tokens, max_response_tokens=max_response_tokens
        )
        drawn = np.broadcast_to(predicted, (scenarios, len(predicted))).copy()
        if not self._history.empty:
            self._visits(max_response_tokens)
            rng, m = np.random.default_rng(seed), self._weight
            repeats = np.broadcast_to(np.asarray(samples_per_prompt, dtype=np.int64), (len(prompt_ids),))
            asked = np.repeat(np.array([str(p) for p in prompt_ids], dtype=object), repeats)
            for name, responses in pd.Series(range(len(asked))).groupby(asked, sort=False).indices.items():
                lengths = self._lengths.get(str(name), np.zeros(0))
                pool = self._pool if len(lengths) else self._pool * predicted[responses[0]] / max(1.0, self._pool.mean())
                urn = np.broadcast_to(lengths, (scenarios, len(lengths)))
                for j, response in enumerate(responses):
                    at = rng.random(scenarios) * (len(lengths) + j + m)
                    inside = at < len(lengths) + j
                    new = rng.choice(pool, scenarios)
                    if urn.shape[1]:
                        old = urn[np.arange(scenarios), np.minimum(at, urn.shape[1] - 1).astype(np.int64)]
                        new = np.where(inside, old, new)
                    drawn[:, response] = new
                    urn = np.column_stack([urn, new])
        return np.asarray(np.clip(np.ceil(drawn), 1, max_response_tokens), dtype=float)


def _newest_lengths(table: pd.DataFrame) -> dict[str, FloatArray]:
    """Return the expected lengths of every prompt's newest visit."""
    newest = table[table["epoch"] == table.groupby("prompt_id")["epoch"].transform("max")]
    return {str(n): g.to_numpy(dtype=float) for n, g in newest.groupby("prompt_id", sort=True)["expected"]}


def _means(lengths: Mapping[str, FloatArray], weight: float) -> dict[str, float]:
    """Return the mean of every prompt's predictive distribution, in which ``weight`` is m."""
    mean = float(np.concatenate(list(lengths.values())).mean())
    return {name: float((own.sum() + weight * mean) / (len(own) + weight)) for name, own in lengths.items()}


def _concentration(samples: Sequence[FloatArray]) -> float:
    """Variance of log lengths within prompts over that between them."""
    logs = [np.log(np.maximum(lengths, 1.0)) for lengths in samples]
    several = [lengths for lengths in logs if len(lengths) > 1]
    if not several:
        return UNKNOWN
    within = sum(float(((lengths - lengths.mean()) ** 2).sum()) for lengths in several) / sum(
        len(lengths) - 1 for lengths in several
    )
    means = np.array([lengths.mean() for lengths in logs])
    noise = within * float(np.mean([1 / len(lengths) for lengths in logs]))
    between = float(means.var(ddof=1)) - noise if len(means) > 1 else 0.0
    return float(np.clip(within / between, FEWEST, MAX_LENGTHS)) if between > 0 else MAX_LENGTHS

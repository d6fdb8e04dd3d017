"""Names the response that a step waited for: the last one to end, with the time at which most others had ended.

Input are the rollouts of one step with their times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.style import clean, number

MOST = 0.9  # share of the responses after which the tail of a step begins


class LastResponse(NamedTuple):
    """The response that ended last; times are seconds since the step's start.

    Attributes:
        row: of the actor that generated it. end_s: when it ended. most_s: when 90 % of the responses had ended.
        prompt_id, sample, response_tokens: which one, and its length. median_tokens: of the step's responses.
    """

    row: int
    end_s: float
    most_s: float
    prompt_id: str
    sample: int
    response_tokens: int
    median_tokens: float

    @property
    def text(self) -> str:
        """Two clean lines for the figure."""
        return f"last response: {self.name}<br>({MOST:.0%} had ended at {number(self.most_s, 's')})"

    @property
    def name(self) -> str:
        """Prompt, sample and length in clean words."""
        return (
            f"prompt {clean(self.prompt_id, 16)}, sample {self.sample} ({self.response_tokens:,} tokens, "
            f"median {self.median_tokens:,.0f})"
        )


def last_response(rollouts: pd.DataFrame, row_of: Mapping[str, int], start_s: float) -> LastResponse | None:
    """Return the last response of a step; None where times are unknown, or its actor has no row.

    Args:
        rollouts: of one step. row_of: holder to row of the timeline. start_s: of the step in the run.
    """
    if any(name not in rollouts for name in ("actor", "end_s")) or len(rollouts) < 2 or rollouts["end_s"].isna().any():
        return None
    ends = rollouts["end_s"].to_numpy(dtype=float)
    last = rollouts.iloc[int(ends.argmax())]
    if last["actor"] not in row_of:
        return None
    return LastResponse(
        row_of[last["actor"]],
        float(ends.max()) - start_s,
        float(np.quantile(ends, MOST)) - start_s,
        str(last["prompt_id"]),
        int(last["sample"]),
        int(last["response_tokens"]),
        float(rollouts["response_tokens"].median()),
    )

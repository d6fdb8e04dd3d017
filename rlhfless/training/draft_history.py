"""Drafts of a training run: which settings can be used, and the earlier responses of a prompt that drafts come from.

Earlier responses are read from the texts of the run's rollouts and encoded again. So a resumed run has the same history. Other
tokens for the same text would cost accepted drafts only: drafts never change what is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlhfless.training.config import TrainError
from solver.model.drafting import Drafting
from solver.model.errors import as_given


def check_drafting(drafting: Drafting | None) -> None:
    """Refuse settings that the engines of a training run cannot decode with.

    Raises:
        TrainError: the length is ``critical``, or the settings are of another type.
    """
    if drafting is not None and not isinstance(drafting, Drafting):
        raise TrainError(f"drafting is {as_given(drafting)}; a rlhfless.Drafting is needed")
    if drafting is not None and drafting.length == "critical":
        raise TrainError(
            "drafting has the length 'critical', which needs remaining lengths that the engines of a training run do not "
            "predict; 'adaptive' or a number of tokens is needed"
        )


def earlier_responses(
    rollouts: pd.DataFrame, prompt_ids: Sequence[str], encode: Callable[[str], Sequence[int]], drafting: Drafting | None
) -> Mapping[str, list[NDArray[np.int64]]]:
    """Return the tokens of earlier responses to each prompt, in order of steps; prompts without any are left out.

    Args:
        rollouts: of all earlier steps. prompt_ids: of the next step. encode: returns the tokens of a text.
        drafting: says which visits count; None: no visit does.
    """
    if drafting is None or drafting.history == "none" or rollouts.empty:
        return {}
    seen = rollouts[rollouts["prompt_id"].isin(prompt_ids) & rollouts["response"].notna()]
    if drafting.history == "last":
        seen = seen[seen["step"] == seen.groupby("prompt_id")["step"].transform("max")]
    found: dict[str, list[NDArray[np.int64]]] = {}
    for prompt_id, text in zip(seen["prompt_id"], seen["response"], strict=True):
        found.setdefault(str(prompt_id), []).append(np.array(encode(text), dtype=np.int64))
    return found

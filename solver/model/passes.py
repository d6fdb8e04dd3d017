"""Checks the passes of a workload: how many each response takes where drafts are verified, and what they feed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.drafting import MAX_DRAFT_TOKENS
from solver.model.errors import PlanningError
from solver.model.number_arrays import number_array, whole_numbers
from solver.model.plurals import counted

ROUNDING = 1e-9  # relative, by which tokens committed per pass may be above those fed


def least_passes(remaining_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the (R,) fewest passes of so many tokens: every pass drafts as many as it may, and all are accepted."""
    return -(-remaining_tokens // (MAX_DRAFT_TOKENS + 1))


def checked_passes(
    remaining_tokens: NDArray[np.int64], passes: ArrayLike | None, fed_per_pass: ArrayLike | None, *, with_scenarios: bool
) -> tuple[NDArray[np.int64] | None, NDArray[np.float64] | None]:
    """Return passes and the tokens that each feeds as arrays, or None twice.

    Args:
        remaining_tokens: (R,). passes, fed_per_pass: as a ``Workload`` takes them.

    Raises:
        PlanningError: there is not one number per response, a number is impossible, or there are scenarios besides.
    """
    if passes is None:
        if fed_per_pass is not None:
            raise PlanningError("fed_per_pass is given without passes; passes are needed, too")
        return None, None
    if with_scenarios:
        raise PlanningError("passes are given with scenarios of lengths; one length per response is needed with passes")
    whole = whole_numbers("passes", passes, needed="a number of passes of 0 or more is needed", rounds_up=True)
    fed = None if fed_per_pass is None else number_array("fed_per_pass", fed_per_pass).astype(float)
    for name, values in (("passes", whole), ("fed_per_pass", fed)):
        if values is not None and values.shape != remaining_tokens.shape:
            raise PlanningError(
                f"{name} has shape {values.shape}; a number for each of {counted(len(remaining_tokens), 'response')} is needed"
            )
    least = least_passes(remaining_tokens)
    wrong = np.flatnonzero((whole < least) | (whole > remaining_tokens))
    if len(wrong):
        i = int(wrong[0])
        tokens = counted(int(remaining_tokens[i]), "remaining token")
        raise PlanningError(
            f"passes[{i}] is {whole[i]}; {tokens} take {least[i]} passes or more, with {MAX_DRAFT_TOKENS} drafted tokens in "
            f"each, and {remaining_tokens[i]} at most"
        )
    committed = np.where(whole > 0, remaining_tokens / np.maximum(whole, 1), 1.0)
    if fed is None:
        return whole, committed
    wrong = np.flatnonzero(~((fed >= committed * (1 - ROUNDING)) & (fed <= MAX_DRAFT_TOKENS + 1)))
    if len(wrong):
        i = int(wrong[0])
        raise PlanningError(
            f"fed_per_pass[{i}] is {fed[i]:g}; a pass feeds the {committed[i]:g} tokens that it commits or more, and "
            f"{MAX_DRAFT_TOKENS + 1} at most"
        )
    return whole, fed

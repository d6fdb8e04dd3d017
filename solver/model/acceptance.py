"""Defines ``Acceptance``: which share of drafted tokens a model accepts, by their position in the draft."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given
from solver.model.workload import FloatArray


@dataclass(frozen=True, eq=False)
class Acceptance:
    """The survival of drafts: position j is accepted in the share ``survival[j - 1]`` of passes.

    A draft's position is accepted only if all positions before it are, so survival does not rise. It holds for drafts that
    do not depend on how many of them are verified.

    Args:
        survival: (N,) shares in [0, 1], for positions 1 to N.

    Raises:
        PlanningError: a share is outside [0, 1] or not a number, or survival rises.

    Example:
        >>> from solver.model.acceptance import Acceptance
        >>> Acceptance([0.5, 0.25]).tokens_per_pass(2)
        1.75
    """

    survival: FloatArray

    def __init__(self, survival: ArrayLike) -> None:
        try:
            shares = np.asarray(survival, dtype=float)
        except (TypeError, ValueError):
            raise PlanningError(f"survival is {as_given(survival)}; one share in [0, 1] per position is needed") from None
        if shares.ndim != 1 or len(shares) == 0:
            raise PlanningError(f"survival has shape {shares.shape}; one share for each of at least one position is needed")
        wrong = np.flatnonzero(~((shares >= 0) & (shares <= 1)))
        if len(wrong):
            raise PlanningError(f"survival of position {wrong[0] + 1} is {shares[wrong[0]]:g}; a share in [0, 1] is needed")
        rising = np.flatnonzero(np.diff(shares) > 0)
        if len(rising):
            at = int(rising[0])
            raise PlanningError(
                f"survival rises from {shares[at]:g} at position {at + 1} to {shares[at + 1]:g} at position {at + 2}; a "
                "position is accepted only if all before it are, so it cannot rise"
            )
        object.__setattr__(self, "survival", shares)

    @classmethod
    def geometric(cls, rate: float, max_draft_tokens: int) -> Acceptance:
        """Return the survival ``rate ** j``: every drafted token is accepted with the same probability."""
        if not 0 <= rate <= 1:
            raise PlanningError(f"rate is {as_given(rate)}; a probability in [0, 1] is needed")
        return cls(float(rate) ** np.arange(1, max_draft_tokens + 1))

    @property
    def max_draft_tokens(self) -> int:
        """Number of positions that it knows."""
        return len(self.survival)

    def tokens_per_pass(self, draft_tokens: int) -> float:
        """Return the expected tokens of a pass that verifies ``draft_tokens`` drafted tokens: the accepted ones and one more.

        Raises:
            PlanningError: more tokens than it has positions.
        """
        if not 0 <= draft_tokens <= self.max_draft_tokens:
            raise PlanningError(
                f"draft_tokens is {as_given(draft_tokens)}, but acceptance is known for 0 to {self.max_draft_tokens} tokens"
            )
        return 1.0 + float(self.survival[:draft_tokens].sum())

    def __repr__(self) -> str:
        return f"Acceptance({', '.join(f'{share:.2f}' for share in self.survival)})"

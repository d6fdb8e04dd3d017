"""What drafts would accept at every position of a simulated response: drawn from an acceptance, or measured on a log's texts.

A run at a position depends on the response and the position only. So what is accepted there depends neither on the batch, nor
on the time, nor on where the response runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from solver.model.acceptance import Acceptance
from solver.model.errors import PlanningError, as_given, is_number, is_whole

Runs = NDArray[np.int64]
"""(L,) tokens at each position of a response, that is after so many of its tokens."""

SPREAD = 0.35  # sd of log k between responses, of simulations with the weak and strong acceptance


class DraftedRuns(NamedTuple):
    """The drafts of one response, as long as possible.

    Attributes:
        available: tokens that a drafter offers at each position. accepted: how many of these, from the first on, are right.
    """

    available: Runs
    accepted: Runs


class AcceptedRuns(Protocol):
    """What drafts would accept for the responses of a step."""

    def of(self, response: int, tokens: int) -> DraftedRuns:
        """Return the runs of a response of so many tokens, the same whenever they are asked for."""
        ...


@dataclass(frozen=True, eq=False)
class DrawnRuns:
    """Runs that are drawn from an acceptance: at every position one uniform number, which is compared with the survival.

    Responses accept different shares: the survival of each is raised to a power k of its own, which is lognormal with median 1.

    Args:
        acceptance: of the typical response.
        seed: of all draws. spread: standard deviation of log k; 0: responses accept alike.

    Raises:
        PlanningError: the spread is not a number of 0 or more, or the seed is not a whole one.

    Example:
        >>> from solver.model.acceptance import Acceptance
        >>> drawn = DrawnRuns(Acceptance([1.0, 0.0]))
        >>> drawn.of(response=0, tokens=3).accepted
        array([1, 1, 1])
    """

    acceptance: Acceptance
    seed: int = 0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not is_number(self.spread, 0):
            raise PlanningError(f"spread is {as_given(self.spread)}; a number of 0 or more is needed")
        if not is_whole(self.seed, 0):
            raise PlanningError(f"seed is {as_given(self.seed)}; a whole number of 0 or more is needed")

    def survival(self, response: int) -> NDArray[np.float64]:
        """Return (N,) the survival of one response."""
        power = np.exp(self.spread * self._random(response, 0).standard_normal()) if self.spread else 1.0
        return np.asarray(self.acceptance.survival**power)

    def of(self, response: int, tokens: int) -> DraftedRuns:
        """See ``AcceptedRuns``. The first runs of a longer response are those of a shorter one."""
        drawn, most = self._random(response, 1).random(tokens), self.acceptance.max_draft_tokens
        accepted = most - self.survival(response)[::-1].searchsorted(drawn, side="right")
        return DraftedRuns(np.full(tokens, most), np.asarray(accepted))

    def _random(self, response: int, which: int) -> np.random.Generator:
        return np.random.default_rng((int(self.seed), response, which))


@dataclass(frozen=True, eq=False)
class MeasuredRuns:
    """Runs that were measured on the texts of a log (``rlhfless.analysis.log_drafts``).

    Args:
        runs: of each response; one without runs, and positions beyond a text's end, accept nothing.
    """

    runs: Mapping[int, DraftedRuns]

    def of(self, response: int, tokens: int) -> DraftedRuns:
        """See ``AcceptedRuns``."""
        measured = self.runs.get(response, DraftedRuns(np.zeros(0, np.int64), np.zeros(0, np.int64)))
        return DraftedRuns(*(_of_length(run, tokens) for run in measured))


def _of_length(run: Runs, tokens: int) -> Runs:
    return run[:tokens] if len(run) >= tokens else np.concatenate([run, np.zeros(tokens - len(run), np.int64)])

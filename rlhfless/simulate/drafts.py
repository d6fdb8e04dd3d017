"""Drafts of a simulated log: what the responses of each step accept, and what is expected of it before the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd

from rlhfless.engine.simulated.accepted_runs import SPREAD, AcceptedRuns, DrawnRuns
from solver.model.acceptance import Acceptance

WEAK = Acceptance([0.45, 0.22, 0.11, 0.09, 0.04, 0.035, 0.03, 0.025])
"""Measured on MATH-500 in real tokens: drafts from one greedy answer of the model before training."""

STRONG = Acceptance([0.78, 0.67, 0.50, 0.44, 0.36, 0.31, 0.27, 0.22])
"""Measured on the shipped run, epoch 8. It is a character task, which flatters drafts."""


@runtime_checkable
class SimulatedDrafts(Protocol):
    """Which drafted tokens are accepted in every step of a log."""

    def runs(self, step: int, rows: pd.DataFrame) -> AcceptedRuns:
        """Return the acceptance of every response of a step.

        Args:
            rows: rollouts of the step, one per response, in the order of its workload.
        """
        ...

    def expected(self, step: int) -> Acceptance | None:
        """Return the acceptance to expect in a step, from earlier steps; None if unknown."""
        ...


@dataclass(frozen=True, eq=False)
class DrawnDrafts:
    """Drafted tokens are accepted at random, with the same probabilities in every step.

    Args:
        acceptance: acceptance probabilities of the typical response.
        spread: how much responses differ: the standard deviation of log k, where a response's probabilities are those of the
            typical one to the power k.
        seed: of all random draws.
    """

    acceptance: Acceptance
    spread: float = SPREAD
    seed: int = 0

    def runs(self, step: int, rows: pd.DataFrame) -> AcceptedRuns:
        """See ``SimulatedDrafts``."""
        seed = int(np.random.SeedSequence([self.seed, step]).generate_state(1)[0])
        return DrawnRuns(self.acceptance, seed, self.spread)

    def expected(self, step: int) -> Acceptance | None:
        """See ``SimulatedDrafts``."""
        return self.acceptance

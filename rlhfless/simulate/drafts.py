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
    """What drafts accept in every step of a log."""

    def runs(self, step: int, rows: pd.DataFrame) -> AcceptedRuns:
        """Return what the responses of a step accept.

        Args:
            rows: of the step, one per response, in the order of its workload.
        """
        ...

    def expected(self, step: int) -> Acceptance | None:
        """Return the survival to expect of a step, from earlier ones; None where nothing is known."""
        ...


@dataclass(frozen=True, eq=False)
class DrawnDrafts:
    """Drafts that are accepted at random with a given survival, the same in every step.

    Args:
        acceptance: of the typical response. spread: standard deviation of log k; the survival of each response is the power k
            of it. seed: of all draws.
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

"""Defines ``SearchOptions``: how long a search for plans may take, its seed, and whether the clock may stop it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.workload import IntArray


@dataclass(frozen=True, eq=False)
class SearchOptions:
    """How planners search.

    Attributes:
        time_limit_s: of the whole planning. seed: of the random split and of random changes.
        deterministic: no search stops by the clock, so that the plan depends on the problem and these options alone.
        explains: whether a refusal says how many slots or how much memory would be enough, which takes further searches.
        prompt_numbers: (P,) the caller's numbers of the prompts, for error messages; None when they are as in the workload.
    """

    time_limit_s: float = 1.0
    seed: int = 0
    deterministic: bool = False
    explains: bool = True
    prompt_numbers: IntArray | None = None

    def stop_at(self, began: float, seconds: float) -> float:
        """Return the ``perf_counter`` time at which a search stops: ``seconds`` after it ``began``.

        Infinity for a ``deterministic`` search, which stops after a counted amount of work instead.
        """
        return math.inf if self.deterministic else began + seconds


def check_search(time_limit_s: float, seed: int) -> None:
    """Refuse options of a search that make no sense (a PlanningError)."""
    check_time_limit(time_limit_s)
    check_seed(seed)


def check_time_limit(time_limit_s: float) -> None:
    """Refuse a time limit that is not a finite number of 0 or more (a PlanningError)."""
    if not is_number(time_limit_s, 0):
        raise PlanningError(f"time_limit_s is {as_given(time_limit_s)}; a finite number of seconds of 0 or more is needed")


def check_seed(seed: int) -> None:
    """Refuse a seed that is not a whole number of 0 or more (a PlanningError)."""
    if not is_whole(seed, 0) or not isinstance(seed, int | np.integer):
        raise PlanningError(f"seed is {as_given(seed)}; a whole number of 0 or more is needed")

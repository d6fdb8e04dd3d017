"""Keeps plans and executions of logged steps, so that several comparisons on the same steps make and run each schedule once.

What is kept is what would be made again: the shipped policies plan by counted work, and simulated engines take the time of the
latency model. ``rlhfless/simulate/run.py`` makes the keys.
"""

from __future__ import annotations

from typing import Any

from rlhfless.executor import StepRecord
from solver.model.plan import Plan

Key = tuple[Any, ...]


class Executions:
    """Plans and executions of one study, by step, policy and setting; an execution also by the time at which it starts."""

    def __init__(self) -> None:
        self.plans: dict[Key, tuple[Plan, float]] = {}
        """Plans with the seconds that it took to make them."""
        self.records: dict[Key, StepRecord] = {}

    def clear(self) -> None:
        """Drop all cached plans and executions, so that results that refer to the setting do not hold them in memory."""
        self.plans.clear()
        self.records.clear()

"""Keeps plans and executions of logged steps, so that several comparisons on the same steps make and run each schedule once.

A schedule is found again by the values of its policy and setting. What is kept is what would be made again: the shipped
policies plan by counted work, and simulated engines take the time of the latency model.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from rlhfless.scheduling import FunctionPolicy

if TYPE_CHECKING:
    from rlhfless.executor import StepRecord
    from rlhfless.scheduling import SchedulingPolicy
    from rlhfless.simulate.steps import LoggedStep, SimulationConfig
    from solver.model.plan import Plan

Key = tuple[Any, ...]


class Executions:
    """Plans and executions of one study, by step, policy and setting; an execution also by the time at which it starts.

    Policies are told apart by their parameters, so only those that are frozen dataclasses are kept. Nothing is kept of a user's
    functions, and in settings with faults, drafts or work beside decoding.
    """

    def __init__(self) -> None:
        self.plans: dict[Key, tuple[Plan, float]] = {}
        """Plans with the seconds that it took to make them."""
        self.records: dict[Key, StepRecord] = {}

    def clear(self) -> None:
        """Forget everything, so that results that keep the setting do not keep it."""
        self.plans.clear()
        self.records.clear()

    def key(self, policy: SchedulingPolicy, logged: LoggedStep, setting: SimulationConfig) -> Key | None:
        """Return by what a plan is found again; None where it is not kept."""
        comparable = is_dataclass(policy) and policy.__dataclass_params__.frozen and policy.__dataclass_params__.eq
        if (
            not comparable
            or isinstance(policy, FunctionPolicy)
            or not all(of is None for of in (setting.effects, setting.drafts, setting.work))
        ):
            return None
        where = (setting.cluster, setting.latency, setting.planned_latency, setting.objective, setting.phases)
        how = (setting.time_limit_s, setting.admission, setting.migration, setting.seed)
        return (type(policy), policy, logged, *where, *how)

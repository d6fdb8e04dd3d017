"""Options of ``rlhfless step`` that weigh the period against cost, or limit one of them, as one record."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from rlhfless.cli.options import Command, Decorator, objective_options, time_weight_option, together
from rlhfless.errors import InputError
from solver.dataflow.plan_objective import HELD

if TYPE_CHECKING:
    from rlhfless.cli.step_options import StepGpus
    from rlhfless.simulate import Aim
    from solver.dataflow import StepPlanObjective
    from solver.model.cluster import Cluster


TIME_WEIGHT = 0.7  # of whole steps with all levers, where nothing is stated


@dataclass(frozen=True)
class WeighOptions:
    """What a step plan is to minimise as a user states it; None where something was not stated."""

    time_weight: float | None
    deadline_s: float | None
    budget_gpu_s: float | None
    budget_usd: float | None
    cost: str
    held: str

    @property
    def stated(self) -> bool:
        """Whether anything but the period counts."""
        return any(one is not None for one in (self.time_weight, self.deadline_s, self.budget_gpu_s, self.budget_usd))

    def asked(self) -> StepPlanObjective:
        """Return the objective.

        Raises:
            PlanningError: several limits are given, or a number makes no sense.
        """
        from solver import Objective
        from solver.dataflow import StepPlanObjective

        weight = 1.0 if self.time_weight is None else self.time_weight
        objective = Objective(weight, self.deadline_s, self.budget_gpu_s, self.budget_usd, self.cost)
        if objective.limited and self.time_weight is not None:
            raise InputError("--time-weight is given with a deadline or a budget, which leave nothing to weigh; leave out one")
        return StepPlanObjective(objective, self.held)

    def aim(self, hardware: StepGpus) -> Aim:
        """Return the aim of a whole step of actors and a learner, whose GPUs cost while they are held.

        Raises:
            InputError: all GPUs are to be paid for throughout the step, or no price is known for a budget in USD.
            PlanningError: several limits are given, or a number makes no sense.
        """
        from rlhfless.simulate import Aim

        if self.held != "calls":
            raise InputError(
                "--held step pays for all GPUs, so giving some back saves nothing; leave it out with these --levers"
            )
        budget = self.budget_gpu_s
        if self.budget_usd is not None:
            if budget is not None:
                raise InputError("--budget-gpu-s and --budget-usd are given together; choose one of them")
            budget = self.budget_usd / self.priced(hardware).usd_per_gpu_s
        weight = self.time_weight
        if not self.stated:
            weight = TIME_WEIGHT
        return Aim(time_weight=weight, deadline_s=self.deadline_s, budget_gpu_s=budget)

    def priced(self, hardware: StepGpus) -> Cluster:
        """Return the cluster with the price of its GPUs; 0 where none is known.

        Raises:
            InputError: cost is counted in USD, and no price is known.
        """
        price = hardware.price_usd
        if math.isnan(price):
            if self.cost == "usd" or self.budget_usd is not None:
                raise InputError(f"GPU kind {hardware.kind!r} has no list price; --usd-per-gpu-hour is needed")
            price = 0.0
        return replace(hardware.cluster, usd_per_gpu_hour=price)


def weigh_options(command: Command) -> Command:
    """Add --time-weight, --deadline-s, --budget-gpu-s, --budget-usd, --cost and --held, as the argument ``weigh``."""
    options: list[Decorator] = [
        time_weight_option(None, "time only, with levers of actors 0.7"),
        *objective_options(),
        click.option(
            "--held", type=click.Choice(HELD), default="calls", show_default=True,
            help="Pay for GPUs while calls and reallocations hold them, or for all GPUs throughout the step.",
        ),
    ]  # fmt: skip
    return together("weigh", lambda: WeighOptions, options)(command)

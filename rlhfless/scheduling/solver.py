"""Policies that plan with the solver: on predictions, or on true lengths (the oracle). No rule runs during the step.

Predictions can be wrong, so a plan that is made for them must prove itself on held-out scenarios. Under a weight and with
scenarios the right-sized random split runs unless another plan is **surely better**. The other plan is chosen on every other
scenario (the best of many looks better than it is on the scenarios that it was chosen on). It must then be better on the
held-out ones by more than twice the standard error of the difference.

The search must also pay for its own time. Assigning single responses round-robin costs next to nothing. ``plan_generation`` is
only called where it takes less than ``SOLVER_SHARE`` of the step, by its counted work (a clock would make plans depend on the
machine's other work).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rlhfless.scheduling.policy import PlanningInput
from rlhfless.scheduling.round_robin import assign_round_robin
from solver.model.plan import Plan
from solver.model.workload import FloatArray, IntArray, Workload
from solver.planning.actor_count import EXACT_RESPONSES
from solver.planning.plan_generation import plan_generation
from solver.planning.random_split import random_split
from solver.timing.build_plan import assemble, check_fits
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes
from solver.timing.step_cost import Pricing

SOLVER_SHARE = 0.0025  # of the random split's makespan that plan_generation may take
SOLVER_S = 0.04  # about what it takes for 1,000 responses and the scenarios that plans are chosen on
QUICK_S = 0.15  # a time limit under which it builds no CP-SAT model
LEAST_SCENARIOS = 4  # that can be divided into those to choose on and those to test on
SURE = 2.0  # standard errors by which a plan must be better than the random split


@dataclass(frozen=True)
class Solver:
    """Plan with ``plan_generation`` on the lengths of the workload; as ``oracle`` the policy requests the true ones. Under a
    weight and with scenarios, keep the right-sized random split unless another plan is surely better (see the module
    docstring)."""

    name: str = "solver"
    clairvoyant: bool = False

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        objective, work = given.objective, given.workload
        limited = objective.deadline_s is not None or objective.budget is not None or objective.cvar_alpha < 1
        if work.scenarios is None or len(work.scenarios) < LEAST_SCENARIOS or limited:
            return replace(planned(given, work, given.time_limit_s), policy=self.name)
        check_fits(work, given.cluster, given.latency)
        split = random_split(
            work, given.cluster, given.latency, objective, given.phases, seed=given.seed, admission=given.admission
        )
        chosen_on, left_out = (with_scenarios(work, work.scenarios[first::2]) for first in (0, 1))
        dealt = [groups_of(split)]
        actors, most = len(dealt[0]), min(given.cluster.max_actors, len(work))
        if len(work) <= max(EXACT_RESPONSES, actors * given.latency.max_batch):  # else it takes long, and refilling evens out
            dealt += [assign_round_robin(work, n, given.seed) for n in (actors, actors + 1) if n <= most]
        affordable_s = SOLVER_SHARE * split.makespan_s
        if SOLVER_S * max(len(work), 200) / 1000 <= affordable_s:
            limit_s = given.time_limit_s if given.time_limit_s <= affordable_s else min(given.time_limit_s, QUICK_S)
            dealt.append(groups_of(planned(given, chosen_on, limit_s)))
        _, best = min((float(log_values(groups, chosen_on, given).mean()), i) for i, groups in enumerate(dealt))
        if best == 0 or not surely_less(log_values(dealt[best], left_out, given), log_values(dealt[0], left_out, given)):
            return replace(split, policy=self.name)
        return assemble(self.name, dealt[best], work, given.cluster, given.latency, given.phases, admission=given.admission)


def planned(given: PlanningInput, workload: Workload, time_limit_s: float) -> Plan:
    """Return the plan of ``plan_generation`` for this workload."""
    return plan_generation(
        workload, given.cluster, given.latency, given.objective, given.phases, time_limit_s,
        admission=given.admission, seed=given.seed, deterministic=given.deterministic,
    )  # fmt: skip


def groups_of(plan: Plan) -> list[IntArray]:
    """Return the responses of every actor."""
    return [np.array(a.responses, dtype=np.int64) for a in plan.actors if a.responses]


def with_scenarios(workload: Workload, scenarios: IntArray) -> Workload:
    """Return the same planning input with other scenarios."""
    return replace(workload, scenarios=scenarios)


def log_values(groups: list[IntArray], workload: Workload, given: PlanningInput) -> FloatArray:
    """Return (S,) logarithms of ``T^w C^(1-w)`` of the whole step, one per scenario of ``workload``."""
    admission = admission_of(given.latency, None, given.admission)
    times = GroupTimes.of(workload, given.latency, admission, np.concatenate(groups))
    pricing, w = Pricing.of(given.cluster, given.latency, given.objective, given.phases), given.objective.time_weight
    time_s, cost = pricing.step(times.busy_s(np.cumsum([0, *map(len, groups)])))
    return np.asarray(w * np.log(np.maximum(time_s, 1e-12)) + (1 - w) * np.log(np.maximum(cost, 1e-12)))


def surely_less(mine: FloatArray, other: FloatArray) -> bool:
    """Whether the mean of ``mine`` is below that of ``other``, paired, by more than ``SURE`` standard errors."""
    difference = mine - other
    return float(difference.mean()) < -SURE * float(difference.std(ddof=1)) / math.sqrt(len(difference)) - 1e-12

"""Policies that plan with the solver: on predictions, or on true lengths (the oracle).

Predictions can be wrong, so a plan that is made for them must prove itself on held-out scenarios. Under a weight and with
scenarios a **fallback** that needs no prediction runs unless another plan is **surely better**. The fallback is the right-sized
random split, or round-robin with folding while the step runs (``fold``), whichever is better over all scenarios. What is
folded may start with more actors than a static split, so a few numbers of actors are compared.

1. Candidates are single responses assigned round-robin, the plan of ``plan_generation``, and groups whose cuts are chosen over
   all scenarios together (solver.planning.single_kind.scenario_groups).
2. The candidate that is best on one half of the scenarios is compared with the fallback on the other half; then the halves
   change places. (The best of many looks better than it is on the scenarios that it was chosen on.)
3. The choices of both halves must together be better by more than ``SURE`` standard errors of these paired differences. Only
   then the one that is better on all scenarios may run. It runs if it is also better than the fallback where errors are larger
   than they were (doubted scenarios). Else the fallback runs, and the plan's notes say so.

Plans are chosen and compared on scenarios that are as far from their mean as the errors of earlier forecasts were
(rlhfless.scheduling.calibration). What folding does is estimated (rlhfless.scheduling.fold_ahead). Groups that are cut for the
scenarios lose most where these are wrong, so they must be better by ``CLEARLY`` than the others.

Planning does a counted amount of work, so that the same problem has the same plan. ``plan_generation`` uses half of the time
limit on each half of the scenarios. It needs only lengths that are known when the generation of the step before ends, so it
runs while that step prepares and learns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rlhfless.scheduling.calibration import calibrated, doubted, with_scenarios
from rlhfless.scheduling.fold import Fold, SquareRootFold
from rlhfless.scheduling.fold_ahead import folded_busy_s
from rlhfless.scheduling.fold_draining import DrainingFold
from rlhfless.scheduling.policy import PlanningOptions, check_inputs
from rlhfless.scheduling.round_robin import Spread, assign_round_robin
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray
from solver.planning.actor_count import EXACT_RESPONSES
from solver.planning.plan_generation import plan_generation
from solver.planning.random_split import random_split
from solver.planning.single_kind.scenario_groups import scenario_groups
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes
from solver.timing.step_cost import Pricing

LEAST_SCENARIOS = 4  # that can be divided into two halves
SURE = 2.0  # standard errors by which a plan must be better than the fallback
MORE_ACTORS = 2  # by which folding may start with more actors than a static split
CLEARLY = 0.01  # of the value, by which groups cut for the scenarios must be better than other candidates
RANDOM_IS_BEST = "The random split runs: no other plan is surely better on scenarios that it was not chosen on."
FOLDING_IS_BEST = (
    "Round-robin with folding runs, as without predictions: no plan is surely better on scenarios that it was not chosen on."
)
FALLBACKS_IN_SHORT = {
    RANDOM_IS_BEST: "random split: no other plan was surely better",
    FOLDING_IS_BEST: "round-robin with folding: no plan was surely better",
}
"""``notes["chosen"]`` of a plan, for headings and tables."""


@dataclass(frozen=True)
class Solver:
    """Plan with ``plan_generation`` on the lengths of the workload; as ``oracle`` the policy requests the true ones. Under a
    weight and with scenarios, run a fallback without predictions unless a plan is surely better (see the module docstring).
    """

    name: str = "solver"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``. ``notes["chosen"]`` says which fallback runs, where one does."""
        check_inputs(problem, options)
        objective, work = problem.objective, problem.workload
        limited = objective.deadline_s is not None or objective.budget is not None or objective.cvar_alpha < 1
        if work.scenarios is None or len(work.scenarios) < LEAST_SCENARIOS or limited:
            return replace(planned(problem, options), policy=self.name)
        known = calibrated(problem, options)
        fallback = min(_fallbacks(problem, options), key=lambda plan: float(plan_log_values(plan, known).mean()))
        choice = HeldOutChoice(known, options, fallback)
        if choice.surely_better() and choice.stands(doubted(known, options)):
            return assemble(self.name, choice.better(), problem)
        note = RANDOM_IS_BEST if fallback.rule is None else FOLDING_IS_BEST
        return replace(fallback, policy=self.name, notes={**fallback.notes, "chosen": note})


def _fallbacks(problem: PlanningProblem, options: PlanningOptions) -> list[Plan]:
    """Return the plans that need no predictions: the random split, and folding where responses of a prompt may be apart."""
    plans = [random_split(problem, seed=options.seed)]
    if not problem.keep_together and not problem.share_prefill and problem.release == "done":
        folding = Fold(Spread(), rule=DrainingFold).plan(problem, options)
        fewest, most = len(folding.actors) - 1, min(problem.one_kind[0].max_actors, len(problem.workload))
        others = [n for n in range(fewest, fewest + 2 + MORE_ACTORS) if n != len(folding.actors) and 1 < n <= most]
        plans += [folding, *(Fold(Spread(actors=n), rule=DrainingFold).plan(problem, options) for n in others)]
    return [plans[0], *(plan for plan in plans[1:] if plan.rule is not None)]


class HeldOutChoice:
    """Candidates that are chosen on one half of the scenarios, and compared with the fallback on the other."""

    def __init__(self, problem: PlanningProblem, options: PlanningOptions, fallback: Plan) -> None:
        self.problem, self.options, self.fallback = problem, options, fallback
        scenarios = problem.workload.scenarios
        assert scenarios is not None
        halves = [with_scenarios(problem, scenarios[half::2]) for half in (0, 1)]
        self.chosen = [self._best(half) for half in halves]
        self.held_out = halves[::-1]

    def surely_better(self) -> bool:
        """Return whether what is chosen on one half of the scenarios is surely better than the fallback on the other."""
        chosen = [log_values(groups, half) for groups, half in zip(self.chosen, self.held_out, strict=True)]
        fallback = [plan_log_values(self.fallback, half) for half in self.held_out]
        return significantly_less(np.concatenate(chosen), np.concatenate(fallback))

    def stands(self, doubted: PlanningProblem) -> bool:
        """Return whether the choice is better than the fallback on doubted scenarios, too."""
        return float(log_values(self.better(), doubted).mean()) < float(plan_log_values(self.fallback, doubted).mean())

    def better(self) -> list[IntArray]:
        """Return the choice that is better on all scenarios."""
        return min(self.chosen, key=lambda groups: float(log_values(groups, self.problem).mean()))

    def _best(self, problem: PlanningProblem) -> list[IntArray]:
        """Return the groups that are best on these scenarios, those of the fallback among them."""
        candidates = [groups_of(self.fallback), *self._candidates(problem)]
        values = [float(log_values(groups, problem).mean()) for groups in candidates]
        best, groups = int(np.argmin(values)), _scenario_groups(problem)
        return groups if float(log_values(groups, problem).mean()) < values[best] - CLEARLY else candidates[best]

    def _candidates(self, problem: PlanningProblem) -> list[list[IntArray]]:
        cluster, latency = problem.one_kind
        work, actors, options = problem.workload, len(self.fallback.actors), self.options
        half = replace(options, time_limit_s=options.time_limit_s / 2)  # of the policy's limit, for each half of the scenarios
        candidates = [groups_of(planned(problem, half))]
        if len(work) <= max(EXACT_RESPONSES, actors * latency.max_batch):  # else it takes long, and refilling evens out
            counts = [n for n in (actors, actors + 1) if n <= min(cluster.max_actors, len(work))]
            candidates += [assign_round_robin(work, n, options.seed) for n in counts]
        return candidates


def _scenario_groups(problem: PlanningProblem) -> list[IntArray]:
    """Return the sorted responses, cut for all scenarios together."""
    cluster, latency = problem.one_kind
    work, admission = problem.workload, admission_of(latency, None, problem.admission)
    times = GroupTimes.of(work, latency, admission, np.argsort(-work.response_tokens, kind="stable"))
    most = min(cluster.max_actors, len(work))
    return scenario_groups(times, lambda busy_s: float(logs_of(busy_s, problem).mean()), most)[0].groups()


def planned(problem: PlanningProblem, options: PlanningOptions) -> Plan:
    """Return the plan of ``plan_generation``, by counted work."""
    return plan_generation(problem, time_limit_s=options.time_limit_s, seed=options.seed, deterministic=True)


def groups_of(plan: Plan) -> list[IntArray]:
    """Return the responses of every actor."""
    return [np.array(a.responses, dtype=np.int64) for a in plan.actors if a.responses]


def plan_log_values(plan: Plan, problem: PlanningProblem) -> FloatArray:
    """Return ``log_values`` of a plan's groups, with folding where the plan has that rule."""
    busy_s = (
        folded_busy_s(plan.rule, len(plan.actors), problem) if isinstance(plan.rule, SquareRootFold | DrainingFold) else None
    )
    return log_values(groups_of(plan), problem) if busy_s is None else logs_of(busy_s, problem)


def log_values(groups: list[IntArray], problem: PlanningProblem) -> FloatArray:
    """Return (S,) logarithms of ``T^w C^(1-w)`` of the whole step, one per scenario of the workload."""
    latency = problem.one_kind[1]
    times = GroupTimes.of(problem.workload, latency, admission_of(latency, None, problem.admission), np.concatenate(groups))
    return logs_of(times.busy_s(np.cumsum([0, *map(len, groups)])), problem)


def logs_of(busy_s: FloatArray, problem: PlanningProblem, more_s: float = 0.0) -> FloatArray:
    """Return (S,) logarithms of ``T^w C^(1-w)`` of the whole step whose actors are busy for (S, N) seconds.

    Args:
        more_s: seconds that are added to the time, not to the cost.
    """
    w = problem.objective.time_weight
    time_s, cost = Pricing.of(problem).step_of(busy_s)
    return np.asarray(w * np.log(np.maximum(time_s + more_s, 1e-12)) + (1 - w) * np.log(np.maximum(cost, 1e-12)))


def significantly_less(values: FloatArray, reference: FloatArray) -> bool:
    """Return whether the mean of ``values`` is below that of ``reference``, paired, by more than ``SURE`` standard errors."""
    difference = values - reference
    spread = float(difference.std(ddof=1)) if len(difference) > 1 else 0.0
    return float(difference.mean()) < -SURE * spread / math.sqrt(len(difference)) - 1e-12

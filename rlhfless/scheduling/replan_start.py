"""Chooses how a re-planned step starts: the price of time, the groups, and whether a re-planning rule pays for itself at all.

Every candidate is a start and a price at which the step is re-planned. A start is the groups of the plan of ``Solver``, or
groups of responses of equal marginal value. All are simulated on the same lengths: the ``stressed`` scenarios
(rlhfless.scheduling.calibration). So a sharp forecast of each response counts for the static plan as much as for re-planning.
The candidate whose own time and cost have the least ``T^w C^(1-w)`` is chosen. So the price is the one at which the policy's
own outcome is best. There its realised front has the slope ``-w C / ((1 - w) g T)`` at its own T and C, start-up and transfers
included. The same formula with the T and C of ``Solver``'s plan only says where the search begins.

Under uncertainty candidates are chosen on one half of the scenarios and tested on the other, both ways, as ``Solver`` does. The
plan of ``Solver`` runs, with consolidation where it has that rule, unless re-planning is surely better
(rlhfless.scheduling.solver), the time for deciding included.

The number of simulations is fixed by the number of responses, so the same problem has the same plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlhfless.scheduling.calibration import stressed, with_scenarios
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.solver import SURE, groups_of, plan_values, values_of
from solver.generation.random_split import random_split
from solver.lengths.held_out import held_out
from solver.lengths.remaining import RemainingLengths
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray
from solver.replanning.lookahead import MIN_ROUNDS, drawn_lengths, simulated_busy_s
from solver.replanning.marginal_value import group_by_token_value, price_of, time_left_s, token_value
from solver.replanning.replan import MAX_ROUND_SHARE, ROUND_RESPONSE_S, ROUND_S
from solver.timing.evaluate import ready_s

FOLLOWED = 8000  # responses that are followed through a step, for each candidate
MOST_DRAWS = 8  # sets of lengths that candidates are followed on
CLEARLY = 0.005  # of the value, by which re-planning must be better: the simulation is coarse
FACTORS = (1.6, 2.5, 4.0)  # times the first price of time that are tried after that price itself, where lengths are certain
UNCERTAIN_FACTORS = (1.0, 2.0)  # times the first price that are tried where they are not


@dataclass(frozen=True)
class ReplanStart:
    """Groups to start with, and the price at which the step is re-planned (None: not at all)."""

    groups: list[IntArray]
    price: float | None


class Start:
    """The step before its first iteration: finds the groups and the price from it."""

    def __init__(
        self, problem: PlanningProblem, options: PlanningOptions, remaining: RemainingLengths, static: Plan | None = None
    ) -> None:
        self.problem, self.seed, self.remaining = problem, options.seed, remaining
        self.stressed = stressed(problem, options).workload.scenarios
        self.cluster, self.latency = problem.one_kind
        latency, workload = self.latency.affine, problem.workload
        self.base_s = latency.base_s
        context = workload.context_tokens.astype(float)
        everyone, tokens = np.arange(len(workload)), workload.generated_tokens.astype(float)
        self.load: FloatArray = latency.per_response_s + latency.per_kv_token_s * context
        self.max_tokens = remaining.max_tokens(everyone, tokens)
        self.root_load = remaining.root_load(everyone, tokens, latency.per_response_s, latency.per_kv_token_s)
        left = remaining.expected_tokens(everyone, tokens)
        self.work_s = float((self.load * left + latency.per_kv_token_s * left**2 / 2).sum())
        self.split = static or random_split(problem, seed=options.seed)
        self.groups = groups_of(self.split)

    # --- the price ----------------------------------------------------------------------------------------------------

    def price(self) -> float:
        """Actor-seconds that one second of makespan is worth under the objective, at the reference split's outcome."""
        objective, phases = self.problem.objective, self.problem.phases
        gpus, ready = self.cluster.gpus_per_actor, ready_s(self.latency)
        if objective.deadline_s is not None:
            return price_of(objective.deadline_s - phases.seconds - ready, self.base_s, self.max_tokens, self.root_load)
        if objective.budget is not None:
            per_gpu_s = self.cluster.usd_per_gpu_s if objective.cost == "usd" else 1.0
            return self._price_within(objective.budget / (gpus * per_gpu_s)) if per_gpu_s > 0 else math.inf
        if self.split.makespan_s <= 0:
            return math.inf
        time_s, gpu_s = (
            phases.step_time_s(self.split.makespan_s),
            phases.step_gpu_s(self.split.makespan_s, self.split.gpu_seconds),
        )
        return (objective.cost_of_a_second(time_s, gpu_s) + phases.learner_gpus) / gpus

    def _price_within(self, actor_s: float) -> float:
        """Return the highest price of time at which the expected cost ``work + a sum Lambda^2 / (X - a r)`` stays within
        budget."""
        low, high = 0.0, 1e6
        for _ in range(60):
            price = math.sqrt(max(low, 1e-6) * high)
            left = time_left_s(price, self.base_s, self.max_tokens, self.root_load)
            cost = self.work_s + float((self.base_s * self.root_load**2 / (left - self.base_s * self.max_tokens)).sum())
            low, high = (price, high) if cost <= actor_s else (low, price)
        return low

    # --- candidates -----------------------------------------------------------------------------------------------------

    def grouped(self, price: float) -> list[IntArray]:
        """Return groups of responses of equal marginal value; equal responses are assigned at random."""
        workload, latency = self.problem.workload, self.latency
        left = time_left_s(price, self.base_s, self.max_tokens, self.root_load)
        values = token_value(left, self.base_s, self.load, self.max_tokens, self.root_load)
        order = np.random.default_rng(self.seed).permutation(len(workload))
        groups = group_by_token_value(
            self.load[order], values[order], self.base_s, self.cluster.max_actors, latency.max_batch,
            workload.reserved_tokens[order].astype(float), latency.kv_capacity_tokens,
        )  # fmt: skip
        return [order[g] for g in groups]

    def best(self, price: float) -> ReplanStart | None:
        """Return the candidate with the best simulated outcome for a weighted objective; None if the plan itself should run.

        Where the forecast is certain, higher prices are tried as long as the outcome improves.
        """
        if len(self.groups) < 2:
            return None
        draws = self._draws()
        values = self._plan_values(draws)
        return self._best_certain(price, values) if len(draws) == 1 else self._best_uncertain(price, draws, values)

    def _from_plan(self, price: float) -> ReplanStart:
        return ReplanStart(self.groups, price)

    def _of_equal_value(self, price: float) -> ReplanStart:
        return ReplanStart(self.grouped(price), price)

    def _best_certain(self, price: float, plan_values: FloatArray) -> ReplanStart | None:
        draws = self._draws()
        makers = self._from_plan, self._of_equal_value
        outcomes = [(*self._simulated(start := make(price), draws), start, make) for make in makers]
        values, moved, start, make = min(outcomes, key=lambda outcome: float(outcome[0].mean()))
        for factor in FACTORS:
            next_start = make(factor * price)
            next_values, next_moved = self._simulated(next_start, draws)
            if next_values.mean() >= values.mean():
                break
            values, moved, start = next_values, next_moved, next_start
        if not values.mean() < (1 - 1e-12) * plan_values.mean():
            return None
        return start if moved else ReplanStart(start.groups, None)

    def _best_uncertain(self, price: float, draws: FloatArray, plan_values: FloatArray) -> ReplanStart | None:
        starts = [self._from_plan(price), *(self._of_equal_value(factor * price) for factor in UNCERTAIN_FACTORS)]
        values = np.stack([self._simulated(start, draws)[0] for start in starts])
        chosen = [int(values[:, half::2].mean(axis=1).argmin()) for half in (0, 1)]
        saving = held_out(
            lambda half: (1 + CLEARLY) * values[chosen[half], 1 - half :: 2], lambda half: plan_values[1 - half :: 2], SURE
        )
        if not saving.is_sure:
            return None
        return starts[min(chosen, key=lambda which: float(values[which].mean()))]

    def _draws(self) -> FloatArray:
        """Return (D, R) tokens that responses still generate: one set of lengths that are certain, or several scenarios."""
        workload, seed = self.problem.workload, self.seed
        left, again = (drawn_lengths(self.remaining, workload, seed + draw) for draw in (0, 1))
        if np.array_equal(left, again):
            return left[None]
        draws = max(2, min(MOST_DRAWS, FOLLOWED // len(workload)))
        if self.stressed is None:
            return np.stack([drawn_lengths(self.remaining, workload, seed + draw) for draw in range(draws)])
        scenarios = self.stressed[:draws]
        return np.asarray(np.maximum(scenarios - workload.generated_tokens, 0), dtype=float)

    def _plan_values(self, draws: FloatArray) -> FloatArray:
        """Return the (D,) ``T^w C^(1-w)`` of the plan that is not re-planned, on the drawn lengths."""
        if self.split.rule is None:
            return self._simulated(ReplanStart(self.groups, None), draws)[0]
        scenarios = draws.astype(np.int64) + self.problem.workload.generated_tokens
        return plan_values(self.split, with_scenarios(self.problem, scenarios))

    def _simulated(self, start: ReplanStart, draws: FloatArray) -> tuple[FloatArray, int]:
        """Return the (D,) ``T^w C^(1-w)`` for this candidate on the drawn lengths, and how many responses
        move."""
        problem, values, moves = self.problem, [], 0
        for left in draws:
            busy, moved = simulated_busy_s(
                start.groups, left, self.remaining, problem.workload, self.latency, start.price, problem.admission
            )
            deciding_s = 0.0 if start.price is None else min(MAX_ROUND_SHARE * float(busy.max()), self._round_work_s())
            values.append(float(values_of(busy[None], problem, deciding_s)[0]))
            moves += moved
        return np.array(values), moves

    def _round_work_s(self) -> float:
        """Return about how many seconds all re-planning rounds of the step take together."""
        return MIN_ROUNDS * (ROUND_S + (ROUND_RESPONSE_S + self.remaining.observe_response_s) * len(self.problem.workload))

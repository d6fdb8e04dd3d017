"""Chooses how a re-planned step starts: the price of time, the groups, and whether a re-planning rule pays for itself at all.

Every candidate is a start (the groups of a static plan, or groups of responses of equal marginal value) and a price at which
the step is re-planned, or none. All are simulated on the same lengths drawn from the forecast, and the candidate whose own time
and cost have the least ``T^w C^(1-w)`` is chosen. So the price is the one at which the policy's own outcome is best: where its
realised front has the slope ``-w C / ((1 - w) g T)`` at its own T and C, start-up and transfers included. The same formula with
the static plan's T and C only says where the search begins. Where re-planning does not pay, the time for deciding included,
the static plan runs without a rule.

Looking ahead delays the step, so the candidates that are simulated cost at most ``FIRST_SHARE`` and ``FURTHER_SHARE`` of the
static plan's makespan, by their counted work (a clock would make plans depend on the machine's other work). Where even one
candidate would cost more, the static plan runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rlhfless.scheduling.policy import PlanningInput
from rlhfless.scheduling.solver import groups_of
from solver.lengths.remaining import RemainingLengths
from solver.model.plan import Plan
from solver.model.workload import FloatArray, IntArray
from solver.planning.actor_count import sizing_key
from solver.planning.random_split import random_split
from solver.replanning.lookahead import busy_ahead, drawn_lengths
from solver.replanning.marginal_value import group_by_worth, price_of, time_left_s, token_worth
from solver.replanning.replan import LOOKING_SHARE
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of, ready_s
from solver.timing.group_times import GroupTimes
from solver.timing.step_cost import Pricing

FIRST_SHARE = 0.01  # of the static plan's makespan that following the first candidate may take
FURTHER_SHARE = 0.0025  # the same for all further candidates together
FORESIGHT_S = 0.012  # about what following one candidate takes, for 1,000 responses
FACTORS = (1.6, 2.5, 4.0)  # times the static plan's price of time that are tried after that price itself


@dataclass(frozen=True)
class ReplanStart:
    """Groups to start with, and the price at which the step is re-planned (None: not at all)."""

    groups: list[IntArray]
    price: float | None


class Start:
    """The step before its first iteration: finds the groups and the price from it."""

    def __init__(self, given: PlanningInput, remaining: RemainingLengths, static: Plan | None = None) -> None:
        self.given, self.remaining = given, remaining
        latency, workload = given.latency.affine, given.workload
        self.base_s = latency.base_s
        context = workload.context_tokens.astype(float)
        everyone, tokens = np.arange(len(workload)), workload.generated_tokens.astype(float)
        self.load: FloatArray = latency.per_response_s + latency.per_kv_token_s * context
        self.most = remaining.most_tokens(everyone, tokens)
        self.root = remaining.root_load(everyone, tokens, latency.per_response_s, latency.per_kv_token_s)
        left = remaining.expected_tokens(everyone, tokens)
        self.work_s = float((self.load * left + latency.per_kv_token_s * left**2 / 2).sum())
        self.split = static or random_split(
            workload, given.cluster, given.latency, given.objective, given.phases, seed=given.seed, admission=given.admission
        )
        self.groups = groups_of(self.split)

    # --- the price ----------------------------------------------------------------------------------------------------

    def price(self) -> float:
        """Actor-seconds that one second of makespan is worth under the objective, at the reference split's outcome."""
        given, objective, phases = self.given, self.given.objective, self.given.phases
        gpus, ready = given.cluster.gpus_per_actor, ready_s(given.latency)
        if objective.deadline_s is not None:
            return price_of(objective.deadline_s - phases.seconds - ready, self.base_s, self.most, self.root)
        if objective.budget is not None:
            per_gpu_s = given.cluster.usd_per_gpu_s if objective.cost == "usd" else 1.0
            return self._price_within(objective.budget / (gpus * per_gpu_s)) if per_gpu_s > 0 else math.inf
        w = objective.time_weight
        if w >= 1.0 or self.split.makespan_s <= 0:
            return math.inf
        time_s, gpu_s = (
            phases.step_time_s(self.split.makespan_s),
            phases.step_gpu_s(self.split.makespan_s, self.split.gpu_seconds),
        )
        return w * gpu_s / ((1 - w) * gpus * time_s) + phases.learner_gpus / gpus

    def _price_within(self, actor_s: float) -> float:
        """The highest price of time at which the expected cost ``work + a sum Lambda^2 / (X - a r)`` stays within budget."""
        low, high = 0.0, 1e6
        for _ in range(60):
            price = math.sqrt(max(low, 1e-6) * high)
            left = time_left_s(price, self.base_s, self.most, self.root)
            cost = self.work_s + float((self.base_s * self.root**2 / (left - self.base_s * self.most)).sum())
            low, high = (price, high) if cost <= actor_s else (low, price)
        return low

    # --- candidates -----------------------------------------------------------------------------------------------------

    def grouped(self, price: float) -> list[IntArray]:
        """Return groups of responses of equal marginal value; equal responses are assigned at random."""
        workload, latency = self.given.workload, self.given.latency
        left = time_left_s(price, self.base_s, self.most, self.root)
        worth = token_worth(left, self.base_s, self.load, self.most, self.root)
        order = np.random.default_rng(self.given.seed).permutation(len(workload))
        groups = group_by_worth(
            self.load[order], worth[order], self.base_s, self.given.cluster.max_actors, latency.max_batch,
            workload.reserved_tokens[order].astype(float), latency.kv_capacity_tokens,
        )  # fmt: skip
        return [order[g] for g in groups]

    def best(self, price: float) -> ReplanStart:
        """Return the candidate with the best simulated outcome, for a weighted objective.

        Candidates are the static plan, and re-planning from its groups at its price. Where the forecast is certain, they are
        also groups of equal marginal value, and the better of both at higher prices as long as the outcome improves. Under an
        uncertain forecast these differ by less than draws do, and the best of many on one draw was worse than the first on
        public logs. The result is the static plan itself where it has one actor or the budget allows no look-ahead.
        """
        size = max(len(self.given.workload), 200) / 1000
        affordable = self.split.makespan_s / (FORESIGHT_S * size)
        static = ReplanStart(self.groups, None)
        if FIRST_SHARE * affordable < 1 or len(static.groups) < 2:
            return static
        left, again = (drawn_lengths(self.remaining, self.given.workload, self.given.seed + draw) for draw in (0, 1))
        looks = 1 + int(FURTHER_SHARE * affordable) if np.array_equal(left, again) else 1

        def dealt(factor: float) -> ReplanStart:
            return ReplanStart(static.groups, factor * price)

        def alike(factor: float) -> ReplanStart:
            return ReplanStart(self.grouped(factor * price), factor * price)

        static_key, _ = self._foreseen(static, left)
        firsts = [(*self._foreseen(begin := way(1.0), left), begin, way) for way in (dealt, alike)[:looks]]
        key, moved, begin, way = min(firsts, key=lambda f: f[0])
        for factor in FACTORS[: max(0, looks - 2)]:
            following = way(factor)
            following_key, following_moved = self._foreseen(following, left)
            if following_key >= key:
                break
            key, moved, begin = following_key, following_moved, following
        if key >= static_key:
            return static
        return begin if moved else ReplanStart(begin.groups, None)

    def _foreseen(self, begin: ReplanStart, left: FloatArray) -> tuple[tuple[float, float], int]:
        """The value that right-sizing minimises, for this candidate on the drawn lengths, and how many responses move."""
        given = self.given
        pricing = Pricing.of(given.cluster, given.latency, given.objective, given.phases)
        if begin.price is None:
            return sizing_key(*pricing.step(self._busy_alone(begin.groups, left)[None]), given.objective), 0
        busy, moved = busy_ahead(
            begin.groups, left, self.remaining, given.workload, given.latency, begin.price, given.admission
        )
        time_s, cost = pricing.step(busy[None])
        return sizing_key(time_s + LOOKING_SHARE * busy.max(), cost, given.objective), moved

    def _busy_alone(self, groups: list[IntArray], left: FloatArray) -> FloatArray:
        """The exact times of groups without migrations."""
        given = self.given
        generated = given.workload.generated_tokens
        drawn = given.workload.with_response_tokens((generated + left).astype(np.int64))
        admission = admission_of(given.latency, None, given.admission)
        times = GroupTimes.of(drawn, given.latency, admission, np.concatenate(groups))
        return np.asarray(times.busy_s(np.cumsum([0, *map(len, groups)]))[0])

    def plan(self, policy: str, groups: list[IntArray]) -> Plan:
        """Return the groups as a plan."""
        if groups is self.groups:
            return replace(self.split, policy=policy)
        given = self.given
        return assemble(policy, groups, given.workload, given.cluster, given.latency, given.phases, admission=given.admission)

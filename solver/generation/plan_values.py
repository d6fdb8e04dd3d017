"""Times lists of actors exactly, over all scenarios, and values them.

Inputs: a problem whose latency models are affine, and the value of a step. Times are those of ``solver.timing``, so a plan that
is built from the same actors has the same numbers.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solver.model.ordered_sums import dot
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes, KnownTimes
from solver.timing.items import Items
from solver.timing.step_cost import StepObjective

Actors = list[tuple[int, IntArray]]
"""(offer, responses in their order of admission) of every actor."""


@dataclass(frozen=True, eq=False)
class ValuedPlan:
    """N actors with their times over S scenarios.

    Attributes:
        busy_s: (S, N) seconds from when an actor can decode until it is done; done_s: (S, N) with sync and start.
        warm: (N,) whether an actor is prewarmed. makespan_s, cost: (S,) of generation.
        value: of the step, infinite where a limit is broken or actors are missing. rank: least for the best plan; where limits
            are broken, for the one that comes nearest to them.
    """

    actors: Actors
    busy_s: FloatArray
    done_s: FloatArray
    warm: NDArray[np.bool_]
    makespan_s: FloatArray
    cost: FloatArray
    value: float
    rank: tuple[float, ...]


class PlanValues:
    """Values lists of actors for one problem.

    Attributes:
        goal: the value of a step; its norms are set once the reference is known.
    """

    def __init__(self, problem: PlanningProblem, items: Items) -> None:
        self.problem, self.items = problem, items
        self.goal = StepObjective.of_problem(problem)
        self.scenarios = len(problem.workload.cases())
        self._rules = [admission_of(offer.latency, None, problem.admission) for offer in problem.offers]
        self._known = [KnownTimes() for _ in problem.offers]
        self._plain: dict[int, _Sums] = {}

    def of_problem(self, problem: PlanningProblem) -> PlanValues:
        """Return values for another objective of the same step, which share the times of groups."""
        other = copy.copy(self)
        other.problem, other.goal = problem, StepObjective.of_problem(problem)
        return other

    def set_reference(self, norms: tuple[float, float]) -> None:
        """Let values be relative to this time and cost of a step."""
        self.goal = replace(self.goal, norms=norms)

    def of(self, actors: Actors) -> ValuedPlan:
        """Time the actors exactly and value them."""
        busy = np.zeros((self.scenarios, len(actors)))
        for r in sorted({r for r, _ in actors}):
            at = [k for k, (offer, _) in enumerate(actors) if offer == r]
            groups = [actors[k][1] for k in at]
            model, order = self.problem.offers[r].latency, np.concatenate(groups)
            times = GroupTimes.of(
                self.problem.workload, model, self._rules[r], order, self.problem.share_prefill, self._known[r]
            )
            busy[:, at] = times.busy_s(np.cumsum([0, *map(len, groups)]))
        return self.with_times(actors, busy)

    def with_times(self, actors: Actors, busy_s: FloatArray) -> ValuedPlan:
        """Value actors that are busy for (S, N) known seconds."""
        items, offers = self.items, self.problem.offers
        of = np.array([r for r, _ in actors])
        warm = np.zeros(len(actors), dtype=bool)
        for i, pool in enumerate(self.problem.cluster.pools):
            if pool.prewarmed:
                mine = [k for k, r in enumerate(of.tolist()) if offers[r].pool == i]
                mine.sort(key=lambda k: (-items.start_s[of[k]] * items.rate[of[k]], -busy_s[:, k].mean(), k))
                warm[mine[: pool.prewarmed]] = True
        done = busy_s + items.sync_s[of] + np.where(warm, 0.0, items.start_s[of])
        makespan, after = done.max(axis=1), self.goal.held_after_s
        held = done if after is None else np.maximum(done, makespan[:, None]) + after
        cost = dot(held, items.rate[of])
        step = self.goal.step(makespan, cost)
        missing = max(0, self.problem.needed_actors - len(actors))
        value = math.inf if missing else self.goal.objective.value_over(*step, self.goal.norms)
        return ValuedPlan(actors, busy_s, done, warm, makespan, cost, value, (float(missing), *self.goal.objective.key(*step)))

    def assembled(self, plan: ValuedPlan) -> Plan:
        """Return the plan with places, times and costs; of equal actors those that take longest are prewarmed."""
        order = np.argsort(-plan.busy_s.mean(axis=0), kind="stable").tolist()
        actors = [plan.actors[k] for k in order]
        return assemble("solver", [group for _, group in actors], self.problem, [offer for offer, _ in actors])

    def one(self, offer: int, group: IntArray) -> FloatArray:
        """Return (S,) seconds of one group on an actor of the offer."""
        plain = self._at_once(offer, group)
        if plain is not None:
            return plain
        model, rule = self.problem.offers[offer].latency, self._rules[offer]
        shared = self.problem.share_prefill
        times = GroupTimes.of(self.problem.workload, model, rule, group, shared, self._known[offer])
        return times.busy_s(np.array([0, len(group)]))[:, 0]

    def refills(self, offer: int, group: IntArray) -> bool:
        """Return whether a group has more responses than an actor of the offer has slots, or memory for."""
        rule = self._rules[offer]
        return len(group) > rule.max_batch or bool(self._sums(offer).held[group].sum() > rule.kv_capacity_tokens)

    def _at_once(self, offer: int, group: IntArray) -> FloatArray | None:
        """Return the closed form of a group that fits at once (``GroupTimes``); None for other groups."""
        model, sums = self.problem.offers[offer].latency, self._sums(offer)
        if self.problem.share_prefill or self.refills(offer, group):
            return None
        iterations, charged = sums.iterations[:, group], sums.charged[:, group]
        longest = iterations.max(axis=1).astype(float)
        if model.token_budget is not None:
            fed = np.cumsum(np.where(iterations > 0, sums.context[group], 0), axis=1)
            ready = np.ceil(fed / np.maximum(model.token_budget - np.arange(len(group)), 1)) - 1
            if (np.where(iterations > 0, ready + iterations, 0.0).max(axis=1) > longest).any():
                return None
            least = (iterations.sum(axis=1) + charged.sum(axis=1)) * (1 - 1e-12) / model.token_budget
            longest = np.maximum(longest, least)
        called = model.prefill_base_s * charged.any(axis=1)
        return np.asarray(model.base_s * longest + sums.load[:, group].sum(axis=1) + called)

    def _sums(self, offer: int) -> _Sums:
        if offer not in self._plain:
            model, work = self.problem.offers[offer].latency, self.problem.workload
            cases = work.cases()
            iterations = np.stack([case.iterations for case in cases])
            charged = np.where(iterations > 0, model.charged_tokens(work.context_tokens), 0)
            fed, kv = (np.stack([getattr(case, name) for case in cases]) for name in ("fed_steps", "kv_steps"))
            load = model.per_response_s * fed + model.per_kv_token_s * kv + model.join_s * (iterations > 0)
            held = work.reserved_tokens
            if self.problem.admission != "reserve":
                held = work.context_tokens + np.max([case.remaining_tokens for case in cases], axis=0)
            load = load + model.prefill_per_token_s * charged
            self._plain[offer] = _Sums(iterations, load, charged, np.maximum(work.context_tokens, 1), held)
        return self._plain[offer]


@dataclass(frozen=True, eq=False)
class _Sums:
    """Of all responses on one offer: (S, n) iterations, seconds beside them with prefill, and tokens charged for prefill; (n,)
    tokens of their contexts, at least 1, and the most KV tokens that admission counts."""

    iterations: IntArray
    load: FloatArray
    charged: IntArray
    context: IntArray
    held: IntArray

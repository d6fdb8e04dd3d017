"""Keeps the plans found in one planning run: the random split, the best plan so far, and other good ones.

The class fills, improves, times and values actor lists. ``planner`` decides what is tried when.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from dataclasses import replace

from solver.model.errors import PlanningError
from solver.model.plan import ActorPlan, Plan
from solver.model.problem import PlanningProblem
from solver.planning.mixed_kinds.exchanges import exchanged
from solver.planning.mixed_kinds.few_items import EveryFewPlan
from solver.planning.mixed_kinds.fill import FilledPlan, GreedyFiller
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.local_search import Improver
from solver.planning.mixed_kinds.node_placement import place
from solver.planning.mixed_kinds.reference import random_groups
from solver.planning.mixed_kinds.refusal import no_room
from solver.planning.reference import reference_of
from solver.planning.work_budget import WorkBudget
from solver.timing.build_plan import timed
from solver.timing.step_cost import StepObjective

QUICK_SHARES = (0.85, 1.0)  # of the random split's makespan, at which its own actors are filled first
TIMING_S = 3e-6  # what a response takes to time in a plan (see ``work_budget``)


class Plans:
    """The plans found so far for ``problem``, which has no scenarios and affine latency models.

    Attributes:
        split, reference: the random split and its time and cost. goal: values plans by the objective, relative to the
            reference.
        plan, value: the best so far; failures: changes without success since the best plan last improved.

    Raises:
        PlanningError: not even the random split fits.
    """

    def __init__(self, problem: PlanningProblem, work: MixedWork, work_budget: WorkBudget, seed: int = 0) -> None:
        self.problem, self.workload, self.work, self.work_budget = problem, problem.workload, work, work_budget
        least = problem.needed_actors
        goal = StepObjective.of_problem(problem)
        most = len(work) if problem.max_actors is None else problem.max_actors
        split = random_groups(work, self.workload, goal, seed, least, most)
        if split is None:
            raise PlanningError(no_room(work, least, most))
        self.split, self._split_offers = self.plan_of(split, "random"), [r for r, _ in split.actors]
        dealt = self.split
        self.reference = reference_of(problem, len(dealt.actors), dealt.makespan_s, dealt.gpu_seconds, dealt.cost_usd)
        self.goal = replace(goal, norms=self.reference.norms(problem.objective.cost))
        self.plan, self.value = replace(self.split, policy="solver"), self.value_of(self.split)
        self._filled: FilledPlan | None = None  # what the plan was made of
        works = [work]
        if problem.share_prefill and not problem.keep_together:  # whole prompts compute least, single responses fill best
            works.append(MixedWork.of(replace(problem, keep_together=True)))
        self._improvers = [
            Improver(
                GreedyFiller(w, self.goal.value, self.goal.held_after_s, work_budget), self._accept,
                latest_s=problem.generation_within_s, seed=seed, min_actors=least, max_actors=problem.max_actors,
            )
            for w in works
        ]  # fmt: skip
        for improver in self._improvers:
            improver.best_value = self.value
        self._turns = itertools.cycle(self._improvers)
        self._opens_at = [w.positions_of(work) for w in works]

    def plan_of(self, filled: FilledPlan, policy: str = "solver") -> Plan:
        """Return the plan of filled actors, timed by the planning model."""
        work, problem = self.work, self.problem
        self.work_budget.spend(TIMING_S * len(self.workload))
        places = place(work.pools, [(int(work.pool[r]), int(work.gpus[r])) for r, _ in filled.actors])
        assert places is not None
        actors = []
        for (r, _), group, warm, (node, gpu_ids) in zip(filled.actors, filled.groups, filled.warm, places, strict=True):
            offer = work.offers[r]
            prompts = tuple(dict.fromkeys(self.workload.prompt_of[list(group)].tolist()))
            actors.append(
                ActorPlan(
                    offer.kind, gpu_ids, node, group, prompts, int(work.slots[r]), release=problem.release,
                    market=offer.market, usd_per_gpu_s=offer.usd_per_gpu_s, prewarmed=warm,
                    shares_prompts=problem.share_prefill,
                )
            )  # fmt: skip
        plan = Plan(tuple(actors), policy, 0.0, 0.0, 0.0)
        return timed(plan, problem)

    def _cost(self, plan: Plan) -> float:
        return plan.gpu_seconds if self.problem.objective.cost == "gpu_s" else plan.cost_usd

    def value_of(self, plan: Plan) -> float:
        """Return the objective's value of a plan; infinite if it has too few actors, which is possible for the random split."""
        if len(plan.actors) < self.problem.needed_actors:
            return math.inf
        return self.goal.value(plan.makespan_s, self._cost(plan))

    def _accept(self, filled: FilledPlan) -> float:
        """Return the exact value of a filled list, and keep its plan if it is the best."""
        plan = self.plan_of(filled)
        value = self.value_of(plan)
        if value < self.value:
            self.plan, self.value, self._filled = plan, value, filled
        return value

    def fill_split(self) -> None:
        """Fill the random split's actors, each opening where the others have no room left.

        This runs however little time is left. If nothing is to be generated, one actor of every offer is tried as well.
        """
        offers = sorted(self._split_offers, key=lambda r: float(self.work.rate[r]) / max(1, int(self.work.gpus[r])))
        for improver in self._improvers:
            last = max(0, improver.filler.working - 1)
            for share in QUICK_SHARES:
                makespan_s = min(self.split.makespan_s * share, self.problem.generation_within_s)
                if improver.consider(improver.filler.fill(tuple((r, last) for r in offers), makespan_s)):
                    break
        if not self.work.works.any():
            for r in range(len(self.work.offers)):
                self._improvers[0].consider(self._improvers[0].filler.fill(((r, 0),), self.work.longest_makespan_s))

    def fill(self, actors: Iterable[tuple[int, int]], makespan_s: float) -> None:
        """Fill the actors of a relaxation: offers, and the position in ``work`` at which each opens."""
        for improver, at in zip(self._improvers, self._opens_at, strict=True):
            improver.round([(r, int(at[position])) for r, position in actors], makespan_s)

    def step(self) -> None:
        """Try one change of a good plan."""
        next(self._turns).step()

    @property
    def failures(self) -> int:
        """Return the number of changes that every improver has tried without success since its best plan last improved."""
        return min(improver.failures for improver in self._improvers)

    @property
    def fastest_s(self) -> float:
        """Return the least makespan of any plan found."""
        return min(self.split.makespan_s, *(improver.fastest_s for improver in self._improvers))

    @property
    def cheapest(self) -> tuple[float, float]:
        """Return makespan and cost of generation of the cheapest plan found."""
        return min((self._cost(self.split), self.split.makespan_s), *(i.cheapest for i in self._improvers))[::-1]

    def exchange(self, most_s: float, stop_at: float) -> None:
        """Improve the best plan by exchanges between its actors, and a cheaper one that misses the deadline by little.

        Args:
            most_s: counted seconds for each. stop_at: time of the clock (``perf_counter``) to stop.
        """
        starts = [(improver.late, improver) for improver in self._improvers]
        starts = [(late, improver) for late, improver in starts if late is not None and self._promises(late)]
        for filled, improver in [*starts, (self._filled, self._improvers[0])]:
            if filled is None:
                continue
            self.work_budget.spend(most_s)
            better = exchanged(filled, self.problem, improver.filler, self.goal, most_s, stop_at)
            if better is not None:
                self._accept(better)

    def try_every_plan(self) -> None:
        """Try every plan of a handful of responses."""
        filler = self._improvers[0].filler
        if EveryFewPlan.fits(filler):
            best = EveryFewPlan(self.problem, filler).best(self.goal.value)
            if best is not None:
                self._accept(best)

    def offer(self, plan: Plan) -> None:
        """Keep a plan of the same problem that was found elsewhere, if it is the best."""
        value = self.value_of(plan)
        if value < self.value:
            self.plan, self.value = replace(plan, policy="solver"), value

    def _promises(self, late: FilledPlan) -> bool:
        """Return whether a late plan would be the best if it were in time."""
        return self.goal.value(min(late.makespan_s, self.problem.generation_within_s), late.cost) < self.value

    def others(self, most: int, last_at: float) -> list[Plan]:
        """Return up to ``most`` other good plans with their values, best first, as far as the clock
        (``perf_counter``) allows."""
        kept = [filled for improver in self._improvers for filled in improver.kept.values() if filled is not self._filled]
        kept.sort(key=lambda filled: filled.value)
        plans = [self.plan_of(filled) for filled in kept[:most] if time.perf_counter() < last_at]
        plans = [replace(plan, value=self.value_of(plan), reference=self.reference) for plan in plans]
        return [plan for plan in plans if plan.value is not None and math.isfinite(plan.value)]

"""Ways to generate the responses of a step: how they are assigned, to how many actors, and whether actors are cut or
consolidated.

A way says nothing of single responses, so the best one for a part of a step can be used for the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from rlhfless.scheduling.baselines import Random
from rlhfless.scheduling.fold import Fold
from rlhfless.scheduling.fold_draining import DrainingFold
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.scheduling.round_robin import Spread
from rlhfless.simulate.whole_steps.learner_way import server_counts
from solver.generation.canonical_order import Canonical
from solver.generation.random_split import assign_prompts
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.step_levers import ASSIGNMENT, CONSOLIDATION, CUT, SHARED_PREFILL
from solver.model.workload import IntArray
from solver.timing.build_plan import assemble

CUT_SHARES = (0.15, 0.4)
MORE_ACTORS = 2  # than the right-sized random split has, that a plan may start
RANDOM, CACHED, RESPONSES, PROMPTS, FOLDED = "random", "random, prefill shared", "responses", "prompts", "folded"
LEVERS_OF_DEAL = {
    RANDOM: frozenset[str](),
    CACHED: frozenset([SHARED_PREFILL]),
    RESPONSES: frozenset([ASSIGNMENT]),
    PROMPTS: frozenset([ASSIGNMENT, SHARED_PREFILL]),
    FOLDED: frozenset([ASSIGNMENT, CONSOLIDATION]),
}


@dataclass(frozen=True)
class GenerationWay:
    """A way to generate.

    Attributes:
        deal: whole prompts at ``random``, with shared prefill or without; single ``responses``, or ``prompts`` with shared
            prefill, by predicted tokens; or round-robin and ``folded`` while the step runs.
        actors: at the start. cut_share: of the responses, below which all actors but ``keep`` are cut; 0: no cut.
    """

    deal: str
    actors: int
    cut_share: float = 0.0
    keep: int = 0

    @property
    def levers(self) -> frozenset[str]:
        """Return the levers that it uses."""
        return LEVERS_OF_DEAL[self.deal] | ({CUT} if self.cut_share else set())

    def scaled(self, ratio: float, prompts: int, servers: int) -> GenerationWay:
        """Return the way for a step that is so many times as large, which has so many prompts and servers."""
        actors = min(prompts, servers, max(1, round(self.actors * ratio)))
        return replace(self, actors=actors, keep=min(actors, max(1, round(self.keep * ratio))) if self.cut_share else 0)


class GenerationPlanner:
    """Makes the plans of one step from ways to generate. Plans that differ in their cut only have the same actors.

    Args:
        problem: with calibrated scenarios. options: of the step.
    """

    def __init__(self, problem: PlanningProblem, options: PlanningOptions) -> None:
        self.problem, self.options = problem, options
        self.points = replace(problem, workload=problem.workload.points)
        self.prompts = len(np.unique(problem.workload.prompt_of))
        self._dealt: dict[tuple[str, int], Plan] = {}

    @cached_property
    def best(self) -> int:
        """Return the actors of the right-sized random split."""
        return len(Random().plan(self.problem, self.options).actors)

    @cached_property
    def most(self) -> int:
        """Return the most actors that a plan may start."""
        return min(self.problem.one_kind[0].max_actors, self.prompts, self.best + MORE_ACTORS)

    @property
    def folded(self) -> GenerationWay:
        """Return the way that folds."""
        return GenerationWay(FOLDED, min(self.most, self.best + 1))

    def ways(self) -> Iterator[GenerationWay]:
        """Return the ways that are tried, beside the one that folds."""
        shares = self.prompts < len(self.problem.workload)
        at_random, dealt = ([RANDOM, CACHED], [RESPONSES, PROMPTS]) if shares else ([RANDOM], [RESPONSES])
        for actors in server_counts(self.most, self.best):
            yield from (GenerationWay(deal, actors) for deal in [*at_random, *dealt])
            for share, keep in product(CUT_SHARES, sorted({1, actors // 2}) if actors > 1 else ()):
                yield from (GenerationWay(deal, actors, share, keep) for deal in dealt)

    def plan(self, way: GenerationWay) -> Plan:
        """Return the plan of a way to generate.

        The random split is that of ``random_split``. Its shuffle depends on the scenarios, which are not timed here.
        """
        key = way.deal, way.actors
        if key not in self._dealt:
            self._dealt[key] = self._deal(*key)
        plan, total = self._dealt[key], len(self.problem.workload)
        if not way.cut_share:
            return plan
        return replace(plan, rule=GlobalCut(max(1, round(way.cut_share * total)), total, keep=way.keep))

    def _deal(self, deal: str, actors: int) -> Plan:
        if deal == FOLDED:
            return Fold(Spread(actors=actors), rule=DrainingFold).plan(self.problem, self.options)
        if deal in (RANDOM, CACHED):
            canonical, points = self._canonical, replace(self.points, share_prefill=deal == CACHED)
            groups = assign_prompts(canonical.workload, self._shuffled, actors)
            return assemble("random", [canonical.response[group] for group in groups], points)
        if deal == RESPONSES:
            return _dealt(self.points, np.arange(len(self.problem.workload)), actors)
        return _dealt(replace(self.points, share_prefill=True), self.problem.workload.prompt_of, actors)

    @cached_property
    def _canonical(self) -> Canonical:
        return Canonical.of(self.problem.workload)

    @cached_property
    def _shuffled(self) -> IntArray:
        prompts = np.unique(self._canonical.workload.prompt_of)
        return np.asarray(np.random.default_rng(self.options.seed).permutation(prompts))


def _dealt(problem: PlanningProblem, item_of: IntArray, actors: int) -> Plan:
    """Return a plan that assigns items (responses, or prompts with all their responses) by predicted tokens, back and forth."""
    tokens = np.bincount(item_of, weights=problem.workload.response_tokens)
    items = np.argsort(-tokens, kind="stable")
    rounds, place = np.divmod(np.arange(len(items)), actors)
    actor_of = np.zeros(len(items), np.int64)
    actor_of[items] = np.where(rounds % 2, actors - 1 - place, place)
    longest_first = np.lexsort((-problem.workload.response_tokens, -tokens[item_of]))
    by_actor = longest_first[np.argsort(actor_of[item_of[longest_first]], kind="stable")]
    edges = np.cumsum(np.bincount(actor_of[item_of], minlength=actors))[:-1]
    return assemble("dealt", np.split(by_actor, edges), problem)

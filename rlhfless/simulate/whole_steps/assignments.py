"""Assignments of a step's responses: to how many actors, by what, and whether actors are cut or consolidated meanwhile.

An assignment names no single response, so the best one for a part of a step can be used for the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from rlhfless.scheduling.assignments import Random, Spread
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.scheduling.rules import Fold
from solver.generation.canonical_order import Canonical
from solver.generation.random_split import assign_prompts
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.step_levers import ASSIGNMENT, CONSOLIDATION, CUT, SHARED_PREFILL
from solver.model.workload import IntArray
from solver.step.learners import server_counts
from solver.timing.build_plan import assemble

CUT_SHARES = (0.15, 0.4)
MORE_ACTORS = 2  # than the right-sized random split has, that a plan may start
RANDOM, CACHED, RESPONSES, PROMPTS, FOLDED = "random", "random, prefill shared", "responses", "prompts", "folded"
LEVERS_OF = {
    RANDOM: frozenset[str](),
    CACHED: frozenset([SHARED_PREFILL]),
    RESPONSES: frozenset([ASSIGNMENT]),
    PROMPTS: frozenset([ASSIGNMENT, SHARED_PREFILL]),
    FOLDED: frozenset([ASSIGNMENT, CONSOLIDATION]),
}


@dataclass(frozen=True)
class Assignment:
    """How the responses of a step are assigned.

    Attributes:
        by: whole prompts at ``random``, with shared prefill or without; single ``responses``, or ``prompts`` with shared
            prefill, by predicted tokens; or round-robin and ``folded`` while the step runs.
        actors: at the start. cut_share: of the responses, below which all actors but ``keep`` are cut; 0: no cut.
    """

    by: str
    actors: int
    cut_share: float = 0.0
    keep: int = 0

    @property
    def levers(self) -> frozenset[str]:
        """Return the levers that it uses."""
        return LEVERS_OF[self.by] | ({CUT} if self.cut_share else set())

    @property
    def uncut(self) -> Assignment:
        """Return the same without a cut: assignments that differ in their cut only have the same timelines until then."""
        return replace(self, cut_share=0.0, keep=0)

    def scaled(self, ratio: float, prompts: int, servers: int) -> Assignment:
        """Return the assignment in a step that is so many times as large, which has so many prompts and servers."""
        actors = min(prompts, servers, max(1, round(self.actors * ratio)))
        return replace(self, actors=actors, keep=min(actors, max(1, round(self.keep * ratio))) if self.cut_share else 0)


class Assignments:
    """The assignments of one step that are tried, and the plan of each.

    Args:
        problem: with calibrated scenarios. options: of the step.
    """

    def __init__(self, problem: PlanningProblem, options: PlanningOptions) -> None:
        self.problem, self.options = problem, options
        self.points = replace(problem, workload=problem.workload.points)
        self.prompts = len(np.unique(problem.workload.prompt_of))
        self._uncut: dict[Assignment, Plan] = {}

    @cached_property
    def best(self) -> int:
        """Return the actors of the right-sized random split."""
        return len(Random().plan(self.problem, self.options).actors)

    @cached_property
    def most(self) -> int:
        """Return the most actors that a plan may start."""
        return min(self.problem.one_kind[0].max_actors, self.prompts, self.best + MORE_ACTORS)

    @property
    def folded(self) -> Assignment:
        """Return the assignment that folds."""
        return Assignment(FOLDED, min(self.most, self.best + 1))

    def __iter__(self) -> Iterator[Assignment]:
        """Return the assignments that are tried, beside the one that folds."""
        shares = self.prompts < len(self.problem.workload)
        at_random, by_tokens = ([RANDOM, CACHED], [RESPONSES, PROMPTS]) if shares else ([RANDOM], [RESPONSES])
        for actors in server_counts(self.most, self.best):
            yield from (Assignment(by, actors) for by in [*at_random, *by_tokens])
            for share, keep in product(CUT_SHARES, sorted({1, actors // 2}) if actors > 1 else ()):
                yield from (Assignment(by, actors, share, keep) for by in by_tokens)

    def plan(self, assignment: Assignment) -> Plan:
        """Return the plan of an assignment; those that differ in their cut only have the same actors.

        The random split is that of ``random_split``. Its shuffle depends on the scenarios, which are not timed here.
        """
        if assignment.cut_share:
            total = len(self.problem.workload)
            cut = GlobalCut(max(1, round(assignment.cut_share * total)), total, keep=assignment.keep)
            return replace(self.plan(assignment.uncut), rule=cut)
        if assignment not in self._uncut:
            self._uncut[assignment] = self._assigned(assignment.by, assignment.actors)
        return self._uncut[assignment]

    def _assigned(self, by: str, actors: int) -> Plan:
        if by == FOLDED:
            return Fold(Spread(actors=actors)).plan(self.problem, self.options)
        if by in (RANDOM, CACHED):
            canonical, points = self._canonical, replace(self.points, share_prefill=by == CACHED)
            groups = assign_prompts(canonical.workload, self._shuffled, actors)
            return assemble("random", [canonical.response[group] for group in groups], points)
        if by == RESPONSES:
            return _by_tokens(self.points, np.arange(len(self.problem.workload)), actors)
        return _by_tokens(replace(self.points, share_prefill=True), self.problem.workload.prompt_of, actors)

    @cached_property
    def _canonical(self) -> Canonical:
        return Canonical.of(self.problem.workload)

    @cached_property
    def _shuffled(self) -> IntArray:
        prompts = np.unique(self._canonical.workload.prompt_of)
        return np.asarray(np.random.default_rng(self.options.seed).permutation(prompts))


def _by_tokens(problem: PlanningProblem, item_of: IntArray, actors: int) -> Plan:
    """Return a plan that assigns items (responses, or prompts with all their responses) by predicted tokens, back and forth."""
    tokens = np.bincount(item_of, weights=problem.workload.response_tokens)
    items = np.argsort(-tokens, kind="stable")
    rounds, place = np.divmod(np.arange(len(items)), actors)
    actor_of = np.zeros(len(items), np.int64)
    actor_of[items] = np.where(rounds % 2, actors - 1 - place, place)
    longest_first = np.lexsort((-problem.workload.response_tokens, -tokens[item_of]))
    by_actor = longest_first[np.argsort(actor_of[item_of[longest_first]], kind="stable")]
    edges = np.cumsum(np.bincount(actor_of[item_of], minlength=actors))[:-1]
    return assemble("assigned", np.split(by_actor, edges), problem)

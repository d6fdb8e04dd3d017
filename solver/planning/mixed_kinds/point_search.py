"""Searches plans and their bound on several offers (GPU kinds, actor sizes, pools, markets), for one set of lengths.

This file decides what is done when, and when to stop. The mathematics is in ``sequence_bound``, ``lp_bound`` and
``branch_search``, the plans are in ``incumbents``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from solver.model.problem import PlanningProblem
from solver.planning.bound import PlanLimits
from solver.planning.bound_search import SearchInterval
from solver.planning.mixed_kinds.branch_search import BranchSearch
from solver.planning.mixed_kinds.fill import openings
from solver.planning.mixed_kinds.incumbents import TIMING_S, Plans
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.length_classes import Classes
from solver.planning.mixed_kinds.lp_bound import Relaxation
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.reference import PROVEN_GAP
from solver.planning.search_options import SearchOptions
from solver.planning.work_budget import WorkBudget

CLASSES = 40
COUNTED = 0.6  # share of the time limit that counted work may take, so that the clock seldom stops it
EXCHANGED = 0.15  # share of the time limit that counted work may take after that, for exchanges between the actors of the plan
LAST_S = 0.95  # share of the time limit at which the clock stops it
FIRST_RATIO = 1.12  # of the makespans that are tried first
MORE = 0.05  # share of the time limit by which the work goes on while nothing keeps a deadline or a budget
CANDIDATES = 0.2  # share of the time limit that timing the other candidates may take at most
HURRY_S = 0.2  # below this time limit fewer makespans are tried first, and no linear programme is built
FIRST_SHARES, FIRST_WORK = (0.8, 0.65, 1.0), 0.3  # of the split's makespan for sequences; of the work: no more before the bound
PROVING, PATIENCE = 0.3, 4  # share of the work for the bound; it falls with the halvings that did not move it
NODES, MOST_STEPS = 2, 80  # intervals that are filled, and changes that are tried, in one turn of the plans
MOST_FAILURES = 4000  # changes tried in vain, once nothing is left to prove
BUILD_S = 1.2e-5  # what a response takes to build everything and deal it out


class PointSearch:
    """State of one search.

    Args:
        problem: without scenarios, with affine latency models. began: time of the clock (``perf_counter``).
        max_candidates: plans that are timed after the search, for which some time is kept.
        note: called with the name of a part of the search after each of its turns.
    """

    def __init__(
        self, problem: PlanningProblem, options: SearchOptions, began: float, max_candidates: int, note: Callable[[str], None]
    ) -> None:
        self.note = note
        self.time_limit_s = time_limit_s = options.time_limit_s
        self.hurry = time_limit_s < HURRY_S
        self.last_at = options.stop_at(began, LAST_S * time_limit_s)
        responses = len(problem.workload)
        timing_s = min(max_candidates * TIMING_S * responses, CANDIDATES * time_limit_s)
        self.work_budget = WorkBudget(COUNTED * time_limit_s - timing_s, self.last_at - timing_s)
        self.last_counted_s = LAST_S * time_limit_s - timing_s if options.deterministic else math.inf
        self.work_budget.spend(BUILD_S * responses)
        self.work = MixedWork.of(problem)
        self.plans = Plans(problem, self.work, self.work_budget, options.seed)
        self.limits = PlanLimits.of_problem(problem)
        self.relaxation: Relaxation | None = None
        self.deadline_s = problem.generation_within_s
        last = min(self.work.longest_makespan_s, max(self.deadline_s, 0.0))
        self.sequences = Sequences(self.work, self.limits, self.work_budget)
        self.search = BranchSearch(self.sequences, self.linear, self.plans.goal, last)
        self.started = False  # whether the bound search has its first intervals
        self.waiting: list[SearchInterval] = []  # intervals whose actors have not been filled yet

    def linear(self) -> Relaxation:
        """Return the linear relaxation, built at the first call."""
        if self.relaxation is None:
            self.relaxation = Relaxation(self.work, Classes.of(self.work, CLASSES), self.limits, self.work_budget)
        return self.relaxation

    @property
    def lower_bound(self) -> float:
        """Return the lower bound on the value of every plan, as far as it is known."""
        return self.search.lower_bound if self.started else 0.0

    def run(self) -> str:
        """Search until the bound meets the plan (``proof``), nothing better is found (``failures``), or the work budget is used
        up. Return which; the budget is used up by counted ``work`` or by ``time``."""
        self.note("random split")
        self.first_plans()
        stopped = "work"
        stale, moved, proving, planning = 0, 0.0, 0.0, 0.0  # the last two: counted seconds
        while not self.over():
            stop_above = self.plans.value * (1 - PROVEN_GAP)
            before = self.work_budget.spent_s
            programmes = self.search.programmes
            nodes = self.search.split(stop_above, linear=not self.hurry)
            self.note("sequences" if self.search.programmes == programmes else "linear programme")
            if nodes is None and (self.search.lower_bound >= stop_above or math.isinf(self.search.lower_bound)):
                stopped = "proof"
                break
            self.waiting += nodes or []
            stale = 0 if self.search.lower_bound > moved * (1 + 1e-4) else stale + 1
            moved = moved if stale else self.search.lower_bound
            between = self.work_budget.spent_s
            proving += between - before
            # the longer the bound has not moved, the more of the work goes to plans
            share = PROVING / (1 + stale / PATIENCE) if nodes is not None else 0.0
            if proving <= share * (proving + planning):
                continue
            self.waiting.sort(key=lambda node: node.bound)
            for node in self.waiting[:NODES]:
                self.round(node)
                self.note("rounding")
            self.waiting.clear()
            for _ in range(MOST_STEPS):
                done = proving <= share * (proving + planning + self.work_budget.spent_s - between)
                if done or self.work_budget.over:
                    break
                self.plans.step()
                self.note("local search")
            planning += self.work_budget.spent_s - between
            if nodes is None and self.plans.failures > MOST_FAILURES:
                stopped = "failures"
                break
        if stopped != "proof" and not self.work_budget.late:
            self.plans.exchange(EXCHANGED * self.time_limit_s, self.last_at)
            self.note("exchanges")
        return "time" if stopped == "work" and self.work_budget.late else stopped

    def over(self) -> bool:
        """Return whether to stop.

        Until a plan meets the deadline or budget the search continues up to the clock's limit or as many counted seconds.
        """
        if math.isinf(self.plans.value) and self.work_budget.left_s <= 0:
            self.work_budget.most_s = min(self.work_budget.spent_s + MORE * self.time_limit_s, self.last_counted_s)
        return self.work_budget.over

    def first_plans(self) -> None:
        """Try sequences and fills at makespans around that of the reference, before anything is proved."""
        near = self.plans.split.makespan_s
        self.plans.fill_split()
        self.note("first fill")
        for share in FIRST_SHARES[: 1 if self.hurry else 3]:
            if self.work_budget.spent_s > FIRST_WORK * self.work_budget.most_s:
                break
            makespan_s = max(self.work.shortest_makespan_s, min(near * share, self.deadline_s))
            most_cost = self.plans.goal.most_cost(self.plans.value, self.work.shortest_makespan_s)
            found = self.sequences.at(makespan_s, most_cost, 0.0)
            if found.actors:
                self.plans.fill(found.actors, makespan_s)
            self.note("first fill")
        first = self.work.shortest_makespan_s
        top = min(self.work.longest_makespan_s, self.deadline_s)
        grid, makespan_s = [], first
        while first > 0 and makespan_s < min(top, 4 * max(near, first)):
            makespan_s *= FIRST_RATIO**2 if self.hurry else FIRST_RATIO
            grid.append(makespan_s)
        if top < first * (1 - 1e-12):
            return
        self.waiting = self.search.intervals.start(grid, self.plans.value)
        self.started = True
        self.note("sequences")

    def round(self, node: SearchInterval) -> None:
        """Fill the actors that the relaxations of a node propose."""
        if node.bound >= self.plans.value or self.work_budget.over:
            return
        if node.actors:
            self.plans.fill(node.actors, node.high_s)
        if node.relaxed is not None and self.relaxation is not None:
            edges = self.relaxation.classes.edges.tolist()
            self.plans.fill(openings(node.relaxed.actors.tolist(), edges), node.high_s)

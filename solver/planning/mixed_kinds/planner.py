"""Defines ``plan_mixed``: plans on several offers (GPU kinds, actor sizes, pools, markets), with a lower bound.

This file calls the parts in order and decides when to stop. The mathematics is in ``sequence_bound``, ``lp_bound`` and
``search``, the plans are in ``incumbents``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from solver.model.errors import PlanningError
from solver.model.plan import Plan
from solver.planning.mixed_kinds.fill import openings
from solver.planning.mixed_kinds.history import SearchHistory
from solver.planning.mixed_kinds.incumbents import TIMING_S, Plans
from solver.planning.mixed_kinds.infeasible import infeasibility_reason, no_room, room_of
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.length_classes import Classes
from solver.planning.mixed_kinds.lp_bound import Relaxation
from solver.planning.mixed_kinds.parametric_lp import load
from solver.planning.mixed_kinds.problem import MixedProblem
from solver.planning.mixed_kinds.search import BoundSearch, SearchInterval
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.mixed_kinds.work_budget import WorkBudget

PROVEN_GAP = 1e-6
CLASSES = 40
COUNTED = 0.6  # share of the time limit that counted work may take, so that the clock seldom stops it
LAST_S = 0.95  # share of the time limit at which the clock stops it
FIRST_RATIO = 1.12  # of the makespans that are tried first
MORE = 0.05  # share of the time limit by which the work goes on while nothing keeps a deadline or a budget
CANDIDATES = 0.2  # share of the time limit that timing the other candidates may take at most
BLAME = 0.05  # share of the time limit for finding out how far a limit is from what can be kept
ROOM, LATEST_ROOM = 0.06, 1.15  # of the time limit: for each look at more slots or memory, and when the last one begins
HURRY_S = 0.2  # below this time limit fewer makespans are tried first, and no linear programme is built
FIRST_SHARES, FIRST_WORK = (0.8, 0.65, 1.0), 0.3  # of the split's makespan for sequences; of the work: no more before the bound
PROVING, PATIENCE = 0.3, 4  # share of the work for the bound; it falls with the halvings that did not move it
NODES, MOST_STEPS = 2, 80  # intervals that are filled, and changes that are tried, in one turn of the plans
MOST_FAILURES = 4000  # changes tried in vain, once nothing is left to prove
BUILD_S = 1.2e-5  # what a response takes to build everything and deal it out


@dataclass(frozen=True, eq=False)
class MixedOutcome:
    """The best plan, and other good ones (best first, the random split last), one for every number of actors of each offer."""

    plan: Plan
    candidates: tuple[Plan, ...]


def plan_mixed(problem: MixedProblem, time_limit_s: float = 1.0) -> Plan:
    """Return the best plan of ``search_mixed``; over scenarios, that of ``solver.planning.mixed_kinds.scenarios``."""
    return search_mixed(problem, time_limit_s, most_candidates=0).plan


def search_mixed(
    problem: MixedProblem,
    time_limit_s: float = 1.0,
    *,
    most_candidates: int = 8,
    explains: bool = True,
) -> MixedOutcome:
    """Search for a plan and its bound; return also the other good plans found.

    Args:
        problem: the planning problem; of scenarios only the predicted lengths are used.
        time_limit_s: seconds for everything but loading OR-Tools. The search stops when the work that it counts (see
            ``work_budget``) is worth ``COUNTED`` of it, so that the same problem has the same plan; the clock is a safety net.
            Building the work and the random split come first: a limit below what they take, about 30 ms for 2,048 responses on
            six offers and 0.15 s for 16,384, cannot be kept.
        most_candidates: other plans to return at most, as far as there is time to evaluate them.
        explains: whether an error says how many slots or how much memory would be enough.

    Returns:
        The best plan with ``lower_bound``, ``status``, ``history``; ``notes["stopped_by"]`` is ``proof``, ``failures`` (nothing
        better found, nothing left to prove), ``work`` or ``time``.

    Raises:
        PlanningError: no plan exists or none was found; the message names the limit and by how much it is missed.
    """
    if time_limit_s >= HURRY_S:
        load()  # once per process, before the clock starts
    return _MixedPlanner(problem, time_limit_s, most_candidates, explains).run()


def room_to_try(problem: MixedProblem, time_limit_s: float, began: float, plan: Callable[..., object]) -> str:
    """Return the part of the error message about slots and KV memory, after a search without success.

    Args:
        time_limit_s: of that search. began: when it began (``perf_counter``).
        plan: called as ``plan(problem, time_limit_s, explains=False)``, searches again.
    """

    def keeps(roomier: MixedProblem) -> bool:
        try:
            plan(roomier, ROOM * time_limit_s, explains=False)
        except PlanningError:
            return False
        return True

    return room_of(problem, keeps, problem.stop_after(began, LATEST_ROOM * time_limit_s))


class _MixedPlanner:
    """State of one planning run."""

    def __init__(self, problem: MixedProblem, time_limit_s: float, most_candidates: int, explains: bool) -> None:
        self.began = time.perf_counter()
        self.problem, self.explains = problem, explains
        self.time_limit_s, self.most_candidates = time_limit_s, most_candidates
        self.hurry = time_limit_s < HURRY_S
        self.last_at = problem.stop_after(self.began, LAST_S * time_limit_s)
        responses = len(problem.workload)
        timing_s = min(most_candidates * TIMING_S * responses, CANDIDATES * time_limit_s)
        self.effort = WorkBudget(COUNTED * time_limit_s - timing_s, self.last_at - timing_s)
        self.last_counted_s = LAST_S * time_limit_s - timing_s if problem.deterministic else math.inf
        self.effort.spend(BUILD_S * responses)
        self.work = MixedWork.of(problem)
        self.plans = Plans(problem, self.work, self.effort)
        self.limits = {
            "min_actors": problem.needed_actors, "max_actors": problem.max_actors, "release": problem.release,
            "after_s": problem.phases.seconds, "effort": self.effort,
        }  # fmt: skip
        self.sequences = Sequences(self.work, **self.limits)  # type: ignore[arg-type]
        self.relaxation: Relaxation | None = None
        self.deadline_s = problem.deadline_s
        last = min(self.work.longest_makespan_s, max(self.deadline_s, 0.0))
        self.search = BoundSearch(self.sequences, self.linear, self.plans.worth, self.work.shortest_makespan_s, last)
        self.bound = 0.0
        self.started = False  # whether the bound search has its first intervals
        self.history = SearchHistory(self.began)
        self.waiting: list[SearchInterval] = []  # intervals whose actors have not been filled yet

    def linear(self) -> Relaxation:
        """Return the linear relaxation, built at the first call."""
        if self.relaxation is None:
            self.relaxation = Relaxation(self.work, Classes.of(self.work, CLASSES), **self.limits)  # type: ignore[arg-type]
        return self.relaxation

    def note(self, cause: str) -> None:
        """Record value and bound in the history under ``cause``."""
        self.bound = min(max(self.bound, self.search.lower_bound), self.plans.value) if self.started else 0.0
        self.history.note(cause, self.plans.value, self.bound)

    def run(self) -> MixedOutcome:
        """Search until the bound meets the plan, no improvement is found, or the work budget is used up."""
        self.note("random split")
        self.first_plans()
        stopped = "work"
        stale, moved, proving, planning = 0, 0.0, 0.0, 0.0  # the last two: counted seconds
        while not self.over():
            enough = self.plans.value * (1 - PROVEN_GAP)
            before = self.effort.spent_s
            asked = self.search.asked
            nodes = self.search.split(enough, linear=not self.hurry)
            self.note("sequences" if self.search.asked == asked else "linear programme")
            if nodes is None and (self.search.lower_bound >= enough or math.isinf(self.search.lower_bound)):
                stopped = "proof"
                break
            self.waiting += nodes or []
            stale = 0 if self.search.lower_bound > moved * (1 + 1e-4) else stale + 1
            moved = moved if stale else self.search.lower_bound
            between = self.effort.spent_s
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
                done = proving <= share * (proving + planning + self.effort.spent_s - between)
                if done or self.effort.over:
                    break
                self.plans.step()
                self.note("local search")
            planning += self.effort.spent_s - between
            if nodes is None and self.plans.failures > MOST_FAILURES:
                stopped = "failures"
                break
        if stopped == "work" and self.effort.late:
            stopped = "time"
        return self.outcome(stopped)

    def over(self) -> bool:
        """Return whether to stop.

        Until a plan meets the deadline or budget the search continues up to the clock's limit or as many counted seconds.
        """
        if math.isinf(self.plans.value) and self.effort.left_s <= 0:
            self.effort.most_s = min(self.effort.spent_s + MORE * self.time_limit_s, self.last_counted_s)
        return self.effort.over

    def first_plans(self) -> None:
        """Try sequences and fills at makespans around that of the reference, before anything is proved."""
        near = self.plans.split.makespan_s
        self.plans.fill_split()
        self.note("first fill")
        for share in FIRST_SHARES[: 1 if self.hurry else 3]:
            if self.effort.spent_s > FIRST_WORK * self.effort.most_s:
                break
            makespan_s = max(self.work.shortest_makespan_s, min(near * share, self.deadline_s))
            most_cost = self.plans.worth.most_cost(self.plans.value, self.work.shortest_makespan_s)
            found = self.sequences.at(makespan_s, most_cost, 0.0)
            if found.actors:
                self.plans.fill([(int(self.sequences.offer_of[s]), q) for s, q in found.actors], makespan_s)
            self.note("first fill")
        first = self.work.shortest_makespan_s
        top = min(self.work.longest_makespan_s, self.deadline_s)
        grid, makespan_s = [], first
        while first > 0 and makespan_s < min(top, 4 * max(near, first)):
            makespan_s *= FIRST_RATIO**2 if self.hurry else FIRST_RATIO
            grid.append(makespan_s)
        if top < first * (1 - 1e-12):
            return
        self.waiting = self.search.start(grid, self.plans.value)
        self.started = True
        self.note("sequences")

    def round(self, node: SearchInterval) -> None:
        """Fill the actors that the relaxations of a node propose."""
        if node.bound >= self.plans.value or self.effort.over:
            return
        if node.actors:
            self.plans.fill([(int(self.sequences.offer_of[s]), q) for s, q in node.actors], node.high_s)
        if node.relaxed is not None and self.relaxation is not None:
            edges = self.relaxation.classes.edges.tolist()
            self.plans.fill(openings(node.relaxed.actors.tolist(), edges), node.high_s)

    def outcome(self, stopped: str) -> MixedOutcome:
        """Return the result, or raise if no plan meets the limits."""
        if math.isinf(self.plans.value):
            self.refuse()
        proven = self.plans.value - self.bound <= PROVEN_GAP * max(abs(self.plans.value), 1e-12)
        notes = {"stopped_by": stopped}
        plan = replace(
            self.plans.plan, policy="solver", value=self.plans.value, lower_bound=self.bound,
            status="optimal" if proven else "stopped" if stopped == "time" else "feasible", history=tuple(self.history.lines),
            solve_s=time.perf_counter() - self.began, reference=self.plans.reference, notes=notes,
        )  # fmt: skip
        others = [replace(other, notes=notes) for other in self.plans.others(self.most_candidates, self.last_at)]
        return MixedOutcome(plan, (plan, *others, self.plans.split))

    def refuse(self) -> None:
        """Raise an error naming the limit that no plan found meets; without a limit, that so many actors do not fit."""
        worth, problem = self.plans.worth, self.problem
        if not worth.objective.limited:
            most = len(self.work) if problem.max_actors is None else problem.max_actors
            raise PlanningError(no_room(self.work, problem.needed_actors, most))
        fastest_s, cheapest = worth.phases.step_time_s(self.plans.fastest_s), worth.step(*self.plans.cheapest)[1]
        best = cheapest if worth.objective.deadline_s is None else fastest_s
        room = room_to_try(self.problem, self.time_limit_s, self.began, search_mixed) if self.explains else ""
        blame_s = BLAME * self.time_limit_s
        effort = WorkBudget(blame_s, problem.stop_after(time.perf_counter(), blame_s))
        raise PlanningError(infeasibility_reason(self.problem, [self.work], worth, best, effort, room))

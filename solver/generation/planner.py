"""Plans a generation step: how many actors of which offer start, and which responses each generates.

One planner serves one kind of actors and several, single lengths and scenarios, with and without limits. It calls the parts in
order:

1. the right-sized random split, and with scenarios responses assigned to a few numbers of actors (``round-robin``);
2. cut, price, choose, with cuts that come closer around the chosen ones (``columns``: GLOP and SCIP);
3. fill the chosen actors item by item (``fill``);
4. repairs, timed exactly: ``repack``, ``level``, ``few items`` (CP-SAT), ``exchange``;
5. a lower bound over sequences of whole actors (``bound``).

Work is counted by construction: grids, rounds and nodes are constants. So the same inputs give the same plan on every machine.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, replace

from solver.bounds.plans import PlanBound
from solver.generation import few_items
from solver.generation.canonical_order import Canonical
from solver.generation.column_model import ColumnModel
from solver.generation.columns import Columns, Prices, closer_cuts, first_cuts
from solver.generation.fill import Filler, Opening, Share, openings_of
from solver.generation.infeasible import MissedLimit, more_room, too_long_together
from solver.generation.makespan_search import SLACK, searched
from solver.generation.plan_values import Actors, PlanValues, ValuedPlan
from solver.generation.random_split import check_seed, reference_of, sized_split
from solver.generation.repairs import ItemsOf, exchanged, levelled, refilling, repacked
from solver.model.errors import PlanningError, check_flags
from solver.model.node_placement import place
from solver.model.objective import Objective
from solver.model.plan import HistoryEntry, Plan
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import IntArray
from solver.timing.items import Items

RANDOM, ROUND_ROBIN, COLUMNS, FILL = "random split", "round-robin", "columns", "fill"
REPACK, LEVELLED, FEW_ITEMS, EXCHANGE, BOUND = "repack", "level", "few items", "exchange", "bound"

SHARED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # numbers of actors that may share a column
LONGEST, LONGEST_FREE = 2.0, 8.0  # latest makespan, in those of the random split; where time counts little or a limit binds
LITTLE_TIME = 0.25  # a weight of time below which it counts little
HELD = 3  # times as many makespans where actors hold their GPUs to the end: least cost jumps from number to number
LESS = 3  # actors less than chosen with which filling is tried
EVEN = (-1, 0, 1, 2)  # actors more than the random split has, over which everything is shared evenly
REPACKS, LEVELS = 3, 4  # rounds of repairs
MISSED, NEAR_MISSES = 0.04, 3  # part of the limit by which a plan may miss it, and how many such plans are exchanged
LEAST_SCENARIOS = 4  # that are divided into halves
PROVEN_GAP = 1e-6  # relative, at which the bound proves a plan


@dataclass(frozen=True)
class Effort:
    """How much work planning does.

    Attributes:
        cells, cells_per_actor, most_cells: into which items are cut at first. zooms: rounds with closer cuts. grid,
            closer_grid: makespans in the first, and in each further one.
        filled: choices that are filled, and packings that are timed. large: responses above which only the best choice is
            filled, by as many actors, and nothing is exchanged. exchanges: tries.
    """

    cells: int = 48
    cells_per_actor: int = 8
    most_cells: int = 320
    zooms: int = 3
    grid: int = 9
    closer_grid: int = 5
    filled: int = 3
    large: int = 20_000
    exchanges: int = 4000


FULL = Effort()
QUICK = Effort(cells=24, cells_per_actor=2, most_cells=80, zooms=2, grid=5, closer_grid=3, filled=1, exchanges=0)


def plan(problem: PlanningProblem, *, quick: bool = False, seed: int = 0) -> Plan:
    """Return a generation plan with a lower bound: how many actors of which kind and size start, and the responses of each.

    OR-Tools chooses the plan: GLOP and SCIP choose among candidate actors (columns) with times from the timing model, and
    CP-SAT assigns single responses if there are few (mathematics: ``docs/planning.md``). The same inputs give the same plan on
    every machine, and in whatever order the workload lists prompts and responses.

    Args:
        problem: the step to plan, with one or several kinds of actors, and predicted lengths or scenarios. With scenarios,
            value, bound, times, costs and reference are means over them.
        quick: less work, for dashboards: a coarser search and a looser bound.
        seed: seed of the random split that is the reference.

    Returns:
        The best plan found. It is never worse than the right-sized random split on the problem's lengths or scenarios. It has
        ``value`` relative to that split, ``lower_bound``, ``gap``, ``status`` (``optimal`` if the bound proves it, else
        ``feasible``) and ``history``; ``moved()`` is the improvement by each part of planning.

    Raises:
        PlanningError: the arguments are wrong, or no plan was found that meets the limits. The message names the value or the
            limit and by how much it is missed.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-5, max_batch=64, start_s=1.0)
        >>> workload = solver.Workload([100] * 8, [0, 1, 2, 3, 4, 5, 6, 7], [100, 200, 300, 400, 500, 600, 700, 2000])
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 8, 1), latency, solver.Objective(time_weight=0.3))
        >>> plan = solver.plan(problem)
        >>> len(plan.actors), bool(plan.lower_bound <= plan.value)
        (1, True)
    """
    check_problem(problem)
    check_flags(quick=quick)
    check_seed(seed)
    began = time.perf_counter()
    canonical = Canonical.of(problem.workload)
    planner = Planner(replace(problem, workload=canonical.workload), QUICK if quick else FULL, seed, began)
    planner.run()
    if math.isinf(planner.best.value):
        raise PlanningError(planner.refusal(canonical.prompt))
    return canonical.with_caller_indices(planner.best_plan())


class Planner:
    """One planning run.

    Args:
        problem: with its workload in canonical order. seed: of the random split. began: ``perf_counter`` when planning began.

    Attributes:
        best: the best plan so far. seen: all plans that were timed. near: those that miss the limit by a little.
        prices, filler: of columns and of actors, whatever the objective. bound: lower bound on the value of every plan.
        history: what each part reached.
    """

    def __init__(self, problem: PlanningProblem, effort: Effort, seed: int, began: float) -> None:
        self.problem, self.effort, self.seed, self.began = problem.planning_model, effort, seed, began
        self.items = Items.of(replace(self.problem, workload=self.problem.workload.points))
        self.large = len(self.items.order) > effort.large
        self.values, self.prices = PlanValues(self.problem, self.items), Prices(self.problem, self.items)
        self.filler, self.of = Filler(self.prices), ItemsOf(self.values)
        self._begin()

    def weighed(self, time_weight: float) -> Planner:
        """Return a planner of the same step for another time weight, without a limit. What this one has priced and timed is not
        priced and timed again."""
        other = copy.copy(self)
        other.problem = replace(self.problem, objective=Objective(time_weight, cost=self.problem.objective.cost))
        other.values = self.values.of_problem(other.problem)
        other._begin()
        return other

    def _begin(self) -> None:
        """Begin with the right-sized random split, which values are relative to."""
        self.history: list[HistoryEntry] = []
        self.near: list[ValuedPlan] = []
        self.seen: list[ValuedPlan] = []
        self.bound = 0.0
        split = sized_split(self.problem, seed=self.seed)
        self.reference = reference_of(self.problem, split)
        self.values.set_reference(self.reference.norms(self.problem.objective.cost))
        self.goal = self.values.goal
        self.best = self.split = self.values.with_times(split.actors, split.busy_s)
        self.seen.append(self.split)
        self.note(RANDOM)

    @property
    def proven(self) -> bool:
        """Return whether the bound proves the best plan."""
        value = self.best.value
        return math.isfinite(value) and value - self.bound <= PROVEN_GAP * max(abs(value), 1e-12)

    def note(self, part: str) -> None:
        """Record that a part has run, and what it reached; once where it moved nothing."""
        if any(line.solver == part for line in self.history):
            last = self.history[-1]
            if (last.value, last.lower_bound) == (self.best.value, self.bound):
                return
        self.history.append(HistoryEntry(part, time.perf_counter() - self.began, self.best.value, self.bound))

    def offer(self, actors: Actors) -> bool:
        """Keep a plan if it is better than the best so far, and return whether it is."""
        return self._keep(self.values.of(actors))

    def _keep(self, plan: ValuedPlan) -> bool:
        if not self._fits(plan):
            return False
        self.seen.append(plan)
        if plan.rank < self.best.rank and self._stands(plan):
            self.best = plan
            return True
        limit = self.goal.objective.limit
        if limit is not None and 0 < plan.rank[1] <= MISSED * limit and not plan.rank[0]:
            self.near.append(plan)
        return False

    def _fits(self, plan: ValuedPlan) -> bool:
        """Return whether the actors fit into the nodes of their pools, which sizes that do not divide one another may not."""
        offers = self.problem.offers
        sizes = [(offers[r].pool, offers[r].gpus) for r, _ in plan.actors]
        return not self.problem.several_kinds or place(self.problem.cluster.pools, sizes) is not None

    def _stands(self, plan: ValuedPlan) -> bool:
        """Return whether a plan is better than the best so far not only for the worst scenarios of all, but also for those of
        each half. Few scenarios are the worst ones, and a plan that fits these few is no better on others."""
        objective, best = self.goal.objective, self.best
        if (
            objective.limited
            or objective.cvar_alpha == 1.0
            or self.values.scenarios < LEAST_SCENARIOS
            or math.isinf(best.value)
        ):
            return True

        def value(one: ValuedPlan, half: int) -> float:
            return objective.value_over(*self.goal.step(one.makespan_s[half::2], one.cost[half::2]), self.goal.norms)

        return all(value(plan, half) < value(best, half) for half in (0, 1))

    def run(self) -> None:
        """Search for the best plan, and bound the value of every plan."""
        self.search()
        if math.isfinite(self.best.value):
            self.bound = self._lower_bound()
            self.note(BOUND)

    def search(self) -> None:
        """Search for the best plan."""
        self.share_evenly()
        self.choose()
        self.repair()

    def share_evenly(self) -> None:
        """Share everything evenly among a few numbers of actors: plans that know nothing of single lengths."""
        problem = self.problem
        if problem.workload.scenarios is None or problem.several_kinds:
            return
        most = min(problem.offers[0].max_actors, len(self.items), problem.max_actors or len(self.items))
        for n in sorted({len(self.split.actors) + more for more in EVEN}):
            if problem.needed_actors <= n <= most and self.items.allowed.all():
                self.offer(self.filler.actors([Share(0, n, 0, len(self.items))]))
        self.note(ROUND_ROBIN)

    def choose(self) -> None:
        """Cut, price and choose; then again with cuts that are closer around the chosen ones; fill what is chosen."""
        items, goal, problem, effort = self.items, self.goal, self.problem, self.effort
        objective = goal.objective
        limit_s = problem.generation_within_s
        free = objective.limited or objective.time_weight < LITTLE_TIME
        high_s = min((LONGEST_FREE if free else LONGEST) * float(self.split.makespan_s.mean()), SLACK * limit_s)
        low_s = items.shortest_makespan_s
        actors = max(len(self.split.actors), 4)
        cuts = first_cuts(items, min(effort.most_cells, max(effort.cells, effort.cells_per_actor * actors)))
        shared: list[int] = list(SHARED)
        fills = (1 if self.large else effort.filled) * (3 if objective.limited else 1)
        for zoom in range(effort.zooms):
            columns = self.prices.of_offers(cuts, shared, high_s)
            if not len(columns):
                break
            model = ColumnModel(columns, len(cuts) - 1, items, problem, goal)
            low_s = max(low_s, float(model.risk_s.min()))
            grid = effort.closer_grid if zoom else effort.grid
            choices = searched(model, low_s, high_s, grid if goal.held_after_s is None else HELD * grid)
            for choice in choices[:fills]:
                self._fill(columns, choice.columns, cuts, limit_s)
            if not choices or len(cuts) - 1 == len(items):
                break
            best = choices[0]
            low_s, high_s = 0.95 * best.makespan_s, min(1.04 * best.makespan_s, limit_s)
            chosen = [int(cuts[columns.last[c]]) for c in best.columns]
            shared = sorted({*columns.actors[best.columns].tolist(), 1})
            cuts = closer_cuts(cuts, chosen, effort.cells)

    def _fill(self, columns: Columns, chosen: IntArray, cuts: IntArray, limit_s: float) -> None:
        """Offer the plan of the chosen columns, as it is and filled item by item, also with an actor less."""
        self.offer(
            self.filler.actors(
                [
                    Share(*share)
                    for share in zip(
                        columns.offer[chosen].tolist(), columns.actors[chosen].tolist(), cuts[columns.first[chosen]].tolist(),
                        cuts[columns.last[chosen]].tolist(), strict=True,
                    )
                ]
            )
        )  # fmt: skip
        self.note(COLUMNS)
        together = openings_of(columns, chosen)
        single = [Opening(r, 1, warm) for r, n, warm in together for _ in range(n)]
        top = float(columns.time_s[chosen].mean(axis=1).max())
        low = self.items.shortest_makespan_s
        for openings in [single] if self.large or len(single) == len(together) else [together, single]:
            for less in range(1 if self.large else min(LESS, len(openings))):
                fewer = openings[: len(openings) - less]
                if math.isfinite(limit_s) and (late := self.filler.at(fewer, limit_s)) is not None:
                    self.offer(self.filler.actors(late))
                filled = self.filler.least(fewer, low, top)
                if filled is None or (not self.offer(self.filler.actors(filled.shares)) and less):
                    break
        self.note(FILL)

    def repair(self) -> None:
        """Repack, level, assign few items by CP-SAT, exchange; keep what is better."""
        if any(refilling(self.values, self.best)):
            for _ in range(REPACKS):
                if not self._repack():
                    break
            self.note(REPACK)
        for _ in range(LEVELS):
            actors = levelled(self.values, self.best, self.of)
            if actors is None or not self.offer(actors):
                break
        self.note(LEVELLED)
        self._assign_few()
        # over scenarios single moves would fit their noise; near a limit they decide whether it is kept
        moves = self.problem.workload.scenarios is None or self.goal.objective.limited
        if self.effort.exchanges and moves and not self.large and not self.proven:
            near = sorted(self.near, key=lambda plan: (plan.rank[2], plan.rank[1]))[:NEAR_MISSES]
            for plan in [self.best, *(plan for plan in near if plan.rank[2] < self.best.rank[2])]:
                self._keep(exchanged(self.values, plan, self.of, self.effort.exchanges))
            self.note(EXCHANGE)

    def _repack(self) -> bool:
        """Offer repacked plans, near a limit also with their actors levelled; return whether one is better."""
        better = False
        for actors in repacked(self.values, self.best, self.of, 1 if self.large else self.effort.filled):
            plan = self.values.of(actors)
            better |= self._keep(plan)
            if self.goal.objective.limited:
                for _ in range(LEVELS):
                    even = levelled(self.values, plan, self.of)
                    if even is None:
                        break
                    plan = self.values.of(even)
                    better |= self._keep(plan)
        return better

    def _assign_few(self) -> None:
        counts = few_items.actor_counts(self.items, self.best)
        if counts is None or self.proven:  # what takes no time is proven, and its value has no line
            return
        if self.effort is QUICK and math.isfinite(self.best.value):
            return  # a quick plan needs it only where none keeps the limit yet
        model = few_items.FewItems(self.items, self.goal, counts[0], self.best, self.of)
        chosen, bound = model.solve()
        if counts[1] and self.problem.workload.scenarios is None:
            self.bound = max(self.bound, min(bound, self.best.value))
        if chosen is not None:
            self.offer([(r, self.of.responses(taken)) for r, taken in chosen])
        self.note(FEW_ITEMS)

    def _lower_bound(self) -> float:
        best = self.best
        bound = PlanBound(self.problem, quick=self.effort is QUICK)
        return max(self.bound, bound.value_near(best.value, self.goal.norms, best.makespan_s))

    def best_plan(self) -> Plan:
        """Return the best plan."""
        best = self.best
        made = self.values.assembled(best)
        return replace(
            made, reference=self.reference, value=best.value, lower_bound=self.bound,
            status="optimal" if self.proven else "feasible", history=tuple(self.history),
            solve_s=time.perf_counter() - self.began,
        )  # fmt: skip

    def refusal(self, prompt_numbers: IntArray) -> str:
        """Return the error message: which limit no plan found meets, and by how much it is missed.

        Args:
            prompt_numbers: (P,) the caller's numbers of the prompts.
        """
        objective, best = self.problem.objective, self.best
        time_s, cost = self.goal.step(best.makespan_s, best.cost)
        nearest = objective.risk(time_s if objective.deadline_s is not None else cost)
        where = too_long_together(self.problem, prompt_numbers)
        missed = MissedLimit.of(self.problem, nearest, where=where)

        def tried(roomier: PlanningProblem) -> None:
            planner = Planner(roomier, QUICK, self.seed, time.perf_counter())
            planner.search()
            if math.isinf(planner.best.value):
                raise PlanningError("no plan meets the limit")

        return missed.message(more_room(self.problem, tried, impossible=missed.impossible))

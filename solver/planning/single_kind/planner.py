"""Plans actors of one kind and size: a search over makespans, then an OR-Tools model of few actors.

This file calls the parts in order. The mathematics is in ``relaxation``, ``rounding``, ``slot_waves``, ``fill``,
``makespan_search``, ``limit_search`` and ``class_model``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.objective import Objective
from solver.model.plan import ActorPlan, Plan, Reference
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray, Workload
from solver.planning.actor_count import EXACT_RESPONSES
from solver.planning.admission_order import admission_orders, fastest_orders
from solver.planning.candidates import Candidate, Candidates
from solver.planning.planner import Planner
from solver.planning.random_split import sized_split
from solver.planning.reference import reference_of
from solver.planning.search_options import SearchOptions
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.late_opening import LateOpening, coarse_bounds
from solver.planning.single_kind.limit_search import MOST_PER_SEARCH, MOVES_PER_S, NearLimit
from solver.planning.single_kind.makespan_search import MakespanSearch
from solver.planning.single_kind.rounding import shortest_next_fit_s
from solver.planning.single_kind.slot_search import SlotSearch
from solver.planning.work_budget import WorkBudget
from solver.timing.build_plan import assemble
from solver.timing.evaluate import actor_busy_s, admission_of
from solver.timing.group_times import GroupTimes, KnownTimes, Split
from solver.timing.step_cost import Pricing

SEARCH, EXCHANGES, MODEL = "makespan search", "exchanges", "CP-SAT"  # parts, as the history names them
MODEL_EXCHANGES = "exchanges after CP-SAT"
SMALLEST_MODEL_S = 0.2  # a model alone takes 50 ms: with a shorter time limit none is built
LEAST_MODEL_S = 0.05  # what has to be left of the time limit for a model
MODEL_SHARE = 0.2  # of the time limit, in CP-SAT's deterministic seconds, which last up to three seconds each
QUICK_GAP, GOOD_GAP = 5e-3, 1e-4  # where the search stops without and with a model
WIDE_GAP = 0.02  # where filling up leftovers at one makespan, and exchanges, may help without a model
QUICK_WIDTH = 3e-3  # of an interval of makespans in which no more plans are looked for without a model
MOST_FILLED_AROUND = 3000  # items that are few enough to fill up leftovers at many makespans
FILLED_AROUND = 15  # makespans on either side of the best at which leftovers are filled with a model
HALVINGS = 24  # of intervals of makespans, for the bound of a scenario
LIMIT_WEIGHTS = (0.0, 0.3, 0.7, 0.95)  # of time, in the bound over scenarios under a limit
ORDERS = 6  # of admission that are timed over the scenarios, about
SEARCHED, PRICED = 0.45, 0.75  # of the time, over scenarios: when the search and the pricing of candidates end at the latest
EXCHANGED = 0.2  # of the time limit, in counted seconds, for exchanges
ROOM_S = 0.15  # for trying whether more slots or memory would be enough, each time and in all where the time limit is over
LATEST_BLAME = 1.1  # of the time limit, by when a refusal looks for that
SIZED_LENGTHS = 1 << 15  # enough to choose the number of actors of the split of single responses


class SingleKindPlanner(Planner):
    """Plans one step for actors of one kind and size."""

    limit_weights, most_halvings = LIMIT_WEIGHTS, HALVINGS

    def __init__(self, problem: PlanningProblem, options: SearchOptions, began: float) -> None:
        super().__init__(problem, options, began)
        self.workload, self.objective = self.problem.workload, self.problem.objective
        self.cluster, self.latency = self.problem.one_kind
        self.time_limit_s, self.uncertain = options.time_limit_s, self.workload.scenarios is not None
        self.stop_at = options.stop_at(began, self.time_limit_s)
        self.points, self.known = self.workload.points, KnownTimes()  # single lengths, and times of groups for them
        self.work = self._sorted(self.points)

    def search(self) -> None:
        """Search plans for the predicted lengths, and price the best of them."""
        points = self.points
        random, busy_s = self._random(self.workload, spread=False)
        pricing = Pricing.of(self.problem)
        self.reference = self._reference(pricing, busy_s)
        self.goal = self.pricing = pricing = replace(pricing, norms=self.reference.norms(self.objective.cost))
        search_until, self.finishing_s = self.stop_at, 0.0
        if self.uncertain:
            self.finishing_s = self._finishing_s(random, points)
            self.stop_at -= self.finishing_s
            search_until = self._share(SEARCHED)
        allowed = busy_s.shape[1] >= self.problem.min_actors
        self.best, self.value = random, pricing.value_of(busy_s) if allowed else math.inf
        self.keep("random split")

        busy_of = self._busy_of(points, self.work)
        known = self.value if not self.uncertain or not allowed else pricing.value_of(busy_of(random, "exact"))
        search = MakespanSearch(self.work, pricing, busy_of, self._exact, WorkBudget(stop_at=search_until), known)
        self.makespan_search = search
        in_slots = self.in_slots = SlotSearch(search, points, self._times_of(points), self.problem.share_prefill)
        cause = SEARCH
        self.exhausted = not self.uncertain and in_slots.every_grouping()
        quick = search.best if self.exhausted else self._search(in_slots)
        improved = None  # the best split where values were estimates: levelled and in the fastest order
        if not (self.uncertain or self.exhausted):
            ordered = in_slots.order(search.best if self._exact else in_slots.level_best())
            improved = None if self._exact else ordered
            if self._exact:
                self.history.note(SEARCH, min(self.value, search.best_value), search.lower_bound)
            if search.lower_bound < search.best_value * (1 - (GOOD_GAP if self.time_limit_s >= SMALLEST_MODEL_S else WIDE_GAP)):
                in_slots.exchange(random, EXCHANGED * self.time_limit_s)
                cause = EXCHANGES
        self.stopped = search.work_budget.late
        self.bound = 0.0 if self.uncertain else search.lower_bound

        self.random = random, pricing.step_of(busy_s)
        self.ranked = [split for _, split in sorted(search.per_count.values(), key=lambda pair: pair[0])]
        price_until = self._share(PRICED)
        self.busy_over = self._busy_of(self.workload, self.work)
        self.candidates = Candidates(
            self.objective, pricing.norms, lambda split: (split, *pricing.step_of(self.busy_over(split))),
            WorkBudget(stop_at=price_until if self.uncertain else math.inf), self.finishing_s,
        )  # fmt: skip
        if math.isfinite(self.value):
            self.candidates.note(random, *self.random[1])
        leading = self._leading(quick, price_until)
        self.keep(cause, self.candidates.best_of(leading if improved is None else [improved, *leading]))

    def price_over_scenarios(self) -> None:
        """Price further plans over the scenarios: orders of admission, and plans near a limit."""
        candidates, price_until = self.candidates, self.candidates.work_budget.stop_at
        orders_until = price_until - ORDERS * self.finishing_s
        if self.work.refills and math.isfinite(self.value) and time.perf_counter() < orders_until:
            orders = admission_orders(self.best, self.workload.points, self.work.slots, self.problem.share_prefill)
            split, busy_s = fastest_orders(self.best, orders, self.busy_over)
            self.keep("admission orders", candidates.note(split, *self.pricing.step_of(busy_s)))
        if self.objective.limited:
            self._near_limit().add_candidates()
            self.keep("near the limit", candidates.best if candidates.evaluated else None)
        self.stopped |= candidates.work_budget.late
        candidates.work_budget.stop_at = self.stop_at
        self.scenario_budget = WorkBudget(stop_at=self.stop_at)

    def improve(self) -> None:
        """Ask the OR-Tools model in the classes of problems where it moves value or bound (``class_model.is_asked``).

        It knows single lengths. Over scenarios its plan is one more candidate, and its bound says nothing.
        """
        search = self.makespan_search
        if self.exhausted or self.time_limit_s < SMALLEST_MODEL_S or math.isinf(search.lower_bound):
            return
        from solver.planning.single_kind.class_model import ClassModel, actors_of_model, groups_of_items, is_asked

        warm = groups_of_items(self.work, search.best or self.random[0])
        gap = 1 - search.lower_bound / search.best_value if search.best_value else 0.0  # 1 where no plan meets the limit
        if not is_asked(self.work, self.pricing, len(warm), gap):
            return
        if self.stop_at - time.perf_counter() < LEAST_MODEL_S:
            self.stopped = True
            return
        actors = actors_of_model(self.work, len(warm))
        outcome = ClassModel(self.work, self.pricing, warm, actors).solve(MODEL_SHARE * self.time_limit_s, self.stop_at)
        self.stopped |= outcome.stopped
        if outcome.lower_bound > self.bound and not self.uncertain:
            self.bound = max(self.bound, min(outcome.lower_bound, search.bound_beyond(actors, outcome.lower_bound)))
        if outcome.groups is None:
            self.keep(MODEL)
            return
        split, _ = self.in_slots.fastest(search.split_of(outcome.groups))
        self.keep(MODEL, self.candidates.evaluate(split))
        if self.work.refills and not self.uncertain:  # the model knows no waves, so its plan is another start for exchanges
            self.keep(
                MODEL_EXCHANGES, self.candidates.evaluate(self.in_slots.exchange_in(split, EXCHANGED * self.time_limit_s))
            )
            self.stopped |= search.work_budget.late

    def floors(self) -> tuple[FloatArray, FloatArray]:
        """Return the coarse bounds of all scenarios."""
        makespan_s, held_s = coarse_bounds(self.problem)
        return makespan_s, self.pricing.actor_rate * held_s

    def bound_of(self, case: Workload, work_budget: WorkBudget) -> LateOpening:
        """Return the late-opening bound for one set of lengths."""
        return LateOpening(self._sorted(case), Pricing.of(self.problem), work_budget=work_budget)

    def best_plan(self) -> Plan:
        """Return the best split as a plan."""
        return self._assembled(self.best, self.workload)

    def keep(self, part: str, candidate: Candidate | None = None) -> None:
        """Take ``candidate`` if it is better than the best plan so far; the history says that this part has run."""
        super().keep(part, candidate)
        if self.history.lines[-1].solver != part:
            self.history.add(part, self.value, self.bound)

    def nearest(self) -> tuple[float, str]:
        """Return the least time (cost) of the candidates, and of all other splits where they are few."""
        self.candidates.note(self.random[0], *self.random[1])
        for split in [] if self.uncertain else self.ranked:
            self.candidates.evaluate(split)
        if self.objective.deadline_s is None:
            return min(self.objective.risk(c.cost) for c in self.candidates.evaluated), ""
        least_s = min(self.objective.risk(c.time_s) for c in self.candidates.evaluated)
        if len(self.workload.cases()) == 1:
            least_s = min(least_s, self.problem.phases.step_time_s(shortest_next_fit_s(self.work)))
        return least_s, f" on {counted(self.work.max_actors, 'actor')}"

    def refusal_limits(self) -> tuple[float, float, float]:
        """Return no limit of the bounds, which take milliseconds, and limits of the searches for what would be enough."""
        now_s = time.perf_counter() - self.began
        return math.inf, min(self.time_limit_s, ROOM_S), max(LATEST_BLAME * self.time_limit_s, now_s + ROOM_S)

    @property
    def _exact(self) -> bool:
        """Return whether every plan is timed exactly: under limits, and where there are few responses."""
        return self.objective.limited or self.problem.keep_together or len(self.workload) <= EXACT_RESPONSES

    def _share(self, share: float) -> float:
        """Return the clock time after this share of the time."""
        return self.began + share * (self.stop_at - self.began)

    def _search(self, in_slots: SlotSearch) -> Split | None:
        """Search for single lengths; return the best split before the longer filling of leftovers."""
        search = in_slots.search
        few = len(search.work) <= MOST_FILLED_AROUND
        if self.problem.keep_together:
            in_slots.cut_prompts()
        search.run(QUICK_GAP, 40, filling=self.problem.keep_together, width=QUICK_WIDTH)
        wide = search.lower_bound < search.best_value * (1 - WIDE_GAP)
        if few and wide and not math.isinf(search.lower_bound):
            search.fill_best(0)
        quick = search.best
        if self.time_limit_s >= SMALLEST_MODEL_S:
            search.run(GOOD_GAP, 40, filling=True)
            if search.lower_bound < search.best_value * (1 - QUICK_GAP) and few:
                search.fill_best(FILLED_AROUND)
        return quick

    def _leading(self, quick: Split | None, until: float) -> Iterator[Split]:
        """Yield the splits to price: the best of the search; over scenarios also the best for other numbers of
        actors, and single responses assigned round-robin."""
        ranked = self.ranked
        yield from ranked[:1]
        if self.workload.scenarios is not None:
            if not self.problem.keep_together and time.perf_counter() < until:
                every = math.ceil(self.workload.scenarios.size / SIZED_LENGTHS)
                yield self._random(self.workload.with_response_tokens(self.workload.scenarios[::every]), spread=True)[0]
            yield from ranked[1:MOST_PER_SEARCH]
        if not self._exact and quick is not None and quick is not ranked[0] and time.perf_counter() < until:
            yield quick  # values were estimates: what looks best may not be

    def _near_limit(self) -> NearLimit:
        """Return the search for plans that meet the limit over the scenarios."""

        def again(points: Workload, objective: Objective) -> MakespanSearch:
            work = self._sorted(points)
            goal = replace(self.pricing, objective=objective)
            search = MakespanSearch(work, goal, self._busy_of(points, work))
            search.work_budget.stop_at = self.candidates.work_budget.stop_at
            search.run(QUICK_GAP, 20, filling=self.problem.keep_together, width=QUICK_WIDTH)
            return search

        moves = MOVES_PER_S * self.time_limit_s if self.options.deterministic else math.inf
        return NearLimit(self.candidates, self.pricing, self.busy_over, again, self.work, self.workload, moves)

    def _times_of(self, workload: Workload) -> Callable[[IntArray], GroupTimes]:
        """Return a function: the times of groups of ``workload`` in an order of the responses."""
        rule = admission_of(self.latency, None, self.problem.admission)
        known = self.known if workload is self.points else None
        return lambda order: GroupTimes.of(workload, self.latency, rule, order, self.problem.share_prefill, known)

    def _busy_of(self, workload: Workload, work: SortedWork) -> Callable[..., FloatArray]:
        """Return a function: the (S, N) seconds of the groups of a split, ``exact`` or as bounds. It keeps the sums in sorted
        order, which most splits use."""
        times = self._times_of(workload)
        kept: list[GroupTimes] = []  # made where it is needed

        def busy_of(split: Split, how: str = "exact") -> FloatArray:
            if split.order is not work.order:
                return times(split.order).busy_s(split.edges, how)
            if not kept:
                kept.append(times(work.order))
            return kept[0].busy_s(split.edges, how)

        return busy_of

    def _finishing_s(self, split: Split, points: Workload) -> float:
        """Return an estimate of the seconds needed to time the chosen plan in every scenario, from its time for one
        scenario."""
        began = time.perf_counter()
        self._assembled(split, points)
        assert self.workload.scenarios is not None
        return (time.perf_counter() - began) * len(self.workload.scenarios)

    def _assembled(self, split: Split, workload: Workload) -> Plan:
        def seconds(case: Workload, actor: ActorPlan, latency: LatencyModel, admission: Admission) -> float:
            busy_s = self.known.get(np.array(actor.responses, dtype=np.int64)) if workload is self.points else None
            return actor_busy_s(case, actor, latency, admission) if busy_s is None else busy_s

        return assemble("solver", split.groups(), replace(self.problem, workload=workload), seconds=seconds)

    def _random(self, workload: Workload, spread: bool) -> tuple[Split, FloatArray]:
        """Return the right-sized random split of prompts, or of single responses, with its (S, N) busy seconds."""
        return sized_split(replace(self.problem, workload=workload), seed=self.options.seed, spread=spread)

    def _sorted(self, workload: Workload) -> SortedWork:
        return SortedWork.of_problem(replace(self.problem, workload=workload))

    def _reference(self, pricing: Pricing, busy_s: FloatArray) -> Reference:
        """Return the mean step under the random split."""
        makespan_s, held_s = (float(x.mean()) for x in pricing.generation(busy_s))
        gpu_s = self.cluster.gpus_per_actor * held_s
        return reference_of(self.problem, busy_s.shape[1], makespan_s, gpu_s, gpu_s * self.cluster.usd_per_gpu_s)

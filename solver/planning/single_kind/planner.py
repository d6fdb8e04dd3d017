"""Plans actors of one kind and size: a search over makespans, then an OR-Tools model hinted with the best plan found.

This file calls the parts in order. The mathematics is in ``relaxation``, ``rounding``, ``slot_waves``, ``fill``,
``makespan_search``, ``scenarios``, ``limit_search`` and ``cpsat``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from solver.model.cluster import Cluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.plan import HistoryEntry, Plan, Reference
from solver.model.workload import FloatArray, Workload
from solver.planning.actor_count import EXACT_RESPONSES
from solver.planning.deadline import stop_after
from solver.planning.random_split import sized_split
from solver.planning.single_kind.infeasible import limit_missed, room_of
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.limit_search import MOST_PER_SEARCH, MOVES_PER_S, NearLimit
from solver.planning.single_kind.makespan_search import MakespanSearch
from solver.planning.single_kind.scenarios import Candidate, Candidates, scenario_bound
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes, Split
from solver.timing.step_cost import Pricing

SMALLEST_MODEL_S = 0.2  # a CP-SAT model alone takes 50 ms: below this time limit it is not worth building
QUICK_GAP, GOOD_GAP = 5e-3, 1e-4  # where the search stops without and with a model
WIDE_GAP = 0.02  # where filling up leftovers at one makespan may help without a model
QUICK_WIDTH = 3e-3  # of an interval of makespans in which no more plans are looked for without a model
MOST_FILLED_AROUND = 3000  # items that are few enough to fill up leftovers at many makespans
FILLED_AROUND = 15  # makespans on either side of the best at which leftovers are filled with a model
PROVEN_GAP = 1e-6
BUILD_SHARE, BUILD_S = 0.2, 2e-6  # of the time limit, and seconds per response, that have to be left for a model
SEARCHED, PRICED = 0.45, 0.75  # of the time, over scenarios: when the search and the pricing of candidates end at the latest
ROOM_S = 0.15  # for trying whether more slots or memory would be enough, each time and in all where the time limit is over
LATEST_BLAME = 1.1  # of the time limit, by when a refusal looks for that
SIZED_LENGTHS = 1 << 15  # enough to choose the number of actors of the split of single responses


@dataclass
class SingleKindPlanner:
    """Plans one step for actors of one kind and size; the fields are the arguments of ``plan_generation``."""

    workload: Workload
    cluster: Cluster
    latency: LatencyModel
    objective: Objective
    phases: NonGenerationPhases
    time_limit_s: float
    admission: str
    keep_together: bool
    share_prefill: bool
    min_actors: int
    max_actors: int
    release: str
    seed: int
    began: float
    explains: bool = True  # whether a refusal looks for what would be enough
    history: list[HistoryEntry] = field(default_factory=list)
    deterministic: bool = False

    def plan(self) -> Plan:
        """See ``plan_generation``."""
        stop_at = stop_after(self.began, self.time_limit_s, self.deterministic)
        with_model = self.time_limit_s >= SMALLEST_MODEL_S
        uncertain, points = self.workload.scenarios is not None, self.workload.points
        pricing = Pricing.of(self.cluster, self.latency, self.objective, self.phases, self.release)
        work = self._sorted(points)
        random, busy = self._random(self.workload, spread=False)
        reference = self._reference(pricing, busy)
        norms = reference.norms(self.objective.cost)
        search_until, finishing_s = stop_at, 0.0
        if uncertain:
            finishing_s = self._finishing_s(random, points)
            stop_at -= finishing_s
            search_until = self._share(SEARCHED, stop_at)
        allowed = busy.shape[1] >= self.min_actors
        best, value = random, pricing.value(busy, norms) if allowed else math.inf
        self._note("random split", value, 0.0)

        busy_of = self._busy_of_points(points, work)
        known = value if not uncertain or not allowed else pricing.value(busy_of(random, "exact"), norms)
        search = MakespanSearch(work, pricing, norms, busy_of, self._exact, known)
        quick = self._search(search, search_until)
        stopped = search.stopped
        bound = 0.0 if uncertain else search.lower_bound

        def keep(name: str, found: Candidate | None = None) -> None:
            """Take ``found`` if it beats the best candidate so far, and record it in the history."""
            nonlocal best, value, bound
            if found is not None and found.value < value:
                best, value = found.split, found.value
            bound = min(bound, value)
            self._note(name, value, bound)

        ranked = [split for _, split in sorted(search.per_count.values(), key=lambda pair: pair[0])]
        price_until = self._share(PRICED, stop_at)
        candidates = Candidates(pricing, norms, self._busy_of(work), price_until if uncertain else math.inf, finishing_s)
        if not math.isinf(value):
            candidates.note(random, busy)
        keep("makespan search", candidates.best_of(self._leading(ranked, quick, price_until)))
        if uncertain:
            if self.objective.limited:
                self._near_limit(candidates, search).look()
                keep("near the limit", min(candidates.found, key=lambda c: c.value, default=None))
            stopped |= candidates.stopped
            if not math.isinf(value):
                coarse = self.latency, self.max_actors
                bound, coarser = scenario_bound(self.workload, self._sorted, coarse, pricing, norms, stop_at)
                stopped |= coarser
                keep("bounds of the scenarios")
            candidates.stop_at = stop_at
        missing = math.isinf(search.best_value) or search.best_value - search.lower_bound > PROVEN_GAP * search.best_value
        worth_a_model = with_model and missing and not math.isinf(search.lower_bound) and self.release == "done"
        needed_s = max(BUILD_SHARE * self.time_limit_s, BUILD_S * len(points))
        if worth_a_model and stop_at - time.perf_counter() < needed_s:
            stopped = True
        elif worth_a_model:
            from solver.planning.single_kind.cpsat import improve

            outcome = improve(work, search.best or random, pricing, norms, self.time_limit_s, stop_at)
            stopped |= outcome.stopped
            if outcome.lower_bound > bound and not uncertain:
                bound = max(bound, min(outcome.lower_bound, search.bound_beyond(outcome.actors, outcome.lower_bound)))
            keep("CP-SAT", None if outcome.split is None else candidates.look_at(outcome.split))
        if math.isinf(value):
            candidates.note(random, busy)
            self._refuse(candidates, [] if uncertain else ranked)
        proven = value - bound <= PROVEN_GAP * max(abs(value), 1e-12)
        return replace(
            self._assembled(best, self.workload),
            reference=reference,
            value=value,
            lower_bound=bound,
            status="optimal" if proven else "stopped" if stopped else "feasible",
            history=tuple(self.history),
            solve_s=time.perf_counter() - self.began,
        )

    @property
    def _exact(self) -> bool:
        """Return whether every plan is timed exactly: under limits, and where there are few responses."""
        return self.objective.limited or self.keep_together or len(self.workload) <= EXACT_RESPONSES

    def _share(self, share: float, stop_at: float) -> float:
        """Return the clock time after this share of the time until ``stop_at``."""
        return self.began + share * (stop_at - self.began)

    def _search(self, search: MakespanSearch, until: float) -> Split | None:
        """Search for single lengths; return the best split before the longer filling of leftovers."""
        few = len(search.work) <= MOST_FILLED_AROUND
        search.run(QUICK_GAP, until, 40, filling=self.keep_together, width=QUICK_WIDTH)
        wide = search.lower_bound < search.best_value * (1 - WIDE_GAP)
        if few and wide and not math.isinf(search.lower_bound):
            search.fill_best(0, until)
        quick = search.best
        if self.time_limit_s >= SMALLEST_MODEL_S:
            search.run(GOOD_GAP, until, 40, filling=True)
            if search.lower_bound < search.best_value * (1 - QUICK_GAP) and few:
                search.fill_best(FILLED_AROUND, until)
        return quick

    def _leading(self, ranked: list[Split], quick: Split | None, until: float) -> Iterator[Split]:
        """Yield the splits to price: the best of the search; over scenarios also the best for other numbers of
        actors, and single responses assigned round-robin."""
        yield from ranked[:1]
        if self.workload.scenarios is not None:
            if not self.keep_together and time.perf_counter() < until:
                every = math.ceil(self.workload.scenarios.size / SIZED_LENGTHS)
                yield self._random(self.workload.with_response_tokens(self.workload.scenarios[::every]), spread=True)[0]
            yield from ranked[1:MOST_PER_SEARCH]
        if not self._exact and quick is not None and quick is not ranked[0] and time.perf_counter() < until:
            yield quick  # values were estimates: what looks best may not be

    def _near_limit(self, candidates: Candidates, search: MakespanSearch) -> NearLimit:
        """Return the search for plans that meet the limit over the scenarios, with searches like ``search``."""

        def again(points: Workload, objective: Objective) -> MakespanSearch:
            work = self._sorted(points)
            goal = replace(search.pricing, objective=objective)
            found = MakespanSearch(work, goal, search.norms, self._busy_of_points(points, work))
            found.run(QUICK_GAP, candidates.stop_at, 20, filling=self.keep_together, width=QUICK_WIDTH)
            return found

        moves = MOVES_PER_S * self.time_limit_s if self.deterministic else math.inf
        return NearLimit(candidates, again, search.work, self.workload, moves)

    def _busy_of_points(self, points: Workload, work: SortedWork) -> Callable[[Split, str], FloatArray]:
        """Return a function: the (1, N) seconds of the groups of a split of single lengths."""
        rule = admission_of(self.latency, None, self.admission)
        on_sorted: list[GroupTimes] = []  # made where it is needed

        def busy_of(split: Split, how: str) -> FloatArray:
            if split.order is not work.order:
                on = GroupTimes.of(points, self.latency, rule, split.order, self.share_prefill)
            else:
                if not on_sorted:
                    on_sorted.append(GroupTimes.of(points, self.latency, rule, work.order, self.share_prefill))
                on = on_sorted[0]
            return on.busy_s(split.edges, how)

        return busy_of

    def _busy_of(self, work: SortedWork) -> Callable[[Split], FloatArray]:
        """Return a function: the (S, N) seconds of the groups of a split. It caches the sums in sorted order, which
        most splits use."""
        rule = admission_of(self.latency, None, self.admission)
        kept: list[GroupTimes] = []

        def busy_of(split: Split) -> FloatArray:
            if kept and split.order is work.order:
                return kept[0].busy_s(split.edges)
            on = GroupTimes.of(self.workload, self.latency, rule, split.order, self.share_prefill)
            if split.order is work.order:
                kept.append(on)
            return on.busy_s(split.edges)

        return busy_of

    def _finishing_s(self, split: Split, points: Workload) -> float:
        """Return an estimate of the seconds needed to time the chosen plan in every scenario, from its time for one
        scenario."""
        began = time.perf_counter()
        self._assembled(split, points)
        assert self.workload.scenarios is not None
        return (time.perf_counter() - began) * len(self.workload.scenarios)

    def _assembled(self, split: Split, workload: Workload) -> Plan:
        return assemble(
            "solver", split.groups(), workload, self.cluster, self.latency, self.phases, release=self.release,
            admission=self.admission, shares_prompts=self.share_prefill,
        )  # fmt: skip

    def _random(self, workload: Workload, spread: bool) -> tuple[Split, FloatArray]:
        """Return the right-sized random split of prompts, or of single responses, with its (S, N) busy seconds."""
        return sized_split(
            workload, self.cluster, self.latency, self.objective, self.phases, seed=self.seed, actors=None,
            min_actors=self.min_actors, max_actors=self.max_actors, release=self.release, admission=self.admission,
            share_prefill=self.share_prefill, spread=spread,
        )  # fmt: skip

    def _sorted(self, workload: Workload) -> SortedWork:
        return SortedWork.of(
            workload,
            self.latency,
            admission_of(self.latency, None, self.admission),
            max_actors=self.max_actors,
            min_actors=self.min_actors,
            prewarmed=self.cluster.prewarmed,
            keep_together=self.keep_together,
            share_prefill=self.share_prefill,
        )

    def _reference(self, pricing: Pricing, busy_s: FloatArray) -> Reference:
        """Return mean time, GPU-seconds and dollars of the whole step under the random split."""
        gpu_s = replace(pricing, actor_rate=self.cluster.gpus_per_actor, learner_rate=self.phases.learner_gpus)
        price = self.cluster.usd_per_gpu_s
        usd = replace(gpu_s, actor_rate=gpu_s.actor_rate * price, learner_rate=self.phases.learner_rate("usd", price))
        time_s, held = (float(x.mean()) for x in gpu_s.step(busy_s))
        return Reference(busy_s.shape[1], max(time_s, 1e-12), max(held, 1e-12), max(float(usd.step(busy_s)[1].mean()), 1e-12))

    def _note(self, name: str, value: float, bound: float) -> None:
        self.history.append(HistoryEntry(name, time.perf_counter() - self.began, value, bound))

    def _refuse(self, candidates: Candidates, others: list[Split]) -> None:
        """Raise the error that says which limit neither the candidates nor other splits meet."""
        for split in others:
            candidates.look_at(split)
        found = [(c.time_s, c.cost) for c in candidates.found]
        works = [self._sorted(case) for case in self.workload.cases()]
        raise PlanningError(limit_missed(works, candidates.pricing, found, self._room_to_blame() if self.explains else ""))

    def _room_to_blame(self) -> str:
        """Return the part of the message about slots and KV memory."""

        def keeps(roomier: LatencyModel) -> bool:
            quick_s = min(self.time_limit_s, ROOM_S)
            again = replace(self, latency=roomier, time_limit_s=quick_s, began=time.perf_counter(), explains=False, history=[])
            try:
                again.plan()
            except PlanningError:
                return False
            return True

        left_s = max(self.began + LATEST_BLAME * self.time_limit_s - time.perf_counter(), ROOM_S)
        stop_at = stop_after(time.perf_counter(), left_s, self.deterministic)
        return room_of(self.latency, self.workload, self.objective, keeps, stop_at)

"""Searches step plans with levers: every set of the levers that are allowed is searched, and the best plan is kept.

The plan without levers comes from the exact search (``search.py``). Its layouts are a start for plans with divided calls.
Other starts have generation on any number of GPUs, and other calls where the lower bound of the plan is least. From the best
starts one call at a time gets another layout, or is divided or not, while that makes steps shorter (``lever_space.py``). A
layout is only timed if the lower bound of its plan is below the best period so far. With drafts, all of this starts from the
exact search with the drafted latency.

A plan that is allowed a set of levers may leave them unused. So a larger set is never worse, and what a lever saves, which is
the best period without it less the best period, is never below 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from solver.layouts.generation import StepGeneration
from solver.layouts.graph import GENERATE, Graph
from solver.layouts.joined import plan_with_generation
from solver.layouts.lever_bound import lever_bound_s
from solver.layouts.lever_plan import divided_plan
from solver.layouts.lever_space import DIVIDES, LeverSpace, with_slack
from solver.layouts.levers import Lever
from solver.layouts.options import CallCosts, IntArray
from solver.layouts.parts import PromptShares
from solver.layouts.plan import StepPlan
from solver.layouts.searched import EQUAL, Asked
from solver.model.cluster import Cluster
from solver.model.step_levers import DRAFTS, OVERLAP, STREAMING

TIMED = 600  # plans that are timed at most for one set of levers
DESCENTS = 3  # from the best starts
OF_CALL = 16  # layouts of a call that are timed at most before the next call
WORK = 500  # partial plans that are bounded in about the time of one
LEAST_GAIN = 1e-9  # relative, from which a plan is better

State = tuple[tuple[int, ...], frozenset[int]]  # option of every call, and the calls that are divided


@dataclass
class _Best:
    """The best plan of a search: rough period, option of every call, and which calls are divided."""

    period_s: float
    plan: IntArray
    divided: frozenset[int]


def plan_with_levers(
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    generation: Mapping[str, StepGeneration],
    levers: tuple[str, ...],
    asked: Asked,
) -> StepPlan:
    """Return the best step plan that these levers allow.

    Args:
        generation: by the name of every generate call. levers: some of ``CALL_LEVERS``, in their order.

    Raises:
        PlanningError: no plan fits into memory, nothing can generate, or a lever lacks what it needs.
    """
    variants: list[tuple[tuple[str, ...], Mapping[str, StepGeneration]]] = [((), generation)]
    if DRAFTS in levers:
        variants.append(((DRAFTS,), {name: one.drafted for name, one in generation.items()}))
    shares = PromptShares(graph, {name: one.workload for name, one in generation.items()})
    dividing = tuple(lever for lever in levers if lever in DIVIDES)
    found: dict[tuple[str, ...], StepPlan] = {}
    bounds = []
    for drafts, of_variant in variants:
        joined = plan_with_generation(graph, cluster, costs, of_variant, asked)
        found[drafts] = joined.plan
        options, slacks = with_slack(joined.options, joined.generation) if dividing else (joined.options, {})
        space = LeverSpace(options, costs, joined.generation, slacks, shares, asked.memory_bytes)
        space.check(space.calls_of(dividing))
        bounds.append(joined.plan.lower_bound_s if not dividing else lever_bound_s(space, space.calls_of(dividing)))
        layouts = {call.name: call.layout for call in joined.plan.calls}
        starts = [np.array([options.layouts[at].index(layouts[call.name]) for at, call in enumerate(graph.calls)], np.int64)]
        for some in _sets(dividing):
            found[*drafts, *some] = _searched(space, starts, joined.plan, some, asked)
    best = _best(found, levers)
    chosen = found[best]
    bound_s = min(min(bounds), chosen.period_s)
    proven = chosen.period_s * (1 - asked.gap) <= bound_s * (1 + EQUAL)
    status = "optimal" if proven else chosen.status if not dividing else "stopped"
    levers_used = tuple(_lever(lever, best, found, levers) for lever in levers)
    return replace(chosen, lower_bound_s=bound_s, status=status, levers=levers_used)


def _sets(levers: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return all sets of levers but the empty one, the smaller first."""
    return [some for count in range(1, len(levers) + 1) for some in combinations(levers, count)]


def _best(found: Mapping[tuple[str, ...], StepPlan], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the set of levers with the best plan, among those with allowed ones only; the fewest levers where equal."""
    within = sorted((some for some in found if set(some) <= set(allowed)), key=len)
    best = within[0]
    for some in within:
        if found[some].period_s < found[best].period_s * (1 - LEAST_GAIN):
            best = some
    return best


def _lever(name: str, best: tuple[str, ...], found: Mapping[tuple[str, ...], StepPlan], allowed: tuple[str, ...]) -> Lever:
    """Return what a lever does in the best plan, and what is lost without it."""
    plan = found[best]
    without = found[_best(found, tuple(lever for lever in allowed if lever != name))]
    kind = DIVIDES.get(name)
    calls = [call.name for call in plan.calls if (call.parts is not None and call.kind == kind)]
    used = name in best and (name == DRAFTS or bool(calls))
    saves_s = without.period_s - plan.period_s if used else 0.0
    return Lever(name, used, _choice(name, plan, calls) if used else "off", saves_s, saves_s / without.period_s)


def _choice(name: str, plan: StepPlan, calls: list[str]) -> str:
    """Return what a lever does, in words."""
    if name == DRAFTS:
        drafted = [call.name for call in plan.calls if call.kind == GENERATE]
        return f"{' and '.join(drafted)} with drafts, at the best length for each batch"
    what = {OVERLAP: "as soon as they are complete", STREAMING: "as soon as they are judged, with the optimizer after all"}[
        name
    ]
    return f"{', '.join(calls)} prompt by prompt, {what}"


def _searched(space: LeverSpace, starts: list[IntArray], without: StepPlan, levers: tuple[str, ...], asked: Asked) -> StepPlan:
    """Return the best plan that was found whose calls of these levers' kinds may be divided; its layouts join the starts."""
    search = _LeverSearch(space, space.calls_of(levers), min(TIMED, max(2, asked.work // WORK)))
    best = search.run(starts)
    if best is None or not best.divided:
        return without
    starts.append(best.plan)
    return min(without, divided_plan(space, best.plan, best.divided), key=lambda one: one.period_s)


class _LeverSearch:
    """Descents over layouts and divided calls; at most ``most`` plans are timed."""

    def __init__(self, space: LeverSpace, divisible: tuple[int, ...], most: int) -> None:
        self.space, self.divisible, self.most = space, divisible, most
        self.timed: dict[State, float] = {}

    def run(self, starts: Sequence[IntArray]) -> _Best | None:
        """Return the best plan found from these starts, with and without divided calls; None where none fits."""
        every = [*starts, *(self._spread(starts[0], *one) for one in self._sizes())]
        both = (frozenset(self.divisible), frozenset[int]())
        tried = [best for start in every for divided in both if (best := self._tried(start, divided)) is not None]
        tried.sort(key=lambda one: one.period_s)
        return min((self._descend(one) for one in tried[:DESCENTS]), key=lambda one: one.period_s, default=None)

    def _sizes(self) -> list[tuple[int, int]]:
        """Return generate calls with the option of each number of GPUs that takes the fewest GPU-seconds."""
        options = self.space.options
        found: dict[tuple[int, int], tuple[float, int]] = {}
        for call in self.space.slacks:
            gpu_s = options.freed_early[call].release_s.sum(axis=1)
            for option, layout in enumerate(options.layouts[call]):
                key, one = (call, layout.mesh.gpus), (float(gpu_s[option]), option)
                found[key] = min(found.get(key, one), one)
        return [(call, option) for (call, _), (_, option) in found.items()]

    def _spread(self, start: IntArray, generate: int, generated: int) -> IntArray:
        """Return a plan with this option of a generate call, and the others where the plan's lower bound is least."""
        plan, divided = start.copy(), frozenset(self.divisible)
        plan[generate] = generated
        for call in range(len(plan)):
            if call in self.space.slacks:
                continue
            bounds = []
            for option in self._options(call):
                plan[call] = option
                bounds.append((self.space.least_s(plan, divided), option))
            plan[call] = min(bounds)[1]
        return plan

    def _descend(self, start: _Best) -> _Best:
        """Change one call at a time from a start, until no change makes steps shorter."""
        best, unchanged, call, calls = start, 0, 0, len(start.plan)
        while unchanged < calls and len(self.timed) < self.most:
            better = self._improved(best, call)
            unchanged = unchanged + 1 if better is None else 0
            best, call = better or best, (call + 1) % calls
        return best

    def _improved(self, best: _Best, call: int) -> _Best | None:
        """Return the best plan with another layout of a call, divided or not, if one is better than ``best``."""
        tried: list[tuple[float, int, IntArray, frozenset[int]]] = []
        for option in self._options(call):
            plan = best.plan.copy()
            plan[call] = option
            for divided in {best.divided, best.divided ^ {call}} if call in self.divisible else {best.divided}:
                least_s = self.space.least_s(plan, divided)
                if least_s < best.period_s * (1 - LEAST_GAIN):
                    tried.append((least_s, len(tried), plan, divided))
        better = None
        for least_s, _, plan, divided in sorted(tried, key=lambda one: one[:2])[:OF_CALL]:
            so_far = better or best
            if least_s < so_far.period_s and (made := self._tried(plan, divided)) is not None:
                better = made if made.period_s < so_far.period_s * (1 - LEAST_GAIN) else better
        return better

    def _options(self, call: int) -> list[int]:
        """Return of each mesh the options of a call that may be best: the fastest, and the one with the most servers."""
        options = self.space.options
        if call in self.space.slacks:
            return list(range(len(options.layouts[call])))
        seconds, by_mesh = options.seconds[call], dict[tuple[int, int], list[int]]()
        for option, (first, last) in enumerate(options.spans[call].tolist()):
            by_mesh.setdefault((first, last), []).append(option)
        found = []
        for own in by_mesh.values():
            fastest = min(own, key=lambda option: seconds[option])
            most = min(own, key=lambda option: (-options.layouts[call][option].strategy.dp, seconds[option]))
            found += sorted({fastest, most})
        return found

    def _tried(self, plan: IntArray, divided: frozenset[int]) -> _Best | None:
        """Return a plan that fits with its rough period; None where it does not, or too many were timed."""
        state = tuple(plan.tolist()), divided
        if state not in self.timed:
            if len(self.timed) >= self.most or not self.space.fits(plan, divided):
                return None
            self.timed[state] = self.space.rough_period_s(plan, divided)
        return _Best(self.timed[state], plan, divided)

"""Whole steps that a plan may choose from: every way to generate with every way to learn, on every scenario of the lengths.

There are thousands of pairs, of every size of actors and of all layouts. Each is first timed coarsely, on one scenario whose
responses are merged into blocks. Those that are cheapest within some time, or cheapest without one of the levers, are then
timed on every scenario. Plans that fold are executed to be timed, which takes long. So only sizes that are about as good as
the best without folding may fold, on the typical scenario. The others are estimated until such a plan would be chosen
(``confirmed.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlhfless.simulate.whole_steps.generation_plans import GenerationPlan, StepGenerations
from rlhfless.simulate.whole_steps.learner_way import LearnerWay, server_counts, servers_per_block
from rlhfless.simulate.whole_steps.levers import levers_of
from rlhfless.simulate.whole_steps.merged_timing import MergedStep, merged_totals
from rlhfless.simulate.whole_steps.step_costs import StepCosts
from solver.model.step_levers import CONSOLIDATION, LEVERS, SHARED_PREFILL
from solver.model.workload import FloatArray
from solver.step.work import PhaseWork

STARTS = tuple(share / 13 for share in range(13))  # of a learner that streams, as shares of the generation time
TIME_FACTORS = (*(1.02**power for power in range(60)), 4.0, 9.0)
"""Of the least time: the times within which the cheapest pairs are kept."""
BLOCKS, FINE_BLOCKS = 48, 512  # items of a coarse and of a fine timing, at most
FOLDING_MARGIN = 0.02
"""A plan that folds must be so much faster or cheaper in the coarse timing: its rule is executed, not timed by arrays."""
FOLDED_WITHIN = 0.05
"""Plans of a size may fold if one of its others is at most so much dearer than the cheapest that is as fast."""
FOLDED_ON = 4  # scenarios on which a plan that folds is executed before it is chosen; on the others it is estimated


class WholeStepPlan(NamedTuple):
    """A way to generate and a way to learn, with the levers that they use.

    ``variant`` is the number of the step's variant (actor size and layouts) that it is of; 0: the step's own. ``of_part`` is
    the plan of a part of the step that it is scaled from; None where it is made for the step itself.
    """

    generation: GenerationPlan
    way: LearnerWay
    levers: frozenset[str]
    variant: int = 0
    of_part: WholeStepPlan | None = None


@dataclass(frozen=True, eq=False)
class PairSource:
    """Everything needed to build and time the (generation, learner) pairs of one actor size.

    Attributes:
        generations: plans of generation.
        works: preparation and learning at full speed, one per scenario.
        costs: of the step.
        servers: of the cluster.
        ratio: size of the step over that of the part that is timed.
        levers: optimisations that all pairs use.
        variant: its number.
    """

    generations: StepGenerations
    works: Sequence[PhaseWork]
    costs: StepCosts
    servers: int
    ratio: float = 1.0
    levers: frozenset[str] = frozenset()
    variant: int = 0


@dataclass(frozen=True, eq=False)
class WholeStepCandidates:
    """N plans of a whole step, and (N, S) seconds and GPU-seconds of each on S scenarios."""

    plans: tuple[WholeStepPlan, ...]
    times_s: FloatArray
    gpu_s: FloatArray

    def without(self, lever: str) -> WholeStepCandidates:
        """Return the plans that do not use a lever."""
        return self.chosen([i for i, plan in enumerate(self.plans) if lever not in plan.levers])

    def within(self, levers: Collection[str]) -> WholeStepCandidates:
        """Return the plans that use none but these levers."""
        return self.chosen([i for i, plan in enumerate(self.plans) if plan.levers.issubset(levers)])

    def joined(self, other: WholeStepCandidates) -> WholeStepCandidates:
        """Return these plans and those of others, on the same scenarios."""
        return WholeStepCandidates(
            (*self.plans, *other.plans),
            np.concatenate([self.times_s, other.times_s]),
            np.concatenate([self.gpu_s, other.gpu_s]),
        )

    def chosen(self, numbers: Sequence[int]) -> WholeStepCandidates:
        """Return these plans."""
        return WholeStepCandidates(
            tuple(self.plans[i] for i in numbers), self.times_s[list(numbers)], self.gpu_s[list(numbers)]
        )


def candidates(sources: Sequence[PairSource]) -> WholeStepCandidates:
    """Return the pairs of all sources that are worth choosing from, timed on every scenario."""
    found = [_coarse(source, source.generations.candidates()) for source in sources]
    best = _excess(np.concatenate([totals for _, totals in found]))
    edges = np.cumsum([len(pairs) for pairs, _ in found])[:-1]
    for source, excess in zip(sources, np.split(best, edges), strict=True):
        if excess.min(initial=np.inf) <= FOLDED_WITHIN:
            found.append(_coarse(source, source.generations.folding()))
    pairs = [pair for of_source, _ in found for pair in of_source]
    kept = [pairs[i] for i in _kept(pairs, np.concatenate([totals for _, totals in found]))]
    timed: list[WholeStepPlan] = []
    totals = []
    for source in sources:
        own = [pair for pair in kept if pair.variant == source.variant]
        timed += own
        totals.append(scenario_totals(own, source.works, source.costs) * [1.0, source.ratio])
    together = np.concatenate(totals)
    return WholeStepCandidates(tuple(timed), together[:, :, 0], together[:, :, 1])


def scenario_totals(
    pairs: Sequence[WholeStepPlan], works: Sequence[PhaseWork], costs: StepCosts, estimated: bool = True
) -> FloatArray:
    """Return (N, S, 2) seconds and GPU-seconds of pairs of one size and layouts on every scenario.

    Args:
        works, costs: see ``PairSource``. estimated: plans that fold may be estimated where they were not executed.
    """
    distinct = list({id(pair.generation): pair.generation for pair in pairs}.values())
    fine = {  # scenario by scenario, as generations share timelines
        (id(one), scenario): MergedStep(one.estimated(scenario, 1 if estimated else FOLDED_ON), work, FINE_BLOCKS)
        for scenario, work in enumerate(works) for one in distinct
    }  # fmt: skip
    cases = [(fine[id(pair.generation), scenario], pair.way) for pair in pairs for scenario in range(len(works))]
    return merged_totals(cases, costs).reshape(len(pairs), len(works), 2)


def on_scenario(pair: WholeStepPlan, work: PhaseWork, costs: StepCosts, all_servers: int, scenario: int) -> tuple[float, float]:
    """Return about the seconds and GPU-seconds of a pair on one scenario of a step of any size; folding is left out.

    Servers and responses are counted together, which hides the last response. So the step is no shorter than until that one is
    complete and gradients are reduced.
    """
    generated = (pair.generation.like or pair.generation).on(scenario)
    merged = MergedStep(generated, work, FINE_BLOCKS, servers_per_block(all_servers))
    ((time_s, gpu_s),) = merged_totals([(merged, pair.way)], costs).tolist()
    ends_s = generated.makespan_s + costs.charges.finish_s(pair.way.servers(merged.actors))
    later_s = max(0.0, ends_s - time_s)
    return time_s + later_s, gpu_s + later_s * pair.way.own * work.gpus_per_actor


def _coarse(source: PairSource, generations: Sequence[GenerationPlan]) -> tuple[list[WholeStepPlan], FloatArray]:
    """Return the pairs of these ways to generate, and (N, 2) seconds and GPU-seconds by merged responses."""
    pairs, cases = [], []
    for one in generations:
        merged = MergedStep(one.on(0), source.works[0], BLOCKS, servers_per_block(source.servers))
        actors, makespan_s = len(one.plan.actors), one.makespan_s
        for way in _ways(actors, source.servers, makespan_s, source.costs):
            used = one.levers | levers_of(way, actors, source.servers, makespan_s)
            pairs.append(WholeStepPlan(one, way, used | source.levers, source.variant))
            cases.append((merged, way))
    return pairs, merged_totals(cases, source.costs) * [1.0, source.ratio]


def _excess(totals: FloatArray) -> FloatArray:
    """Return (N,) the share by which each pair is dearer than the cheapest that is as fast."""
    order = np.lexsort(totals.T[::-1])
    excess = np.zeros(len(totals))
    excess[order] = totals[order, 1] / np.minimum.accumulate(totals[order, 1]) - 1
    return excess


def plain_way(actors: int, all_servers: int, generation_s: float) -> LearnerWay:
    """Return learning on all GPUs after generation, which no lever changes."""
    return LearnerWay(own=all_servers - actors, from_s=generation_s)


def _ways(actors: int, all_servers: int, generation_s: float, costs: StepCosts) -> Iterator[LearnerWay]:
    """Return possible ways to learn beside a plan of so many actors; learning on all GPUs after generation comes first."""
    left, charges = all_servers - actors, costs.charges
    yield plain_way(actors, all_servers, generation_s)
    for own in [0, *server_counts(left)]:
        possible = {grows: servers for grows, servers in ((True, own + actors), (False, own)) if charges.fits(servers)}
        loaded_s = {grows: max(0.0, generation_s - charges.loading_s(servers)) for grows, servers in possible.items()}
        if True in possible:
            for from_s in [generation_s, loaded_s[True]] if own else [0.0]:
                yield LearnerWay(own, from_s)
                yield LearnerWay(own, from_s, overlaps=True)
        for share in [*STARTS, None] if own else [0.0]:
            for grows in possible:
                from_s = loaded_s[grows] if share is None else share * generation_s
                yield LearnerWay(own, from_s, grows, streams=True, overlaps=True)


def _kept(pairs: Sequence[WholeStepPlan], totals: FloatArray) -> list[int]:
    """Return the numbers of the pairs that are cheapest within some time: of all, without each lever, and of elastic plain."""
    number_of: dict[frozenset[str], int] = {}
    of = np.array([number_of.setdefault(pair.levers, len(number_of)) for pair in pairs])
    sets = list(number_of)
    subsets = [np.ones(len(sets), dtype=bool), *(np.array([lever not in own for own in sets]) for lever in LEVERS)]
    subsets += [np.array([own == plain for own in sets]) for plain in (frozenset(), frozenset({SHARED_PREFILL}))]
    margin = np.array([FOLDING_MARGIN if CONSOLIDATION in own else 0.0 for own in sets])[of]
    times_s, gpu_s = totals.T * (1 + margin)
    fastest_first = np.argsort(times_s, kind="stable")
    found: set[int] = set()
    for subset in subsets:
        numbers = fastest_first[subset[of[fastest_first]]]
        if len(numbers):
            last = np.searchsorted(times_s[numbers], times_s[numbers[0]] * np.array(TIME_FACTORS), side="right") - 1
            least = np.minimum.accumulate(gpu_s[numbers])
            cheaper = np.append(True, gpu_s[numbers[1:]] < least[:-1])
            cheapest = np.maximum.accumulate(np.where(cheaper, np.arange(len(numbers)), 0))
            found.update(numbers[cheapest[last]].tolist())
    return sorted(found)

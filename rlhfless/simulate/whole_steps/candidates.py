"""Whole steps that a plan may choose from: every generation with every learner, on every scenario of the lengths.

There are thousands of pairs, of every size of actors and of all layouts. Each is first timed coarsely, on one scenario whose
responses are merged into blocks. Those that are cheapest within some time, or cheapest without one of the levers, are then
timed on every scenario. Plans that fold are executed to be timed, which takes long. So only sizes that are about as good as
the best without folding may fold, on the typical scenario. The others are estimated until such a plan would be chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from rlhfless.simulate.drafts import SimulatedDrafts
from rlhfless.simulate.whole_steps.generations import Generation, WholeStepPlan
from rlhfless.simulate.whole_steps.sized_step import SizedStep
from solver.model.step_levers import CONSOLIDATION, lever_bits, levers_of_bits
from solver.model.workload import FloatArray, IntArray
from solver.step.choose import StepChoice, StepTable, dearer_by, kept
from solver.step.learners import Learners, learners_beside, servers_per_block
from solver.step.pair_timing import StepItems, pair_totals

BLOCKS = 48  # items of a coarse timing, at most
FOLDED_WITHIN = 0.05
"""Plans of a size may fold if one of its others is at most so much dearer than the cheapest that is as fast."""


@dataclass(frozen=True, eq=False)
class WholeStepCandidates:
    """N plans of a whole step, and what they take on S scenarios.

    Attributes:
        table: with estimates of plans that fold. drafts: which drafted tokens are accepted in plans that draft; None: no plan
            does.
    """

    plans: tuple[WholeStepPlan, ...]
    table: StepTable
    drafts: SimulatedDrafts | None = None

    def confirm(
        self, choose: Callable[[StepTable], StepChoice], time: Callable[[WholeStepPlan], FloatArray]
    ) -> tuple[StepChoice, StepTable]:
        """Return a choice of which the plan, and the best plans without each lever, are all executed and not estimated; and the
        table with what these take.

        The candidates keep their estimates, so that a choice does not depend on the choices before it.

        Args:
            choose: among the plans of a table. time: returns (S, 2) seconds and GPU-seconds of a plan that was estimated.
        """
        table, confirmed = StepTable(self.table.levers, self.table.times_s.copy(), self.table.gpu_s.copy()), set[int]()
        while True:
            choice = choose(table)
            chosen = [choice.best, *choice.without.values()]
            estimated = [one for one in chosen if CONSOLIDATION in self.plans[one].levers and one not in confirmed]
            if not estimated:
                return choice, table
            if estimated[0] == choice.best:  # another plan may be chosen now, and others are the best without a lever then
                estimated = estimated[:1]
            for one in estimated:
                table.times_s[one], table.gpu_s[one] = time(self.plans[one]).T
                confirmed.add(one)

    def joined(self, other: WholeStepCandidates) -> WholeStepCandidates:
        """Return these plans and those of others, on the same scenarios and with the drafts of the others."""
        tables = self.table, other.table
        table = StepTable(*(np.concatenate([getattr(one, name) for one in tables]) for name in ("levers", "times_s", "gpu_s")))
        return WholeStepCandidates((*self.plans, *other.plans), table, other.drafts)


def candidates(
    sizes: Sequence[SizedStep], levers: Sequence[frozenset[str]], drafts: SimulatedDrafts | None
) -> WholeStepCandidates:
    """Return the pairs of all sizes that are worth choosing from, timed on every scenario.

    Args:
        sizes: steps of the variants, the step's own first. levers: that all plans of each variant use.
        drafts: which drafted tokens are accepted; None: nothing is drafted.
    """
    planned, ratios = [size.planned for size in sizes], np.array([size.ratio for size in sizes])
    pairs = _Pairs.joined([
        _Pairs.beside(number, size, size.generations(drafts).candidates(), levers[number])
        for number, size in enumerate(planned)
    ])  # fmt: skip
    totals = pairs.totals(ratios)
    dearer, variants = dearer_by(totals), pairs.variants[pairs.of]
    folding = [
        _Pairs.beside(number, size, found, levers[number])
        for number, size in enumerate(planned)
        if dearer[variants == number].min() <= FOLDED_WITHIN and (found := size.generations(drafts).folding())
    ]
    if folding:
        more = _Pairs.joined(folding)
        totals = np.concatenate([totals, more.totals(ratios)])
        pairs = _Pairs.joined([pairs, more])
    numbers = kept(pairs.levers, totals)
    numbers = numbers[np.argsort(pairs.variants[pairs.of[numbers]], kind="stable")]
    return pairs.chosen(numbers).on_every_scenario(planned, ratios, drafts)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """W pairs, of G generations with learners beside each.

    Attributes:
        generations: (G,) of one or several variants. variants: (G,) their numbers.
        steps: (G,) with the work of the typical scenario, in blocks.
        of: (W,) number of each pair's generation. learners, levers: (W,) of each pair.
    """

    generations: Sequence[Generation]
    variants: IntArray
    steps: Sequence[StepItems]
    of: IntArray
    learners: Learners
    levers: IntArray

    @classmethod
    def beside(cls, variant: int, size: SizedStep, generations: Sequence[Generation], levers: frozenset[str]) -> _Pairs:
        """Return the pairs of some generations by actors of one size; all use the levers of the variant, too."""
        together = servers_per_block(size.servers)
        steps = [StepItems(one.on(0), size.works[0], BLOCKS, together) for one in generations]
        makespans_s = np.array([one.makespan_s for one in generations])
        learners, of, first = [], [], 0
        for actors, several in groupby(len(one.plan.actors) for one in generations):
            count = len(list(several))
            beside = learners_beside(actors, size.servers, makespans_s[first : first + count], size.token_work.charges)
            learners.append(beside)
            of.append(np.repeat(np.arange(first, first + count), len(beside) // count))
            first += count
        every = Learners.joined(learners)
        numbers = np.concatenate([np.zeros(0, np.int64), *of])
        own = np.array([lever_bits(one.levers | levers) for one in generations], dtype=np.int64)[numbers]
        used = own | every.levers(size.servers, makespans_s[numbers])
        return cls(generations, np.full(len(generations), variant), steps, numbers, every, used)

    @classmethod
    def joined(cls, several: Sequence[_Pairs]) -> _Pairs:
        """Return the pairs of several in one."""
        firsts = np.cumsum([0, *(len(one.generations) for one in several)])
        return cls(
            [generation for one in several for generation in one.generations],
            np.concatenate([one.variants for one in several]), [step for one in several for step in one.steps],
            np.concatenate([one.of + first for one, first in zip(several, firsts[:-1], strict=True)]),
            Learners.joined([one.learners for one in several]), np.concatenate([one.levers for one in several]),
        )  # fmt: skip

    def chosen(self, numbers: IntArray) -> _Pairs:
        """Return the pairs of these numbers."""
        return _Pairs(
            self.generations, self.variants, self.steps, self.of[numbers], self.learners.chosen(numbers), self.levers[numbers]
        )

    def totals(self, ratios: FloatArray) -> FloatArray:
        """Return (W, 2) seconds and GPU-seconds on the typical scenario; GPU-seconds count as often as the variant's ratio."""
        totals = pair_totals(self.steps, self.of, self.learners)
        totals[:, 1] *= ratios[self.variants[self.of]]
        return totals

    def on_every_scenario(
        self, sizes: Sequence[SizedStep], ratios: FloatArray, drafts: SimulatedDrafts | None
    ) -> WholeStepCandidates:
        """Return the pairs as plans, timed on every scenario in fine blocks."""
        used, of = np.unique(self.of, return_inverse=True)
        scenarios = len(sizes[0].works)
        steps = []
        for variant in np.unique(self.variants[used]).tolist():
            own = [self.generations[number] for number in used.tolist() if self.variants[number] == variant]
            sizes[variant].generations(drafts).time([one.unfolded or one for one in own], range(scenarios))
        for number in used.tolist():
            steps += sizes[self.variants[number]].items(self.generations[number])
        numbers = np.arange(len(of) * scenarios)
        pair, scenario = np.divmod(numbers, scenarios)
        totals = pair_totals(steps, of[pair] * scenarios + scenario, self.learners.chosen(pair)).reshape(-1, scenarios, 2)
        variants = self.variants[self.of]
        table = StepTable(self.levers, totals[:, :, 0], totals[:, :, 1] * ratios[variants][:, None])
        return WholeStepCandidates(tuple(self._plan(number) for number in range(len(of))), table, drafts)

    def _plan(self, number: int) -> WholeStepPlan:
        generation, levers = int(self.of[number]), levers_of_bits(int(self.levers[number]))
        learner, variant = self.learners.one(number), int(self.variants[generation])
        return WholeStepPlan(self.generations[generation], learner, levers, variant)

"""A step with one size of actors and its work: what plans take on every scenario of the lengths, and on the whole of it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from rlhfless.simulate.drafts import SimulatedDrafts
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.whole_steps.generations import Generation, Generations
from rlhfless.simulate.whole_steps.step_part import StepPart
from solver.model.workload import FloatArray, Workload
from solver.step.bound import WholeStepBound, whole_step_bound
from solver.step.learners import Learners, charged
from solver.step.pair_timing import StepItems, pair_totals
from solver.step.work import Learner, StepWork, TokenWork

FINE_BLOCKS = 512  # items of a fine timing, at most
FOLDED_ON = 4  # scenarios on which a plan that folds is executed before it is chosen; on the others it is estimated
CHECKED_RESPONSES = 16_000
"""A plan that was timed on a part is followed on as many scenarios of the whole step as have about so many responses."""


class SizedStep:
    """A step with one size of actors, and with the work of preparation and learning there.

    Args:
        setting: cluster with this size of actors, and its latency; without drafts.
        like: a step that differs in its work only; its generations are this step's, too.

    Attributes:
        servers: of the cluster, each the GPUs of one actor. work: of the true lengths, at full speed.
        part: that plans are made for, where the step is large.
    """

    def __init__(
        self, logged: LoggedStep, setting: SimulationConfig, token_work: TokenWork, like: SizedStep | None = None
    ) -> None:
        self.logged, self.setting, self.token_work = logged, setting, token_work
        self.gpus_per_actor, self.servers = setting.cluster.gpus_per_actor, setting.cluster.max_actors
        self.work = token_work.of(logged.truth, self.gpus_per_actor)
        self._generations: list[Generations] = [] if like is None else like._generations
        self.part = StepPart.of(logged, setting, token_work)
        self.planned = self
        """The step that plans are made for: the part of a large step, or the step itself."""
        if self.part is not None:
            planned = None if like is None else like.planned
            self.planned = SizedStep(self.part.logged, self.part.setting, self.part.token_work, planned)

    @property
    def ratio(self) -> float:
        """Return how many times as large the step is as the one that plans are made for."""
        return 1.0 if self.part is None else self.part.ratio

    @property
    def cases(self) -> list[Workload]:
        """Return the forecast lengths of each scenario; the first one has the median of all tokens."""
        return self.generations(None).cases

    @cached_property
    def works(self) -> list[StepWork]:
        """Return preparation and learning at full speed on each scenario."""
        return [self.token_work.of(case, self.gpus_per_actor) for case in self.cases]

    def generations(self, drafts: SimulatedDrafts | None) -> Generations:
        """Return the candidates for generation with these drafts, or without any."""
        for known in self._generations:
            if known.setting.drafts is drafts:
                return known
        self._generations.append(Generations(self.logged, replace(self.setting, drafts=drafts)))
        return self._generations[-1]

    def bound(self, drafts: SimulatedDrafts | None) -> WholeStepBound:
        """Return a lower bound that holds for every policy with this size of actors."""
        return whole_step_bound(self.generations(drafts).bound, self.work)

    def items(self, generation: Generation, executed_on: int = 1) -> list[StepItems]:
        """Return a generation with its work on every scenario, in fine blocks.

        Args:
            executed_on: see ``Generation.estimated``.
        """
        return [
            StepItems(generation.estimated(scenario, executed_on), work, FINE_BLOCKS)
            for scenario, work in enumerate(self.works)
        ]

    def totals(self, generation: Generation, learner: Learner) -> FloatArray:
        """Return (S, 2) seconds and GPU-seconds on every scenario. A generation that folds is executed on some of them."""
        steps = self.items(generation, FOLDED_ON)
        return pair_totals(steps, np.arange(len(steps)), self._learners(learner, generation, len(steps)))

    def followed(self, generation: Generation, learner: Learner) -> FloatArray:
        """Return the (K, 2) exact seconds and GPU-seconds of a plan for a step of any size, on the first K scenarios.

        Folding is left out. K is all scenarios, or as many as have about ``CHECKED_RESPONSES``.
        """
        count = min(len(self.cases), math.ceil(CHECKED_RESPONSES / len(self.logged.truth)))
        of = generation.unfolded or generation
        return np.array([of.on(scenario).step_totals(self.works[scenario], learner) for scenario in range(count)])

    def _learners(self, learner: Learner, generation: Generation, count: int) -> Learners:
        """Return a learner as many times as there are scenarios."""
        own, actors = np.full(count, learner.own), np.full(count, len(generation.plan.actors))
        grows, streams, overlaps = (np.full(count, one) for one in (learner.grows, learner.streams, learner.overlaps))
        return charged(own, np.full(count, learner.from_s), grows, streams, overlaps, actors, self.token_work.charges)

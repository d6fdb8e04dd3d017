"""Plans a whole step with all optimisations from forecasts, executes plans on the true lengths, and bounds each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlhfless.executor import StepRecord, phase_work_items
from rlhfless.simulate.drafts import SimulatedDrafts
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.traces import trace_of
from rlhfless.simulate.whole_steps.candidates import WholeStepCandidates, candidates
from rlhfless.simulate.whole_steps.generated import executed_record
from rlhfless.simulate.whole_steps.generations import WholeStepPlan
from rlhfless.simulate.whole_steps.sized_step import SizedStep
from rlhfless.simulate.whole_steps.step_part import best_actors
from rlhfless.trace import Trace
from solver.bounds.bound import Bound, LeastBound
from solver.model.errors import PlanningError, as_given
from solver.model.objective import Objective
from solver.model.step_levers import ACTOR_SIZE, DRAFTS, LAYOUTS, LEVERS, SHARED_PREFILL, lever_bits, lever_names
from solver.model.workload import FloatArray
from solver.step.choose import StepTable, best_of, choose, share_text
from solver.step.work import TokenWork

Totals = tuple[float, float]
"""Seconds and GPU-seconds of a whole step."""


@dataclass(frozen=True, eq=False)
class StepVariant:
    """Another size of actors, or other layouts of preparation and learning, that a plan of a step may choose.

    Attributes:
        setting: cluster with this size of actors, and its latency. token_work: preparation and learning there.
        levers: ``actor size``, ``layouts`` or both: what differs from the step's own setting and work.
    """

    setting: SimulationConfig
    token_work: TokenWork
    levers: frozenset[str]


@dataclass(frozen=True, eq=False)
class WholeStepChoice:
    """The chosen plan of a whole step.

    Attributes:
        plan: that was chosen.
        times_s, gpu_s: (S,) expected in each scenario. They are exact where the plan consolidates or is planned by parts, else
            by pair timing (``solver.step.pair_timing``), which prepares a response right before it is learned from.
        saves: lever to the share that it is expected to save, measured on held-out scenarios; NaN where only with it the plan
            keeps the limit (``StepChoice``).
        without: lever to the best plan without it.
        refused: levers that did not help on held-out scenarios, in the order in which they were removed, with their saving.
    """

    plan: WholeStepPlan
    times_s: FloatArray
    gpu_s: FloatArray
    saves: Mapping[str, float] = field(default_factory=dict)
    without: Mapping[str, WholeStepPlan] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)

    @property
    def time_s(self) -> float:
        """Return the expected seconds of the step, the mean over the scenarios."""
        return float(self.times_s.mean())

    @property
    def gpu_seconds(self) -> float:
        """Return the expected GPU-seconds, the mean over the scenarios."""
        return float(self.gpu_s.mean())

    def lines(self) -> list[str]:
        """Return one line per lever: what it is expected to save, or that it is not used."""
        used = [f"{lever}: {share_text(share, 'expected to save ')}" for lever, share in self.saves.items()]
        return used + [f"{lever}: not used ({share_text(share, 'expected to save ')})" for lever, share in self.refused.items()]


class WholeStep:
    """One step of a log as a whole: generation, preparation, learning and weight sync.

    Args:
        logged: the step, with its forecast and its true lengths.
        setting: cluster, latency and admission; its ``drafts`` are not used.
        token_work: preparation and learning, with what a learner pays.
        variants: other actor sizes and layouts that plans may choose.

    Attributes:
        own: the step with its own size of actors.

    Raises:
        PlanningError: the charges allow no learner of all servers, of this size of actors or of a variant.

    Example:
        >>> import rlhfless as rl
        >>> from rlhfless.simulate import WholeStep
        >>> from solver import Objective
        >>> from solver.step.work import TokenWork
        >>> planned = rl.load(rl.example(), verbose=False).plan()
        >>> step = WholeStep(planned.logged, planned.setting, TokenWork(2e-5, 8e-5))
        >>> choice = step.plan(Objective(time_weight=0.7))
        >>> time_s, gpu_s = step.execute(choice.plan)
        >>> step.bound().gpu_seconds(time_s) <= gpu_s
        True
    """

    def __init__(
        self, logged: LoggedStep, setting: SimulationConfig, token_work: TokenWork, variants: Sequence[StepVariant] = ()
    ) -> None:
        self.logged, self.variants = logged, tuple(variants)
        self.own = SizedStep(logged, replace(setting, drafts=None), token_work)
        self._sizes, given = [self.own], [setting]
        self._candidates: list[WholeStepCandidates] = []
        self._totals: dict[WholeStepPlan, FloatArray] = {}
        for variant in self.variants:
            like = next((size for size, known in zip(self._sizes, given, strict=True) if known is variant.setting), None)
            self._sizes.append(SizedStep(logged, replace(variant.setting, drafts=None), variant.token_work, like))
            given.append(variant.setting)
        for size in self._sizes:
            if not size.token_work.charges.fits(size.servers):
                raise PlanningError(
                    f"the charges allow no learner of {size.servers} servers of {size.gpus_per_actor} GPUs, but elastic plain "
                    f"learns on all GPUs; give finite charges of {size.servers} servers"
                )

    def levers(self, drafts: SimulatedDrafts | None = None) -> tuple[str, ...]:
        """Return the names of the optimisations ("levers") that a plan may use; ``drafts`` only if drafts are given."""
        missing = {ACTOR_SIZE, LAYOUTS}.difference(*(variant.levers for variant in self.variants))
        return tuple(lever for lever in LEVERS if lever not in missing and (lever != DRAFTS or drafts is not None))

    def candidates(self, drafts: SimulatedDrafts | None = None) -> WholeStepCandidates:
        """Return all candidate plans; with drafts, plans without speculative decoding are included."""
        for known in self._candidates:
            if known.drafts is drafts:
                return known
        levers = [frozenset[str](), *(variant.levers for variant in self.variants)]
        found = self._of_whole(candidates(self._sizes, levers, drafts))
        self._candidates.append(found if drafts is None else self.candidates().joined(found))
        return self._candidates[-1]

    def plan(
        self,
        objective: Objective,
        drafts: SimulatedDrafts | None = None,
        levers: str | Collection[str] = LEVERS,
        relative_to: FloatArray | None = None,
    ) -> WholeStepChoice:
        """Return the best plan by the length forecast, which uses only optimisations of ``levers``.

        Args:
            objective: what is minimised, in the mean over the scenarios.
            levers: names, as ``lever_names`` takes them.
            relative_to: (S,) of another plan, what the limit is a multiple of: its seconds in each scenario, or its
                GPU-seconds under a budget. ``Objective(deadline_s=0.5)`` then asks for twice that plan's speed. None: the limit
                is absolute.

        Raises:
            PlanningError: the objective is for tails of the scenarios, or has a budget in USD and the GPUs have no price; or a
                lever is unknown.
        """
        objective, allowed = self._in_gpu_s(objective), lever_bits(lever_names(levers))
        found = self.candidates(drafts)
        among = found.table.within(allowed)
        choice, table = found.confirm(lambda table: choose(table, objective, among, relative_to), self._timed)
        without = {lever: found.plans[number] for lever, number in choice.without.items()}
        chosen = self._fitted_choice(found.plans[choice.best], table, choice.best, objective, relative_to)
        return replace(chosen, saves=choice.saves, without=without, refused=choice.refused)

    def plain(self, objective: Objective, prefix_caching: bool = True) -> WholeStepChoice:
        """Return the baseline ("elastic plain") that every plan is compared with.

        It has the right number of replicas, assigns responses at random, releases each replica when it is done, and learns on
        all GPUs after generation.

        Args:
            objective: only its time weight counts, which decides the number of replicas.
            prefix_caching: an actor computes a prompt once for all its samples, as engines do by default today. Where every
                prompt has one response this changes nothing. Without it nothing is a lever.
        """
        several = len(self.logged.truth) > len(np.unique(self.logged.truth.prompt_of))
        levers = lever_bits([SHARED_PREFILL] if prefix_caching and several else [])
        found, weighed = self.candidates(), Objective(objective.time_weight)
        best = best_of(found.table, weighed, found.table.levers == levers)
        return self._fitted_choice(found.plans[best], found.table, best, weighed)

    def fitted(self, plan: WholeStepPlan, objective: Objective, relative_to: FloatArray | None = None) -> WholeStepPlan:
        """Return the plan with its number of actors scaled to the whole step; unchanged if it was not made on a part of the
        step.

        Args:
            objective, relative_to: see ``plan``.
        """
        size, generations = self.of_plan(plan), plan.generation.step
        part = size.part
        if part is None or plan.of_part is None:
            return plan

        def value(one: WholeStepPlan) -> float:
            totals = size.followed(one.generation, one.learner)
            limited = objective if relative_to is None else objective.with_slack(float(relative_to[: len(totals)].mean()))
            return float(limited.soft_values(totals[:, 0], totals[:, 1]).mean())

        return best_actors(plan, lambda actors: part.with_actors(plan, actors, generations), value)

    def of_plan(self, plan: WholeStepPlan) -> SizedStep:
        """Return the step with the actor size and the work of this plan."""
        return self._sizes[plan.variant]

    def execute(self, plan: WholeStepPlan) -> Totals:
        """Return seconds and GPU-seconds of a plan with the true lengths.

        They equal those of ``record``, whose work items run by the same list scheduler.
        """
        return plan.generation.executed.step_totals(self.of_plan(plan).work, plan.learner)

    def record(self, plan: WholeStepPlan) -> StepRecord:
        """Return the executor's record of a plan with the true lengths, with preparation and learning as work items."""
        size, generation = self.of_plan(plan), plan.generation
        items = phase_work_items(size.work, plan.learner, size.setting.cluster, len(generation.plan.actors))
        run, number = str(self.logged.rows["run"].iloc[0]), self.logged.step
        return executed_record(
            generation.plan, generation.step.requests, size.setting, size.setting.latency, generation.engines, items, run=run,
            step=number,
        )  # fmt: skip

    def trace(self, plan: WholeStepPlan) -> Trace:
        """Return the trace of a plan that is run with the true lengths."""
        return trace_of([(self.record(plan), self.logged)], self.of_plan(plan).setting, plan.generation.plan.policy)

    def bound(self, drafts: SimulatedDrafts | None = None) -> Bound:
        """Return a lower bound that holds for every policy and every variant, with these drafts or without drafts."""
        bounds = [size.bound(drafts) for size in self._sizes]
        return bounds[0] if len(bounds) == 1 else LeastBound(bounds)

    def _in_gpu_s(self, objective: Objective) -> Objective:
        if not isinstance(objective, Objective):
            raise PlanningError(
                f"objective is {as_given(objective)}; an Objective is needed, such as Objective(time_weight=0.7)"
            )
        if objective.cvar_alpha != 1:
            raise PlanningError(
                f"cvar_alpha is {objective.cvar_alpha:g}, but a whole step is planned for the mean over the scenarios; give 1"
            )
        return objective.in_gpu_s(self.own.setting.cluster.usd_per_gpu_s)

    def _of_whole(self, found: WholeStepCandidates) -> WholeStepCandidates:
        """Return the plans of the step itself for those that were timed on a part of it; without those that do not fit."""
        plans, fits = [], []
        for plan in found.plans:
            size = self.of_plan(plan)
            if size.part is not None:
                plan = size.part.scaled(plan, plan.generation.step, size.generations(found.drafts))
            plans.append(plan)
            fits.append(size.token_work.charges.fits(plan.learner.servers(plan.generation.assignment.actors)))
        kept, table = np.flatnonzero(fits), found.table
        table = StepTable(table.levers[kept], table.times_s[kept], table.gpu_s[kept])
        return replace(found, plans=tuple(plans[number] for number in kept.tolist()), table=table)

    def _fitted_choice(
        self, plan: WholeStepPlan, table: StepTable, number: int, objective: Objective, relative_to: FloatArray | None = None
    ) -> WholeStepChoice:
        """Return the plan of a row of the table as a choice that suits the whole step, with what it is expected to take."""
        plan = self.fitted(plan, objective, relative_to)
        if plan.of_part is None:
            return WholeStepChoice(plan, table.times_s[number], table.gpu_s[number])
        totals = self._timed(plan)
        return WholeStepChoice(plan, totals[:, 0], totals[:, 1])

    def _timed(self, plan: WholeStepPlan) -> FloatArray:
        """Return (S, 2) seconds and GPU-seconds of a plan, which is executed on some scenarios if it folds.

        What a plan takes on a part is corrected to what it takes on the whole step, in the mean of some scenarios. There a plan
        that folds counts as the one that does not. Every plan is timed once.
        """
        if plan not in self._totals:
            self._totals[plan] = self._times_of(plan)
        return self._totals[plan]

    def _times_of(self, plan: WholeStepPlan) -> FloatArray:
        size = self.of_plan(plan)
        if plan.of_part is None:
            return size.totals(plan.generation, plan.learner)
        generation, learner = plan.of_part.generation, plan.of_part.learner
        of_whole = size.followed(plan.generation, plan.learner)
        of_part = size.planned.totals(generation.unfolded or generation, learner)[: len(of_whole)]
        return np.asarray(size.planned.totals(generation, learner) * of_whole.mean(axis=0) / of_part.mean(axis=0))

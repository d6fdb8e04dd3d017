"""Plans a whole step with all levers from forecasts, executes plans on the true lengths, and bounds every one of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import EngineFactory, StepRecord, phase_work_items
from rlhfless.scheduling.calibration import calibrated
from rlhfless.simulate.drafted_steps import drafted_engines
from rlhfless.simulate.drafts import SimulatedDrafts
from rlhfless.simulate.plan_bounds import bound_with_drafts
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.traces import trace_of
from rlhfless.simulate.whole_steps.aim import Aim
from rlhfless.simulate.whole_steps.candidates import (
    PairSource,
    WholeStepCandidates,
    WholeStepPlan,
    candidates,
    on_scenario,
    scenario_totals,
)
from rlhfless.simulate.whole_steps.choice import WholeStepChoice, best_of, choose
from rlhfless.simulate.whole_steps.confirmed import choose_confirmed
from rlhfless.simulate.whole_steps.generated import GeneratedStep, executed, executed_record, requests_of
from rlhfless.simulate.whole_steps.generation_plans import StepGenerations, scenario_lengths, with_lengths
from rlhfless.simulate.whole_steps.generation_way import RANDOM, GenerationWay
from rlhfless.simulate.whole_steps.published import Totals
from rlhfless.simulate.whole_steps.resized import best_actors
from rlhfless.simulate.whole_steps.step_part import StepPart
from rlhfless.trace import Trace
from solver.bounds.bound import Bound, LeastBound
from solver.bounds.schedules import ScheduleBound
from solver.model.drafting import Drafting
from solver.model.plan import Plan
from solver.model.step_levers import ACTOR_SIZE, DRAFTS, LAYOUTS, LEVERS, SHARED_PREFILL
from solver.model.workload import FloatArray
from solver.step.bound import WholeStepBound, whole_step_bound
from solver.step.work import TokenWork

CHECKED_RESPONSES = 60_000
"""A plan that was timed on a part is checked on as many scenarios of the whole step as have about so many responses."""


@dataclass(frozen=True, eq=False)
class StepVariant:
    """Another size of actors, or other layouts of preparation and learning, that a plan of a step may choose.

    Attributes:
        setting: cluster with this size of actors, and its latency. costs: of preparation and learning there.
        levers: ``actor size``, ``layouts`` or both: what differs from the step's own setting and costs.
    """

    setting: SimulationConfig
    costs: TokenWork
    levers: frozenset[str]


class WholeStep:
    """One step of a log as a whole: generation, preparation, learning and weight sync.

    Args:
        logged: the step, with its forecast and its true lengths.
        setting: cluster, latency and admission; its ``drafts`` are not used.
        costs: preparation and learning, with what a learner pays.
        variants: other actor sizes and layouts that plans may choose.

    Example:
        >>> import rlhfless as rl, solver
        >>> from rlhfless.simulate import Aim, WholeStep
        >>> from solver.step.work import TokenWork
        >>> planned = rl.load(rl.example(), verbose=False).plan()
        >>> step = WholeStep(planned.logged, planned.setting, TokenWork(2e-5, 8e-5))
        >>> choice = step.plan(Aim(time_weight=0.7))
        >>> time_s, gpu_s = step.execute(choice.plan)
        >>> step.bound().gpu_seconds(time_s) <= gpu_s
        True
    """

    def __init__(
        self, logged: LoggedStep, setting: SimulationConfig, costs: TokenWork, variants: Sequence[StepVariant] = ()
    ) -> None:
        self.logged, self.setting, self.costs = logged, replace(setting, drafts=None), costs
        self.requests = logged.requests()
        self.gpus_per_actor, self.most = setting.cluster.gpus_per_actor, setting.cluster.max_actors
        self.work = costs.of(logged.truth, self.gpus_per_actor)
        predicted = calibrated(*logged.inputs(self.setting)).workload
        lengths = scenario_lengths(predicted)
        limit = logged.truth.max_response_tokens
        self.cases = [with_lengths(predicted, own, limit) for own in lengths]
        self.works = [costs.of(case, self.gpus_per_actor) for case in self.cases]
        self.part = StepPart.of(logged, self.setting, costs)
        self._of_part = None if self.part is None else WholeStep(self.part.logged, self.part.setting, self.part.costs)
        self._drafts: dict[int, SimulatedDrafts | None] = {}
        self._candidates: dict[int, WholeStepCandidates] = {}
        self._known: dict[int, FloatArray] = {}  # what plans take whose times were estimated
        self._generations: dict[int, StepGenerations] = {}
        self._generated: dict[tuple[int, int], tuple[Plan, GeneratedStep]] = {}
        self._bounds: dict[int, ScheduleBound] = {}  # on generation
        self.variants = tuple(variants)
        self._steps = [self]
        settings = [setting]
        for variant in self.variants:
            step = WholeStep(logged, variant.setting, variant.costs)
            for other, known in zip(self._steps, settings, strict=True):
                if known is variant.setting:  # they generate alike
                    step._generates_as(other)
            self._steps.append(step)
            settings.append(variant.setting)

    def levers(self, drafts: SimulatedDrafts | None = None) -> tuple[str, ...]:
        """Return the names of the optimisations ("levers") that a plan may use; ``drafts`` only if drafts are given."""
        missing = {ACTOR_SIZE, LAYOUTS}.difference(*(variant.levers for variant in self.variants))
        return tuple(lever for lever in LEVERS if lever not in missing and (lever != DRAFTS or drafts is not None))

    def candidates(self, drafts: SimulatedDrafts | None = None) -> WholeStepCandidates:
        """Return all candidate plans; with drafts, plans without speculative decoding are included."""
        key = self._key(drafts)
        if key not in self._candidates:
            levers = [frozenset[str](), *(variant.levers for variant in self.variants)]
            sources = [
                step._source(drafts, of, number) for number, (step, of) in enumerate(zip(self._steps, levers, strict=True))
            ]
            found = self._scaled(candidates(sources), drafts)
            self._candidates[key] = found if drafts is None else self.candidates().joined(found)
        return self._candidates[key]

    def plan(self, aim: Aim, drafts: SimulatedDrafts | None = None, levers: Collection[str] = LEVERS) -> WholeStepChoice:
        """Return the best plan by the length forecast, which uses only optimisations of ``levers``."""
        found = self.candidates(drafts).within(levers)
        return self._fitted(choose_confirmed(found, lambda among: choose(among, aim), self._timed, self._known), aim, drafts)

    def plain(self, time_weight: float, prefix_caching: bool = True) -> WholeStepChoice:
        """Return the baseline ("elastic plain") that every plan is compared with.

        It has the right number of replicas, assigns responses at random, releases each replica when it is done, and learns on
        all GPUs after generation.

        Args:
            prefix_caching: an actor computes a prompt once for all its samples, as engines do by default today. Where every
                prompt has one response this changes nothing. Without it nothing is a lever.
        """
        several = len(self.logged.truth) > len(np.unique(self.logged.truth.prompt_of))
        levers = frozenset({SHARED_PREFILL} if prefix_caching and several else ())
        found = self.candidates()
        own = found.chosen([number for number, plan in enumerate(found.plans) if plan.levers == levers])
        aim = Aim(time_weight=time_weight)
        return self._fitted(best_of(own, aim), aim)

    def fitted(self, plan: WholeStepPlan, aim: Aim, drafts: SimulatedDrafts | None = None) -> WholeStepPlan:
        """Return the plan with its number of actors scaled to the whole step; unchanged if it was not made on a part of the
        step.
        """
        step = self.of_plan(plan)
        part, generations = step.part, step._plans(drafts if DRAFTS in plan.levers else None)
        if part is None or plan.of_part is None:
            return plan

        def value(one: WholeStepPlan) -> float:
            totals = step._on_scenarios(one)
            return float(aim.on(np.arange(len(totals))).values(totals[None, :, 0], totals[None, :, 1]).mean())

        return best_actors(plan, lambda actors: part.with_actors(plan, actors, generations), value)

    def of_plan(self, plan: WholeStepPlan) -> WholeStep:
        """Return the step with the actor size and the costs of this plan."""
        return self._steps[plan.variant]

    def generated(self, plan: Plan, drafts: SimulatedDrafts | None = None) -> GeneratedStep:
        """Return the generation of a plan with the true lengths, on actors of the step's own size; it is executed only once."""
        key = id(plan), self._key(drafts) if plan.drafting is not None else 0
        if key not in self._generated:
            self._generated[key] = plan, executed(plan, self.requests, self.setting, engines=self._engines(plan, drafts))
        return self._generated[key][1]

    def execute(self, plan: WholeStepPlan, drafts: SimulatedDrafts | None = None) -> Totals:
        """Return seconds and GPU-seconds of a plan with the true lengths.

        They equal those of ``record``, whose work items run by the same list scheduler.
        """
        step = self.of_plan(plan)
        return step.generated(plan.generation.plan, drafts).step_totals(step.work, plan.way)

    def record(self, plan: WholeStepPlan, drafts: SimulatedDrafts | None = None) -> StepRecord:
        """Return the executor's record of a plan with the true lengths, with preparation and learning as work items."""
        step, own = self.of_plan(plan), plan.generation.plan
        items = phase_work_items(step.work, plan.way, step.setting.cluster, len(own.actors))
        engines = step._engines(own, drafts)
        run, number = str(self.logged.rows["run"].iloc[0]), self.logged.step
        return executed_record(own, self.requests, step.setting, step.setting.latency, engines, items, run=run, step=number)

    def trace(self, plan: WholeStepPlan, drafts: SimulatedDrafts | None = None) -> Trace:
        """Return the trace of a plan that is run with the true lengths."""
        setting = self.of_plan(plan).setting
        return trace_of([(self.record(plan, drafts), self.logged)], setting, plan.generation.plan.policy)

    def on_scenario(self, plan: Plan) -> GeneratedStep:
        """Return the generation of a plan on the typical scenario."""
        return executed(plan, requests_of(self.cases[0]), self.setting)

    def bound(self, drafts: SimulatedDrafts | None = None) -> Bound:
        """Return a lower bound that holds for every policy and every variant, with these drafts or without drafts."""
        bounds = [step._own_bound(drafts) for step in self._steps]
        return bounds[0] if len(bounds) == 1 else LeastBound(bounds)

    def with_drafts(self, drafts: SimulatedDrafts | None) -> SimulationConfig:
        """Return the setting of the step with these drafts."""
        return replace(self.setting, drafts=drafts)

    def _generates_as(self, other: WholeStep) -> None:
        """Reuse another step's generation plans, timings and bounds; the steps differ only in their costs of learning."""
        self._generations, self._generated, self._bounds = other._generations, other._generated, other._bounds
        if self._of_part is not None and other._of_part is not None:
            self._of_part._generates_as(other._of_part)

    def _source(self, drafts: SimulatedDrafts | None, levers: frozenset[str], variant: int) -> PairSource:
        """Return everything needed to build and time pairs with these drafts; a large step is represented by a part of it."""
        of = self if self._of_part is None else self._of_part
        ratio = 1.0 if self.part is None else self.part.ratio
        return PairSource(of._plans(drafts), of.works, of.costs, of.most, ratio, levers, variant)

    def _scaled(self, found: WholeStepCandidates, drafts: SimulatedDrafts | None) -> WholeStepCandidates:
        """Return the plans of the step itself for those that were timed on a part of it."""
        plans, fits = [], []
        for number, plan in enumerate(found.plans):
            step = self.of_plan(plan)
            if step.part is not None and step._of_part is not None:
                plan = step.part.scaled(plan, step._of_part._plans(drafts), step._plans(drafts))
            plans.append(plan)
            if step.costs.charges.fits(plan.way.servers(plan.generation.way.actors)):
                fits.append(number)
        return replace(found, plans=tuple(plans)).chosen(fits)

    def _fitted(self, choice: WholeStepChoice, aim: Aim, drafts: SimulatedDrafts | None = None) -> WholeStepChoice:
        """Return a choice whose plan suits the whole step, with what it is expected to take there."""
        plan = self.fitted(choice.plan, aim, drafts)
        if plan.of_part is None:
            return choice
        totals = self._timed(plan)
        return replace(choice, plan=plan, times_s=totals[:, 0], gpu_s=totals[:, 1])

    def _timed(self, plan: WholeStepPlan) -> FloatArray:
        """Return (S, 2) seconds and GPU-seconds of a plan, which is executed on some scenarios if it folds.

        What a plan takes on a part is corrected by what it takes on the whole step, in the mean of some scenarios. There a plan
        that folds counts as the one that does not.
        """
        step = self.of_plan(plan)
        if plan.of_part is None or step._of_part is None:
            return np.asarray(scenario_totals([plan], step.works, step.costs, estimated=False)[0])
        part = step._of_part
        totals = scenario_totals([plan.of_part], part.works, part.costs, estimated=False)[0]
        of_whole = step._on_scenarios(plan)
        return np.asarray(totals * (of_whole / part._on_scenarios(plan.of_part, len(of_whole))).mean(axis=0))

    def _on_scenarios(self, plan: WholeStepPlan, count: int | None = None) -> FloatArray:
        """Return (K, 2) seconds and GPU-seconds of a plan with this size of actors on the first K scenarios."""
        count = count or min(len(self.cases), math.ceil(CHECKED_RESPONSES / len(self.logged.truth)))
        return np.array([on_scenario(plan, self.works[i], self.costs, self.most, i) for i in range(count)])

    def _plans(self, drafts: SimulatedDrafts | None) -> StepGenerations:
        """Return the plans of generation with these drafts, or without any."""
        key = self._key(drafts)
        if key not in self._generations:
            self._generations[key] = StepGenerations(self.logged, self.with_drafts(drafts), drafts is not None)
        return self._generations[key]

    def _own_bound(self, drafts: SimulatedDrafts | None) -> WholeStepBound:
        key = self._key(drafts)
        if key not in self._bounds:
            self._bounds[key] = self._generation_bound(drafts)
        return whole_step_bound(self._bounds[key], self.work)

    def _key(self, drafts: SimulatedDrafts | None) -> int:
        """Return the cache key of these drafts. The object is kept alive, so that Python does not reuse its ``id``."""
        self._drafts[id(drafts)] = drafts
        return id(drafts)

    def _generation_bound(self, drafts: SimulatedDrafts | None) -> ScheduleBound:
        if drafts is None:
            return self.logged.bound(self.setting)
        planner = self._plans(None).planner
        drafting = replace(planner.plan(GenerationWay(RANDOM, planner.best)), drafting=Drafting())
        return bound_with_drafts(self.with_drafts(drafts), self.logged, drafting)

    def _engines(self, plan: Plan, drafts: SimulatedDrafts | None) -> EngineFactory:
        return SimulatedEngine if plan.drafting is None else drafted_engines(self.with_drafts(drafts), self.logged, plan, False)

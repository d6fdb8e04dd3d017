"""Plans a whole step with all levers from forecasts, executes plans on the true lengths, and bounds every one of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import EngineFactory, StepRecord
from rlhfless.scheduling.calibration import calibrated
from rlhfless.simulate.drafted_steps import bound_with_drafts, drafted_engines
from rlhfless.simulate.drafts import SimulatedDrafts
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.traces import trace_of
from rlhfless.simulate.whole_steps.aim import Aim
from rlhfless.simulate.whole_steps.candidates import WholeStepCandidates, WholeStepPlan, candidates
from rlhfless.simulate.whole_steps.choice import WholeStepChoice, best_of, choose
from rlhfless.simulate.whole_steps.generated import GeneratedStep, executed, executed_record, requests_of
from rlhfless.simulate.whole_steps.generation_plans import GenerationPlans, scenario_lengths, with_lengths
from rlhfless.simulate.whole_steps.levers import LEVERS, SHARED_PREFILL
from rlhfless.simulate.whole_steps.published import Totals
from rlhfless.simulate.whole_steps.step_costs import StepCosts
from rlhfless.simulate.whole_steps.step_part import StepPart
from rlhfless.trace import Trace
from solver.model.drafting import Drafting
from solver.model.plan import Plan
from solver.stage_fusion.whole_step_bound import WholeStepBound, whole_step_bound


class WholeStep:
    """One step of a log as a whole: generation, preparation, learning and weight sync.

    Args:
        logged: the step, with its forecast and its true lengths. setting: cluster, latency and admission; its drafts do not
            count. costs: preparation, learning and charges of a learner.

    Example:
        >>> import rlhfless as rl, solver
        >>> from rlhfless.simulate import Aim, StepCosts, WholeStep
        >>> planned = rl.load(rl.example(), verbose=False).plan()
        >>> step = WholeStep(planned.logged, planned.setting, StepCosts(2e-5, 8e-5))
        >>> choice = step.plan(Aim(time_weight=0.7))
        >>> time_s, gpu_s = step.execute(choice.plan)
        >>> step.bound().gpu_seconds(time_s) <= gpu_s
        True
    """

    def __init__(self, logged: LoggedStep, setting: SimulationConfig, costs: StepCosts) -> None:
        self.logged, self.setting, self.costs = logged, replace(setting, drafts=None), costs
        self.requests = logged.requests()
        self.gpus_per_actor, self.most = setting.cluster.gpus_per_actor, setting.cluster.max_actors
        self.work = costs.work(logged.truth, self.gpus_per_actor)
        predicted = calibrated(*logged.inputs(self.setting)).workload
        lengths = scenario_lengths(predicted)
        limit = logged.truth.max_response_tokens
        self.cases = [with_lengths(predicted, own, limit) for own in lengths]
        self.works = [costs.work(case, self.gpus_per_actor) for case in self.cases]
        self.part = StepPart.of(logged, self.setting, costs)
        self._of_part = None if self.part is None else WholeStep(self.part.logged, self.part.setting, self.part.costs)
        self._candidates: dict[int, WholeStepCandidates] = {}
        self._generated: dict[tuple[int, int], tuple[Plan, GeneratedStep]] = {}

    def candidates(self, drafts: SimulatedDrafts | None = None) -> WholeStepCandidates:
        """Return the plans to choose from; with drafts, those without them are among them."""
        if id(drafts) not in self._candidates:
            found = self._timed(drafts)
            self._candidates[id(drafts)] = found if drafts is None else self.candidates().joined(found)
        return self._candidates[id(drafts)]

    def plan(self, aim: Aim, drafts: SimulatedDrafts | None = None, levers: Collection[str] = LEVERS) -> WholeStepChoice:
        """Return the plan that is chosen from forecasts, with at most these levers."""
        return choose(self.candidates(drafts).within(levers), aim)

    def plain(self, time_weight: float, prefix_caching: bool = False) -> WholeStepChoice:
        """Return elastic plain: the right-sized random split, released when done, learned from on all GPUs after generation.

        Args:
            prefix_caching: an actor computes a prompt once for all its samples, as engines do by default today. Where every
                prompt has one response this changes nothing.
        """
        several = len(self.logged.truth) > len(np.unique(self.logged.truth.prompt_of))
        levers = frozenset({SHARED_PREFILL} if prefix_caching and several else ())
        found = self.candidates()
        own = [number for number, plan in enumerate(found.plans) if plan.levers == levers]
        return best_of(found.chosen(own), Aim(time_weight=time_weight))

    def generated(self, plan: Plan, drafts: SimulatedDrafts | None = None) -> GeneratedStep:
        """Return the generation of a plan on the true lengths; it is executed once."""
        key = id(plan), id(drafts) if plan.drafting is not None else 0
        if key not in self._generated:
            self._generated[key] = plan, executed(plan, self.requests, self.setting, engines=self._engines(plan, drafts))
        return self._generated[key][1]

    def execute(self, plan: WholeStepPlan, drafts: SimulatedDrafts | None = None) -> Totals:
        """Return seconds and GPU-seconds of a plan on the true lengths.

        They are those of ``record``, whose work items run by the same list scheduler.
        """
        return plan.way.totals(self.generated(plan.generation.plan, drafts), self.work, self.costs)

    def record(self, plan: WholeStepPlan, drafts: SimulatedDrafts | None = None) -> StepRecord:
        """Return the executor's record of a plan on the true lengths, with preparation and learning as work items."""
        own, cluster = plan.generation.plan, self.setting.cluster
        items = plan.way.items(self.work, self.costs, len(own.actors), cluster)
        engines = self._engines(own, drafts)
        run, step = str(self.logged.rows["run"].iloc[0]), self.logged.step
        return executed_record(own, self.requests, self.setting, self.setting.latency, engines, items, run=run, step=step)

    def trace(self, plan: WholeStepPlan, drafts: SimulatedDrafts | None = None) -> Trace:
        """Return the trace of a plan that is run on the true lengths."""
        return trace_of([(self.record(plan, drafts), self.logged)], self.setting, plan.generation.plan.policy)

    def on_scenario(self, plan: Plan) -> GeneratedStep:
        """Return the generation of a plan on the typical scenario."""
        return executed(plan, requests_of(self.cases[0]), self.setting)

    def bound(self, drafts: SimulatedDrafts | None = None) -> WholeStepBound:
        """Return the bound on every policy, with these drafts or without any."""
        if drafts is None:
            return whole_step_bound(self.logged.bound(self.setting), self.work, self.costs.charges)
        drafting = replace(self.plain(1.0).plan.generation.plan, drafting=Drafting())
        generation = bound_with_drafts(self.with_drafts(drafts), self.logged, drafting)
        return whole_step_bound(generation, self.work, self.costs.charges)

    def with_drafts(self, drafts: SimulatedDrafts | None) -> SimulationConfig:
        """Return the setting of the step with these drafts."""
        return replace(self.setting, drafts=drafts)

    def _timed(self, drafts: SimulatedDrafts | None) -> WholeStepCandidates:
        """Return the plans with these drafts, or those without any; those of a large step are timed on a part of it."""
        generations = GenerationPlans(self.logged, self.with_drafts(drafts), drafts is not None)
        if self.part is None or self._of_part is None:
            return candidates(generations.candidates(), self.works, self.costs, self.most)
        return self.part.scaled(self._of_part._timed(drafts), generations)

    def _engines(self, plan: Plan, drafts: SimulatedDrafts | None) -> EngineFactory:
        return SimulatedEngine if plan.drafting is None else drafted_engines(self.with_drafts(drafts), self.logged, plan, False)

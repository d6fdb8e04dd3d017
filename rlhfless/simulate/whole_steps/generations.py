"""Candidates for the generation of a whole step, each timed on every scenario of the forecast lengths."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rlhfless.engine.simulated.accepted_runs import SPREAD
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.requests import Requests
from rlhfless.executor import EngineFactory
from rlhfless.scheduling.calibration import calibrated
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.simulate.drafted_steps import drafted_engines
from rlhfless.simulate.plan_bounds import bound_with_drafts
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.whole_steps.assignments import RANDOM, RESPONSES, Assignment, Assignments
from rlhfless.simulate.whole_steps.generated import executed, requests_of
from solver.bounds.schedules import ScheduleBound
from solver.model.acceptance import Acceptance
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.step_levers import CONSOLIDATION, DRAFTS
from solver.model.workload import IntArray, Workload
from solver.step.cut_timeline import CutTimeline
from solver.step.follow import Generated
from solver.step.work import Learner
from solver.timing.drafted_latency import drafted


@dataclass(eq=False)
class Generation:
    """A plan of generation, and what it takes on each scenario of the lengths.

    Attributes:
        step: whose generation it is. assignment: of the responses. levers: that it uses.
    """

    step: Generations
    assignment: Assignment
    levers: frozenset[str]
    timed: dict[int, Generated] = field(default_factory=dict, repr=False)

    @cached_property
    def plan(self) -> Plan:
        """Return the plan, which decodes with drafts where those are given."""
        return self.step.plan(self.assignment)

    def on(self, scenario: int) -> Generated:
        """Return what it takes on a scenario; it is timed once."""
        if scenario not in self.timed:
            self.step.time([self], [scenario])
        return self.timed[scenario]

    @property
    def makespan_s(self) -> float:
        """Return the makespan on the typical scenario, the first."""
        return self.on(0).makespan_s

    @cached_property
    def unfolded(self) -> Generation | None:
        """Return the candidate that assigns as many actors and does not fold; None where this one does not fold, either."""
        return self.step.of(replace(self.assignment, by=RESPONSES)) if CONSOLIDATION in self.levers else None

    def estimated(self, scenario: int, executed_on: int = 1) -> Generated:
        """Return what it takes on a scenario. A plan that folds is executed on some only, as that takes long.

        On the others its seconds and GPU-seconds stand to those of the plan that does not fold as in the mean of the executed
        ones.

        Args:
            executed_on: scenarios, the first ones, on which a plan that folds is executed; 1 or more.
        """
        like = self.unfolded
        if like is None or scenario < executed_on:
            return self.on(scenario)
        ratios = [
            (self.on(i).makespan_s / like.on(i).makespan_s, self.on(i).gpu_seconds / like.on(i).gpu_seconds)
            for i in range(executed_on)
        ]
        own, other = self.on(0), like.on(scenario)
        time_ratio, cost_ratio = np.mean(ratios, axis=0)
        slower = time_ratio * other.makespan_s / own.makespan_s
        return Generated(own.completion_s * slower, own.free_s * slower, cost_ratio * other.gpu_seconds)

    @cached_property
    def engines(self) -> EngineFactory:
        """Return the simulated engines that decode with the true lengths, and accept what the drafts say."""
        if self.plan.drafting is None:
            return SimulatedEngine
        return drafted_engines(self.step.setting, self.step.logged, self.plan, clairvoyant=False)

    @cached_property
    def executed(self) -> Generated:
        """Return the generation with the true lengths."""
        return executed(self.plan, self.step.requests, self.step.setting, engines=self.engines)


class WholeStepPlan(NamedTuple):
    """A generation and a learner, with the levers that they use.

    ``variant`` is the number of the step's variant (actor size and layouts) that it is of; 0: the step's own. ``of_part`` is
    the plan of a part of the step that it is scaled from; None where it is made for the step itself.
    """

    generation: Generation
    learner: Learner
    levers: frozenset[str]
    variant: int = 0
    of_part: WholeStepPlan | None = None


class Generations:
    """Candidates for the generation of one step with one size of actors.

    Args:
        setting: with drafts, responses decode with them. They are planned with the latency that drafts make, on lengths in
            proportion to what each response accepts.

    Attributes:
        cases: workload of each scenario; the first one has the median of all tokens.
    """

    def __init__(self, logged: LoggedStep, setting: SimulationConfig) -> None:
        problem, options = logged.inputs(setting)
        self.logged, self.setting, self.acceptance = logged, setting, None
        known = calibrated(problem, options)
        latency, lengths = setting.latency, _scenario_lengths(known.workload)
        if setting.drafts is not None:
            self.acceptance = options.acceptance
            assert self.acceptance is not None, "a setting with drafts knows what they accept"
            latency = drafted(latency, self.acceptance)
            lengths = _scaled(lengths, self.acceptance, options.seed)
            known = replace(known, latency=latency)
        limit = max(int(lengths.max()), problem.workload.max_response_tokens)
        self.cases = [with_lengths(problem.workload, own, limit) for own in lengths]
        self.latency, self.assignments = latency, Assignments(known, options)
        self._made: dict[Assignment, Generation] = {}

    @cached_property
    def requests(self) -> Requests:
        """Return one request per response with its true length."""
        return self.logged.requests()

    @cached_property
    def bound(self) -> ScheduleBound:
        """Return the bound on every generation with the true lengths, and with the drafts where they are given."""
        if self.setting.drafts is None:
            return self.logged.bound(self.setting)
        drafting = self.of(Assignment(RANDOM, self.assignments.best)).plan
        return bound_with_drafts(self.setting, self.logged, drafting)

    def of(self, assignment: Assignment) -> Generation:
        """Return the candidate with this assignment; its plan is made when it is needed."""
        if assignment not in self._made:
            levers = assignment.levers | ({DRAFTS} if self.acceptance is not None else set())
            self._made[assignment] = Generation(self, assignment, levers)
        return self._made[assignment]

    def candidates(self) -> list[Generation]:
        """Return the candidates that do not fold, timed on the typical scenario of the calibrated ones.

        They are the random split of whole prompts on every number of actors, with shared prefill and without, and single
        responses assigned by predicted length. Whole prompts are assigned so, too, and share their prefill. What is assigned by
        length may have RLHFuse's cut. A candidate is left out if another one with as many actors and no more levers is as fast
        and as cheap.
        """
        found = [self.of(assignment) for assignment in self.assignments]
        self.time(found, [0])
        by_actors: dict[int, list[Generation]] = {}
        for one in found:
            by_actors.setdefault(one.assignment.actors, []).append(one)
        return [one for one in found if not any(_dominates(other, one) for other in by_actors[one.assignment.actors])]

    def folding(self) -> list[Generation]:
        """Return the candidate that folds, executed on the typical scenario; none where that changes or improves nothing."""
        one = self.of(self.assignments.folded)
        useless = one.plan.rule is None or (one.unfolded is not None and _dominates(one.unfolded, one))
        return [] if useless else [one]

    def time(self, generations: Collection[Generation], scenarios: Iterable[int]) -> None:
        """Time candidates on scenarios. Those that differ in their cut only share the timeline until then."""
        by_uncut: dict[Assignment, list[Generation]] = {}
        for one in generations:
            by_uncut.setdefault(one.assignment.uncut, []).append(one)
        for scenario in scenarios:
            for several in by_uncut.values():
                line = None
                for one in several:
                    if scenario in one.timed:
                        continue
                    plan = self.assignments.plan(one.assignment)
                    if line is None and isinstance(plan.rule, GlobalCut | None):
                        line = CutTimeline(plan, self.cases[scenario], self.latency.affine, self.setting.admission)
                    one.timed[scenario] = expected(plan, self.cases[scenario], self.setting, self.latency, line)

    def plan(self, assignment: Assignment) -> Plan:
        """Return the plan of an assignment, which decodes with drafts where those are given."""
        plan = self.assignments.plan(assignment)
        return plan if self.acceptance is None else replace(plan, drafting=Drafting(), acceptance=self.acceptance)


def expected(
    plan: Plan, case: Workload, setting: SimulationConfig, latency: LatencyModel, line: CutTimeline | None = None
) -> Generated:
    """Return the generation of a plan on lengths: by the planner's timeline, or executed where a rule folds or no cut fits.

    Args:
        line: the plan's timeline on these lengths, where it is known; that of another cut of the same actors is the same.
    """
    rule = plan.rule
    if rule is None or isinstance(rule, GlobalCut):
        line = line or CutTimeline(plan, case, latency.affine, setting.admission)
        state = None if rule is None else line.at(rule.threshold)
        return line.uncut if state is None or rule is None else line.cut_to_fewest(state, rule.keep or 1)
    return executed(plan, requests_of(case), setting, latency)


def with_lengths(workload: Workload, lengths: IntArray, limit: int) -> Workload:
    """Return a workload of the same prompts with other lengths."""
    return Workload(workload.prompt_tokens, workload.prompt_of, lengths, max_response_tokens=limit)


def _scenario_lengths(workload: Workload) -> IntArray:
    """Return the (S, R) lengths of a workload's scenarios; the first one has the median of all tokens."""
    assert workload.scenarios is not None, "whole steps are planned on scenarios"
    by_tokens = np.argsort(workload.scenarios.sum(axis=1), kind="stable")
    typical = int(by_tokens[len(by_tokens) // 2])
    others = [scenario for scenario in range(len(workload.scenarios)) if scenario != typical]
    return np.asarray(workload.scenarios[[typical, *others]])


def _dominates(other: Generation, one: Generation) -> bool:
    """Return whether a candidate with as many actors and no more levers is as fast and cheap on the typical scenario."""
    if other is one or not other.levers <= one.levers:
        return False
    first, second = ((run.makespan_s, run.gpu_seconds) for run in (other.on(0), one.on(0)))
    return first[0] <= second[0] and first[1] <= second[1] and first != second


def _scaled(lengths: IntArray, acceptance: Acceptance, seed: int) -> IntArray:
    """Return (S, R) lengths times the mean of tokens per pass over those of each response, as simulated drafts differ."""
    powers = np.exp(SPREAD * np.random.default_rng(seed).standard_normal(lengths.shape))
    per_pass = 1 + (acceptance.survival[None, None, :] ** powers[:, :, None]).sum(axis=2)
    scaled = lengths * acceptance.tokens_per_pass(acceptance.max_draft_tokens) / per_pass
    return np.asarray(np.maximum(1, np.rint(scaled)), dtype=np.int64)

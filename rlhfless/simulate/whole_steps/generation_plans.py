"""Candidates for the generation of a whole step, each timed on every scenario of the forecast lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from rlhfless.engine.simulated.accepted_runs import SPREAD
from rlhfless.scheduling.calibration import calibrated
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.whole_steps.generated import GeneratedStep, executed, requests_of
from rlhfless.simulate.whole_steps.generation_way import RESPONSES, GenerationPlanner, GenerationWay
from solver.model.acceptance import Acceptance
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.step_levers import CONSOLIDATION, DRAFTS
from solver.model.workload import IntArray, Workload
from solver.step.cut_timeline import CutTimeline
from solver.timing.drafted_latency import drafted

KEPT_TIMELINES = 5  # plans with one number of actors deal their responses in four ways


class GenerationPlan:
    """A plan of generation, and what it takes on each scenario of the lengths.

    Args:
        way: to generate. levers: that it uses. make: returns the plan, which is executed on true lengths. run:
            executes a plan on the scenario of a number. like: of a plan that folds, the one that deals as many actors and
            does not.
    """

    def __init__(
        self, way: GenerationWay, levers: frozenset[str], make: Callable[[], Plan], run: Callable[[Plan, int], GeneratedStep],
        like: GenerationPlan | None = None,
    ) -> None:  # fmt: skip
        self.way, self.levers, self.like, self._make, self._run = way, levers, like, make, run
        self._executed: dict[int, GeneratedStep] = {}

    @cached_property
    def plan(self) -> Plan:
        """Return the plan."""
        return self._make()

    def on(self, scenario: int) -> GeneratedStep:
        """Return its execution on a scenario; it is executed once."""
        if scenario not in self._executed:
            self._executed[scenario] = self._run(self.plan, scenario)
        return self._executed[scenario]

    def estimated(self, scenario: int, executed_on: int = 1) -> GeneratedStep:
        """Return its execution on a scenario. A plan that folds is executed on some only, as that takes long.

        On the others its seconds and GPU-seconds stand to those of the plan that does not fold as in the mean of the executed
        ones.

        Args:
            executed_on: scenarios, the first ones, on which a plan that folds is executed; 1 or more.
        """
        like = self.like
        if like is None or scenario < executed_on:
            return self.on(scenario)
        ratios = [
            (self.on(i).makespan_s / like.on(i).makespan_s, self.on(i).gpu_seconds / like.on(i).gpu_seconds)
            for i in range(executed_on)
        ]
        own, other = self.on(0), like.on(scenario)
        time_ratio, cost_ratio = np.mean(ratios, axis=0)
        slower = time_ratio * other.makespan_s / own.makespan_s
        return GeneratedStep(self.plan, own.completion_s * slower, own.free_s * slower, cost_ratio * other.gpu_seconds)

    @property
    def makespan_s(self) -> float:
        """Return the makespan on the typical scenario, the first."""
        return self.on(0).makespan_s


class StepGenerations:
    """Plans of the generation of one step.

    Args:
        drafts: decode with drafts, whose acceptance the setting states. They are planned with the latency that drafts make,
            on lengths in proportion to what each response accepts.
    """

    def __init__(self, logged: LoggedStep, setting: SimulationConfig, drafts: bool = False) -> None:
        problem, options = logged.inputs(setting)
        self.known, self.setting, self.drafts, self.acceptance = calibrated(problem, options), setting, drafts, None
        latency, lengths = setting.latency, scenario_lengths(self.known.workload)
        if drafts:
            self.acceptance = options.acceptance
            assert self.acceptance is not None, "a setting with drafts knows what they accept"
            latency = drafted(latency, self.acceptance, Drafting().kv_reads)
            lengths = _scaled(lengths, self.acceptance, options.seed)
            self.known = replace(self.known, latency=latency)
        limit = max(int(lengths.max()), problem.workload.max_response_tokens)
        self.cases = [with_lengths(problem.workload, own, limit) for own in lengths]
        self.latency, self.planner = latency, GenerationPlanner(self.known, options)
        self.lines = _Timelines(self.cases, latency.affine, setting.admission)
        self._made: dict[GenerationWay, GenerationPlan] = {}

    def of(self, way: GenerationWay) -> GenerationPlan:
        """Return the plan of a way to generate, which is made when it is needed."""
        if way not in self._made:
            levers = way.levers | ({DRAFTS} if self.drafts else set())
            like = self.of(replace(way, deal=RESPONSES)) if CONSOLIDATION in levers else None
            self._made[way] = GenerationPlan(way, levers, lambda: self._plan(way), self._run, like)
        return self._made[way]

    def candidates(self) -> list[GenerationPlan]:
        """Return the candidates that do not fold, executed on the typical scenario of the calibrated ones.

        They are the random split of whole prompts on every number of actors, with shared prefill and without, and single
        responses assigned by predicted length. Whole prompts are dealt so, too, and share their prefill. Dealt responses may
        have RLHFuse's cut. A candidate is left out if another one with as many actors and no more levers is as fast and as
        cheap.
        """
        found = [self.of(way) for way in self.planner.ways()]
        by_actors: dict[int, list[GenerationPlan]] = {}
        for one in found:
            one.on(0)
            by_actors.setdefault(one.way.actors, []).append(one)
        return [one for one in found if not any(_dominates(other, one) for other in by_actors[one.way.actors])]

    def folding(self) -> list[GenerationPlan]:
        """Return the candidate that folds, executed on the typical scenario; none where that changes or improves nothing."""
        one = self.of(self.planner.folded)
        useless = one.plan.rule is None or (one.like is not None and _dominates(one.like, one))
        return [] if useless else [one]

    def _plan(self, way: GenerationWay) -> Plan:
        plan = self.planner.plan(way)
        return replace(plan, drafting=Drafting(), acceptance=self.acceptance) if self.drafts else plan

    def _run(self, plan: Plan, scenario: int) -> GeneratedStep:
        """Return the generation of a plan on a scenario, whose drafts are in its latency and lengths."""
        planned = replace(plan, drafting=None, acceptance=None) if self.drafts else plan
        return expected(planned, self.cases[scenario], self.setting, self.latency, self.lines.of(planned, scenario))


class _Timelines:
    """Timelines of plans on scenarios. The last few are kept, as plans that differ in their cut have the same one.

    Args:
        cases: lengths of each scenario. latency, rule: of every timeline.
    """

    def __init__(self, cases: Sequence[Workload], latency: LatencyModel, rule: str) -> None:
        self.cases, self.latency, self.rule = cases, latency, rule
        self.kept: dict[tuple[int, int], CutTimeline] = {}

    def of(self, plan: Plan, scenario: int) -> CutTimeline | None:
        """Return the timeline of a plan, or of another one with the same actors; None where the plan's rule needs another."""
        if not isinstance(plan.rule, GlobalCut | None):
            return None
        key = id(plan.actors), scenario
        if key not in self.kept:
            if len(self.kept) == KEPT_TIMELINES:
                del self.kept[next(iter(self.kept))]
            self.kept[key] = CutTimeline(plan, self.cases[scenario], self.latency, self.rule)
        return self.kept[key]


def expected(
    plan: Plan, case: Workload, setting: SimulationConfig, latency: LatencyModel, line: CutTimeline | None = None
) -> GeneratedStep:
    """Return the generation of a plan on lengths: by the planner's timeline, or executed where a rule folds or no cut fits.

    Args:
        line: the plan's timeline on these lengths, where it is known.
    """
    rule = plan.rule
    if rule is None or isinstance(rule, GlobalCut):
        line = line or CutTimeline(plan, case, latency.affine, setting.admission)
        state = None if rule is None else line.at(rule.threshold)
        generated = line.uncut if state is None or rule is None else line.cut_to_fewest(state, rule.keep or 1)
        gpu_s = setting.cluster.gpus_per_actor * float((generated.free_s - [a.start_s for a in plan.actors]).sum())
        return GeneratedStep(plan, generated.completion_s, generated.free_s, gpu_s)
    return executed(plan, requests_of(case), setting, latency)


def scenario_lengths(workload: Workload) -> IntArray:
    """Return the (S, R) lengths of a workload's scenarios; the first one has the median of all tokens."""
    assert workload.scenarios is not None, "whole steps are planned on scenarios"
    by_tokens = np.argsort(workload.scenarios.sum(axis=1), kind="stable")
    typical = int(by_tokens[len(by_tokens) // 2])
    others = [scenario for scenario in range(len(workload.scenarios)) if scenario != typical]
    return np.asarray(workload.scenarios[[typical, *others]])


def _dominates(other: GenerationPlan, one: GenerationPlan) -> bool:
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


def with_lengths(workload: Workload, lengths: IntArray, limit: int) -> Workload:
    """Return a workload of the same prompts with other lengths."""
    return Workload(workload.prompt_tokens, workload.prompt_of, lengths, max_response_tokens=limit)

"""Candidates for the generation of a whole step, each timed on every scenario of the forecast lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from rlhfless.engine.simulated.accepted_runs import SPREAD
from rlhfless.scheduling.baselines import Random
from rlhfless.scheduling.calibration import calibrated
from rlhfless.scheduling.fold import Fold
from rlhfless.scheduling.fold_draining import DrainingFold
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.scheduling.round_robin import Spread
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.simulate.whole_steps.generated import GeneratedStep, executed, requests_of
from rlhfless.simulate.whole_steps.learner_way import server_counts
from rlhfless.simulate.whole_steps.levers import ASSIGNMENT, CUT, DRAFTS, FOLDING, SHARED_PREFILL
from solver.model.acceptance import Acceptance
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray, Workload
from solver.planning.canonical_order import Canonical
from solver.planning.random_split import assign_prompts
from solver.stage_fusion.cut_timeline import CutTimeline
from solver.timing.build_plan import assemble
from solver.timing.drafted_latency import drafted

CUT_SHARES = (0.15, 0.4)
KEPT_TIMELINES = 4  # plans with one number of actors deal their responses in three ways
MORE_ACTORS = 2  # than the right-sized random split has, that a plan may start


class GenerationPlan:
    """A plan of generation, and what it takes on each scenario of the lengths.

    Args:
        plan: to be executed on true lengths. levers: that it uses. run: executes it on the scenario of a number.
    """

    def __init__(self, plan: Plan, levers: frozenset[str], run: Callable[[int], GeneratedStep]) -> None:
        self.plan, self.levers, self._run = plan, levers, run
        self._executed: dict[int, GeneratedStep] = {}

    def on(self, scenario: int) -> GeneratedStep:
        """Return its execution on a scenario; it is executed once."""
        if scenario not in self._executed:
            self._executed[scenario] = self._run(scenario)
        return self._executed[scenario]

    @property
    def makespan_s(self) -> float:
        """Return the makespan on the typical scenario, the first."""
        return self.on(0).makespan_s


def generation_plans(logged: LoggedStep, setting: SimulationConfig, drafts: bool = False) -> list[GenerationPlan]:
    """Return the candidates, executed on the calibrated scenarios of a step.

    They are the random split of whole prompts on every number of actors, with shared prefill and without, and single responses
    dealt by predicted length. Whole prompts are dealt so, too, and share their prefill. Dealt responses may have RLHFuse's cut,
    and one plan folds. A candidate is left out if another one with as many actors and no more levers is as fast and as cheap.

    Args:
        drafts: decode with drafts, whose acceptance the setting states. They are planned with the latency that drafts make,
            on lengths in proportion to what each response accepts.
    """
    problem, options = logged.inputs(setting)
    known = calibrated(problem, options)
    latency, lengths = setting.latency, scenario_lengths(known.workload)
    if drafts:
        assert options.acceptance is not None, "a setting with drafts knows what they accept"
        latency = drafted(latency, options.acceptance, Drafting().kv_reads)
        lengths = _scaled(lengths, options.acceptance, options.seed)
        known = replace(known, latency=latency)
    limit = max(int(lengths.max()), problem.workload.max_response_tokens)
    cases = [with_lengths(problem.workload, own, limit) for own in lengths]
    found, lines = [], _Timelines(cases, latency.affine, setting.admission)
    for planned, levers in _plans(known, options):

        def run(scenario: int, planned: Plan = planned) -> GeneratedStep:
            return expected(planned, cases[scenario], setting, latency, lines.of(planned, scenario))

        plan, used = planned, levers
        if drafts:
            plan, used = replace(planned, drafting=Drafting(), acceptance=options.acceptance), levers | {DRAFTS}
        found.append(GenerationPlan(plan, used, run))
        found[-1].on(0)
    return [one for one in found if not any(_dominates(other, one) for other in found)]


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
        generated = line.uncut
        if state is not None and rule is not None:  # as the rule does: more actors are kept where so few have no room
            cuts = (line.cut(state, keep) for keep in range(rule.keep or 1, len(plan.actors)))
            generated = next((cut for cut in cuts if cut is not None), line.uncut)
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


def _plans(problem: PlanningProblem, options: PlanningOptions) -> Iterator[tuple[Plan, frozenset[str]]]:
    """Return plans, and the levers of each.

    The random split is that of ``random_split``. Its shuffle depends on the scenarios, which are not timed here.
    """
    best = len(Random().plan(problem, options).actors)
    canonical = Canonical.of(problem.workload)
    shuffled = np.random.default_rng(options.seed).permutation(np.unique(canonical.workload.prompt_of))
    points = replace(problem, workload=problem.workload.points)
    prompts, total = len(shuffled), len(problem.workload)
    most = min(problem.one_kind[0].max_actors, prompts, best + MORE_ACTORS)
    for actors in server_counts(most, best):
        dealt = [canonical.response[group] for group in assign_prompts(canonical.workload, shuffled, actors)]
        yield assemble("random", dealt, points), frozenset()
        static = [(_dealt(points, np.arange(total), actors), frozenset([ASSIGNMENT]))]
        if prompts < total:
            shared = replace(points, share_prefill=True)
            yield assemble("random", dealt, shared), frozenset([SHARED_PREFILL])
            static.append((_dealt(shared, problem.workload.prompt_of, actors), frozenset([ASSIGNMENT, SHARED_PREFILL])))
        yield from static
        for share, keep in product(CUT_SHARES, sorted({1, actors // 2}) if actors > 1 else ()):
            rule = GlobalCut(max(1, round(share * total)), total, keep=keep)
            yield from ((replace(plan, rule=rule), levers | {CUT}) for plan, levers in static)
    folded = Fold(Spread(actors=min(most, best + 1)), rule=DrainingFold).plan(problem, options)
    if folded.rule is not None:
        yield folded, frozenset([ASSIGNMENT, FOLDING])


def _dealt(problem: PlanningProblem, item_of: IntArray, actors: int) -> Plan:
    """Return a plan that deals items (responses, or prompts with all their responses) by predicted tokens, back and forth."""
    tokens = np.bincount(item_of, weights=problem.workload.response_tokens)
    items = np.argsort(-tokens, kind="stable")
    rounds, place = np.divmod(np.arange(len(items)), actors)
    actor_of = np.zeros(len(items), np.int64)
    actor_of[items] = np.where(rounds % 2, actors - 1 - place, place)
    longest_first = np.lexsort((-problem.workload.response_tokens, -tokens[item_of]))
    groups = [longest_first[actor_of[item_of[longest_first]] == actor] for actor in range(actors)]
    return assemble("dealt", groups, problem)


def _dominates(other: GenerationPlan, one: GenerationPlan) -> bool:
    """Return whether another candidate with as many actors and no more levers is as fast and cheap on the typical scenario."""
    if other is one or not other.levers <= one.levers or len(other.plan.actors) != len(one.plan.actors):
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

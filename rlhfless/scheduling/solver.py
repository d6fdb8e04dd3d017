"""The policies ``solver`` and ``oracle``: the plan of ``solver.plan``, if it is significantly better than one without
predictions.

Predictions can be wrong, so a plan that is made for them must prove itself on held-out scenarios. Under a weight and with
scenarios a **fallback** that needs no prediction runs unless the plan is **surely better**. The fallback is the right-sized
random split, or round-robin with consolidation while the step runs (policy ``fold``), whichever is better over all
scenarios. What is consolidated may start with more actors than a static split, so a few numbers of actors are compared.

1. ``solver.plan`` plans on one half of the scenarios, and its plan is compared with the fallback on the other half; then the
   halves change places. (The best of many looks better than it is on the scenarios that it was chosen on.)
2. The plans of both halves must together be better by more than ``SURE`` standard errors of these paired differences. Only then
   one of them may run: the one that is better where errors are larger than they were (``stressed`` scenarios). It runs if it is
   also better than the fallback there and on all scenarios. Else the fallback runs.

Plans are made and compared on scenarios that are as far from their mean as the errors of earlier forecasts were
(rlhfless.scheduling.calibration). What consolidation does is estimated (``DrainingFold.estimated_busy_s``). It evens out
loads, so the estimate depends on the number of actors and not on who decodes what. The number of actors of ``solver.plan`` is
therefore one of those that consolidation starts with, and assigned groups are not consolidated.

**Sizes of actors.** With latency models of other sizes (``PlanningOptions.sizes``) all of this is done for every size alone.
The best of these plans is then the fallback that a plan of several sizes has to beat in the same way. Plans of several sizes
are not consolidated.

Under limits, for tails of the scenarios and for fewer than four of them, the plan of ``solver.plan`` runs as it is, or a plan
without predictions that is better on these scenarios. Known lengths are planned as they are. The halves are planned with the
quick setting. Planning does a counted amount of work, so the same problem has the same plan. It needs only lengths that are
known when the generation of the step before ends, so it runs while that step prepares and learns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import solver
from rlhfless.scheduling.assignments import Spread
from rlhfless.scheduling.calibration import calibrated, spread_in_words, stressed, with_scenarios
from rlhfless.scheduling.policy import PlanningOptions, check_inputs
from rlhfless.scheduling.rules import DrainingFold, Fold
from solver.generation.random_split import random_split
from solver.lengths.held_out import held_out
from solver.model.cluster import MixedCluster
from solver.model.errors import PlanningError
from solver.model.plan import Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray
from solver.timing.build_plan import timed
from solver.timing.evaluate import evaluate
from solver.timing.step_cost import Pricing, StepObjective

LEAST_SCENARIOS = 4  # that can be divided into two halves
SURE = 2.0  # standard errors by which a plan must be better than the fallback, which no wrong prediction can harm
MORE_ACTORS = 2  # by which consolidation may start with more actors than a static split
RANDOM_SPLIT = "random split: predicted lengths did not help"
ROUND_ROBIN = "round-robin: predicted lengths did not help"
CONSOLIDATION = "round-robin with consolidation: predicted lengths did not help"
ASSIGNED = "assignment by predicted lengths: it helped on held-out scenarios"
AS_GIVEN = "assignment by the lengths given"
WITHOUT = "no assignment by predicted lengths: better on the scenarios given"
DID_NOT_HELP = (
    "no plan by predicted lengths was better by more than two standard errors on held-out scenarios (sets of lengths that it "
    "was not planned for)."
)
WHY = {
    RANDOM_SPLIT: f"The random split runs: {DID_NOT_HELP}",
    ROUND_ROBIN: f"Round-robin runs, which needs no prediction: {DID_NOT_HELP}",
    CONSOLIDATION: (
        f"Round-robin runs, and nearly empty actors hand over their responses; this needs no prediction: {DID_NOT_HELP}"
    ),
    ASSIGNED: (
        "The assignment by predicted lengths runs: it is better than plans without predictions, by more than two standard "
        "errors on held-out scenarios (sets of lengths that it was not planned for)."
    ),
    AS_GIVEN: (
        "The assignment by the lengths given runs; plans are compared on held-out scenarios only under a weight, and where "
        "there are scenarios."
    ),
    WITHOUT: "A plan without predictions runs: it is better than the assignment by lengths on the scenarios given.",
}
"""``notes["chosen"]`` of a plan, for headings and tables -> the same as a sentence, which begins ``notes["why"]``."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """A plan that the policy may run. problem: that it was made for. words: its ``notes["chosen"]``."""

    plan: Plan
    problem: PlanningProblem
    words: str

    def values(self, like: PlanningProblem) -> FloatArray:
        """Return (S,) ``T^w C^(1-w)`` on the scenarios of ``like``."""
        return plan_values(self.plan, replace(self.problem, workload=like.workload))

    def key(self, like: PlanningProblem) -> tuple[float, float]:
        """Return what is least for the best plan on the scenarios of ``like`` (``Objective.key``)."""
        problem = replace(self.problem, workload=like.workload)
        return problem.objective.key(*step_of(self.plan, problem))


@dataclass(frozen=True)
class Solver:
    """Plan with ``solver.plan`` on the lengths of the workload; as ``oracle`` the policy requests the true ones. Under a weight
    and with scenarios, run a fallback without predictions unless the plan is surely better (see the module docstring).
    """

    name: str = "solver"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``. ``notes["chosen"]`` says in short what runs, ``notes["why"]`` why; with several sizes,
        ``notes["sizes"]`` has the value of each alone relative to that of the plan, by GPUs per actor.
        """
        check_inputs(problem, options)
        known = calibrated(problem, options) if is_compared(problem) else problem
        sizes = sizes_of(problem, options)
        alone = _of_each_size(sizes, known, options)
        best = min(alone, key=lambda one: one.key(known), default=None)
        chosen = best if best is not None and len(sizes) == 1 else _of_several_sizes(sizes, known, options, best)
        notes: dict[str, object] = {"chosen": chosen.words}
        why = [WHY[chosen.words]]
        if len(sizes) > 1:
            value = float(chosen.values(known).mean())
            relative = {one.problem.one_kind[0].gpus_per_actor: float(one.values(known).mean()) / value for one in alone}
            notes["sizes"] = {str(gpus): value for gpus, value in relative.items()}
            if relative:
                why.append(sizes_in_words(chosen.plan, relative))
        if is_compared(problem):
            proven = options.forecast is not None and options.forecast.error_sd is not None
            why.append(spread_in_words((known if proven else problem).workload))
        notes["why"] = " ".join(filter(None, why))
        plan = chosen.plan
        if chosen.words == ASSIGNED:  # its own numbers are those of one half of the scenarios
            plan = timed(without_proof(plan), like(chosen.problem, problem))
        return replace(plan, policy=self.name, notes={**plan.notes, **notes})


def is_compared(problem: PlanningProblem) -> bool:
    """Return whether a plan has to prove itself: under a weight, with scenarios that can be divided into halves."""
    objective, scenarios = problem.objective, problem.workload.scenarios
    return scenarios is not None and len(scenarios) >= LEAST_SCENARIOS and not objective.limited and objective.cvar_alpha == 1


def sizes_of(problem: PlanningProblem, options: PlanningOptions) -> list[PlanningProblem]:
    """Return the problem, and the same with actors of every other size that a node and a response's memory allow."""
    found = [problem]
    for model in options.sizes:
        try:
            cluster = replace(problem.one_kind[0], gpus_per_actor=model.gpus_per_actor)
            found.append(replace(problem, cluster=cluster, latency=model))
        except PlanningError:  # no node holds such an actor, or such an actor no response
            continue
    return found


def _of_each_size(sizes: Sequence[PlanningProblem], known: PlanningProblem, options: PlanningOptions) -> list[Chosen]:
    """Return what runs on actors of each size alone, without the sizes that cannot keep a limit.

    Raises:
        PlanningError: there is one size, and no plan of it was found.
    """
    found = []
    for size in sizes:
        try:
            found.append(_of_one_size(size, known, options))
        except PlanningError:
            if len(sizes) == 1:
                raise
    return found


def _of_one_size(problem: PlanningProblem, known: PlanningProblem, options: PlanningOptions) -> Chosen:
    """Return what runs on actors of one size: the fallback, or a plan that is surely better."""
    if not is_compared(problem):
        return _as_given(problem, options)
    mine = like(problem, known)
    halves = _halves(mine)
    plans = _planned_on(halves, options)
    split, *others = _fallbacks(problem, options, plans)
    fallbacks = [
        Chosen(split, problem, RANDOM_SPLIT),
        *(Chosen(plan, problem, ROUND_ROBIN if plan.rule is None else CONSOLIDATION) for plan in others),
    ]
    fallback = min(fallbacks, key=lambda one: float(one.values(mine).mean()))
    return _surely_better(fallback, plans, halves, mine, options) or fallback


def _as_given(problem: PlanningProblem, options: PlanningOptions) -> Chosen:
    """Return the plan for the lengths given, or one without predictions that is better on the scenarios given.

    Raises:
        PlanningError: neither keeps the limit.
    """
    refusal, made = None, []
    try:
        made.append(Chosen(planned(problem, options), problem, AS_GIVEN))
    except PlanningError as error:
        refusal = error
    if problem.workload.scenarios is not None:
        plans = _fallbacks(problem, options, [one.plan for one in made])
        others = [Chosen(plan, problem, WITHOUT) for plan in plans]
        made += [one for one in others if one.key(problem)[0] == 0]
    if not made and refusal is not None:
        raise refusal
    return min(made, key=lambda one: one.key(problem))


def _of_several_sizes(
    sizes: Sequence[PlanningProblem], known: PlanningProblem, options: PlanningOptions, best: Chosen | None
) -> Chosen:
    """Return the plan with actors of all sizes where it is better than ``best``, the plan of the best size alone.

    Raises:
        PlanningError: no size alone has a plan, and all together have none.
    """
    (cluster, _), models = sizes[0].one_kind, [size.one_kind[1] for size in sizes]
    latency = {(cluster.kind, model.gpus_per_actor): model for model in models}
    mixed = replace(sizes[0], cluster=MixedCluster(cluster.pools), latency=latency)
    if best is None or not is_compared(mixed):
        try:
            made = Chosen(planned(mixed, options), mixed, AS_GIVEN)
        except PlanningError:
            if best is None:
                raise
            return best
        return made if best is None else min((best, made), key=lambda one: one.key(known))
    mine = like(mixed, known)
    halves = _halves(mine)
    return _surely_better(best, _planned_on(halves, options), halves, mine, options) or best


def _surely_better(
    fallback: Chosen,
    plans: Sequence[Plan],
    halves: Sequence[PlanningProblem],
    known: PlanningProblem,
    options: PlanningOptions,
) -> Chosen | None:
    """Return the better one of two plans that were made for one half each, if it is surely better than the fallback."""
    made = [Chosen(plan, known, ASSIGNED) for plan in plans]
    saving = held_out(
        lambda half: made[half].values(halves[1 - half]), lambda half: fallback.values(halves[1 - half]), errors=SURE
    )
    if not saving.is_sure:
        return None
    further = stressed(known, options)
    better = min(made, key=lambda one: float(one.values(further).mean()))
    for scenarios in (known, further):
        if not float(better.values(scenarios).mean()) < float(fallback.values(scenarios).mean()):
            return None
    return better


def _fallbacks(problem: PlanningProblem, options: PlanningOptions, plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that assign nothing by predictions: the random split, and round-robin with consolidation (without,
    where it cannot pay off) where responses of a prompt may be apart.

    Args:
        plans: whose numbers of actors consolidation may start with, too.
    """
    split = random_split(problem, seed=options.seed)
    if problem.keep_together or problem.share_prefill or problem.release != "done":
        return [split]
    consolidated = Fold(Spread()).plan(problem, options)
    sized = len(consolidated.actors)
    most = min(problem.one_kind[0].max_actors, len(problem.workload), problem.max_actors or len(problem.workload))
    counts = {*range(sized - 1, sized + 1 + MORE_ACTORS), *(len(plan.actors) for plan in plans)}
    of_count = {sized: consolidated}
    for n in sorted(counts - {sized}):
        if 1 < n <= most:
            of_count[n] = Fold(Spread(actors=n)).plan(problem, options)
    return [split, *(plan for n, plan in of_count.items() if problem.needed_actors <= n <= most)]


def planned(problem: PlanningProblem, options: PlanningOptions) -> Plan:
    """Return the solver's plan."""
    return solver.plan(problem, quick=options.quick, seed=options.seed)


def _planned_on(halves: Sequence[PlanningProblem], options: PlanningOptions) -> list[Plan]:
    """Return the solver's plan for each half of the scenarios.

    The quick setting is enough: a closer search fits the few scenarios of a half, and is no better on lengths that it was not
    made for.
    """
    return [planned(half, replace(options, quick=True)) for half in halves]


def without_proof(plan: Plan) -> Plan:
    """Return the plan without value and bound, which are those of the half of the scenarios that it was made for."""
    return replace(plan, reference=None, value=None, lower_bound=None, status="heuristic", history=())


def like(problem: PlanningProblem, known: PlanningProblem) -> PlanningProblem:
    """Return the problem with the workload of ``known``."""
    return replace(problem, workload=known.workload)


def _halves(problem: PlanningProblem) -> list[PlanningProblem]:
    assert problem.workload.scenarios is not None
    return [with_scenarios(problem, problem.workload.scenarios[half::2]) for half in (0, 1)]


def groups_of(plan: Plan) -> list[IntArray]:
    """Return the responses of every actor."""
    return [np.array(a.responses, dtype=np.int64) for a in plan.actors if a.responses]


def step_of(plan: Plan, problem: PlanningProblem) -> tuple[FloatArray, FloatArray]:
    """Return (S,) time and cost of the whole step under a plan, with consolidation where the plan has that rule."""
    if isinstance(plan.rule, DrainingFold):
        busy_s = plan.rule.estimated_busy_s(len(plan.actors), problem)
        if busy_s is not None:
            return Pricing.of(problem).step_of(busy_s)
    taken = evaluate(plan, problem)
    cost = taken.cost_usd_of if problem.objective.cost == "usd" else taken.gpu_seconds_of
    time_s, step_cost = StepObjective.of_problem(problem).step(taken.makespans_s, cost)
    return np.asarray(time_s), np.asarray(step_cost)


def plan_values(plan: Plan, problem: PlanningProblem) -> FloatArray:
    """Return (S,) ``T^w C^(1-w)`` of the whole step under a plan, one per scenario."""
    return problem.objective.product(*step_of(plan, problem))


def values_of(busy_s: FloatArray, problem: PlanningProblem, more_s: float = 0.0) -> FloatArray:
    """Return (S,) ``T^w C^(1-w)`` of the whole step whose actors are busy for (S, N) seconds.

    Args:
        more_s: seconds that are added to the time, not to the cost.
    """
    time_s, cost = Pricing.of(problem).step_of(busy_s)
    return problem.objective.product(time_s + more_s, cost)


def sizes_in_words(plan: Plan, sizes: Mapping[int, float]) -> str:
    """Return which sizes of actors run, and what each alone would have given, as a sentence."""
    used = sorted({len(actor.gpu_ids) for actor in plan.actors})
    runs = f"Actors have {' or '.join(map(str, used))} {'GPU' if used == [1] else 'GPUs'} each"
    others = [
        f"{abs(value - 1):.1%} {'higher' if value >= 1 else 'lower'} with {counted(gpus, 'GPU')} each"
        for gpus, value in sorted(sizes.items())
        if [gpus] != used
    ]
    return f"{runs}; time and cost, weighed, would be {', '.join(others)}."

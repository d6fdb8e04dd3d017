"""Replicas that are released once few responses of a step are left: the others take over what those had.

Until then all GPUs are held, and those of the replicas that stay are held to the end of generation. So this is the release that
a diagnosis bounds (``diagnosis.knobs.released``). Schedules that release GPUs as early as pays off are in ``released``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhfless.analysis.what_ifs.changed_generation import whole_steps
from rlhfless.analysis.what_ifs.outcome import KnobOutcome, RunToChange, WayOutcome
from rlhfless.analysis.what_ifs.whole_steps import checked, gpus_of, learner_gpus_of
from rlhfless.diagnosis.knobs import ENOUGH, MOST_UNFINISHED, SHARES, UNFINISHED, smallest_enough, unfinished_at
from rlhfless.errors import InputError
from rlhfless.executor import StepRecord
from rlhfless.scheduling import PlanningOptions, as_policy
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.simulate import execute_steps
from solver.model.cluster import Cluster
from solver.model.errors import as_given, is_number
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem

NAME = "released in the tail"
RULE = f"This is the smallest share that saves at least {ENOUGH:.0%} as many GPU-hours as the best up to {MOST_UNFINISHED:.0%}."


@dataclass(frozen=True)
class TailRelease:
    """The run's own dispatch, until this share of the responses is unfinished; then the fewest actors go on that have room for
    them.

    Attributes:
        dispatch: policy that assigns responses. share: of unfinished responses. static_actors: as of ``make_policy``.
    """

    dispatch: str
    share: float
    static_actors: int | None = None
    clairvoyant: bool = False

    @property
    def name(self) -> str:
        """The name of the policy, another one for every share."""
        return f"{self.dispatch}, released at {self.share:g}"

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        plan = as_policy(self.dispatch, static_actors=self.static_actors).plan(problem, options)
        total = len(problem.workload)
        actors = tuple(replace(actor, release="done") for actor in plan.actors)
        rule = GlobalCut(unfinished_at(self.share, total) + 1, total)
        return replace(plan, policy=self.name, actors=actors, rule=rule)


def way(run: RunToChange, unfinished: float) -> WayOutcome:
    """Return the run where replicas are released once this share of a step's responses is unfinished, at least one.

    Raises:
        InputError: the share makes no sense, or the run cannot be changed. PlanningError: a response fits on no actor.
    """
    if not is_number(unfinished, 0) or not 0 < unfinished < 1:
        raise InputError(f"unfinished is {as_given(unfinished)}; a share of a step's responses above 0 and below 1 is needed")
    (outcome,) = _outcomes(checked(run), [float(unfinished)])
    return outcome


def best(run: RunToChange, own_gpu_s: float) -> WayOutcome:
    """Simulate several shares, and return the one that ``RULE`` says, with all of them as ``swept``.

    Args:
        own_gpu_s: GPU-seconds of the run's own way.

    Raises:
        InputError, PlanningError: as of ``way``.
    """
    outcomes = dict(zip(SHARES, _outcomes(checked(run), SHARES), strict=True))
    saved = {share: 1 - one.gpu_s / own_gpu_s if own_gpu_s else 0.0 for share, one in outcomes.items()}
    shown = outcomes[smallest_enough({share: one for share, one in saved.items() if share <= MOST_UNFINISHED})]
    settings = tuple(KnobOutcome(share, one.time_s, one.gpu_s, one.data) for share, one in outcomes.items())
    return replace(shown, change=f"{shown.change} {RULE}", knob=UNFINISHED, swept=settings)


def _outcomes(run: RunToChange, shares: Sequence[float]) -> list[WayOutcome]:
    setting = run.setting
    policies = [TailRelease(run.setup.dispatch, share, setting.static_actors) for share in shares]
    executed = execute_steps(run.logged, setting, policies)
    outcomes = []
    for policy in policies:
        records = [record for record, _ in executed[policy.name]]
        steps_s = [record.end_s - record.start_s for record in records]
        left = f"{100 * policy.share:.3g}% of a step's responses are unfinished"
        change = f"When {left}, the fewest replicas that have room take over, and the others release their GPUs."
        held = whole_steps(run, (NAME, change), steps_s, parameters={UNFINISHED: policy.share})
        generation = sum(_held_gpu_s(record, setting.cluster, policy.share) for record in records)
        after = learner_gpus_of(run) * (held.time_s - sum(steps_s)) if run.setup.colocated else 0.0
        own = (gpus_of(run) - setting.cluster.gpus) * held.time_s
        outcomes.append(replace(held, gpu_s=generation + after + own))
    return outcomes


def _held_gpu_s(record: StepRecord, cluster: Cluster, share: float) -> float:
    """Return the GPU-seconds of a step: of all GPUs until few responses are left, then of those that are still needed.

    An actor that was cut is needed until it has handed its responses over; one that goes on, until generation ends.
    """
    ends_s = sorted(done.time_s for done in record.completions.values())
    before = len(ends_s) - unfinished_at(share, len(ends_s))
    release_s = ends_s[before - 1] if before > 0 else record.start_s
    cut = {event["holder"] for event in record.events if event["name"] == "cut"}
    gpu_s = cluster.gpus * (release_s - record.start_s)
    for row in record.allocations:
        needed_s = record.end_s if row["holder"] not in cut and row["end_s"] > release_s else row["end_s"]
        gpu_s += cluster.gpus_per_actor * max(0.0, needed_s - release_s)
    return gpu_s

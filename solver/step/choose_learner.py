"""Chooses how a step is learned from: from the whole batch or while others decode, on which GPUs, and from when.

A learner has GPUs in addition to the actors', and it may grow onto GPUs that actors have released; it never uses those of an
actor that decodes. Two questions are answered by timing learners on the plan's generation (``Generated.step_totals``), on every
scenario of the lengths:

- ``choose_learner``: which learner is best? Every candidate is timed on the expected lengths. The best of them, half of them
  streaming, are then timed on each scenario, and the best by the objective is chosen. Learning from the whole batch on all
  released GPUs is a candidate, so streaming is used only where it helps.
- ``latest_start``: how late may a given learner start without ending the step later? A learner that streams is idle until
  prompts are complete, and often in between. Started later it works without pauses and costs less, until it becomes what the
  step waits for.

Candidates are fewer than those of a whole step (``learners_beside``), and are followed exactly from the start, because pair
timing is rough where groups are prepared and learned from as one item.

A group (or a response, see ``TokenWork.unlock``) may be prepared and learned from as one item on one server. Servers learn from
different items and add their gradients at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solver.model.errors import PlanningError, as_given, check_flags, is_number, is_whole, listed
from solver.model.plan import Plan, check_plan
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray, Workload
from solver.step.cut_timeline import CutTimeline
from solver.step.follow import Generated
from solver.step.work import Learner, StepWork, TokenWork

STARTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a learner, as shares of the mean generation time
FOLLOWED = 6  # candidates that stream, and as many that do not, that are followed on every scenario
HALVINGS = 12  # of the interval in which the latest start is


class LearnerCandidate(NamedTuple):
    """A learner with the step that it is expected to make: means over scenarios.

    Attributes:
        time_s, gpu_seconds: of the whole step. value: by the objective, relative to the first candidate.
    """

    learner: Learner
    time_s: float
    gpu_seconds: float
    value: float

    def __str__(self) -> str:
        learner = self.learner
        servers = f"{learner.own} server{'s' if learner.own > 1 else ''} from {learner.from_s:.2f} s" if learner.own else ""
        where = " and ".join(filter(None, [servers, "released GPUs" if learner.learns_on_released else ""]))
        when = "stream" if learner.streams else "batch"
        return f"{when} on {where}: {self.time_s:.2f} s, {self.gpu_seconds:,.0f} GPU-seconds"


@dataclass(frozen=True, eq=False)
class LearnerPlan:
    """The chosen way to learn from a step.

    Attributes:
        chosen: the best of the ``candidates``. batch: the best that learns from the whole batch.
        candidates: that were followed on every scenario.
    """

    chosen: LearnerCandidate
    batch: LearnerCandidate
    candidates: tuple[LearnerCandidate, ...]

    def __repr__(self) -> str:
        return f"LearnerPlan: {self.chosen} ({self.batch})"


class LateStart(NamedTuple):
    """When a learner starts, with the step that it is expected to make, beside one with a learner from the step's start.

    Attributes:
        from_s: when its GPUs are allocated, from the start of the step.
        time_s, gpu_seconds: of the whole step, means over scenarios. held_time_s, held_gpu_seconds: with ``from_s`` 0.
    """

    from_s: float
    time_s: float
    gpu_seconds: float
    held_time_s: float
    held_gpu_seconds: float


def choose_learner(
    plan: Plan, problem: PlanningProblem, work: TokenWork, *, servers: Sequence[int] = (), released: bool = True
) -> LearnerPlan:
    """Return the best way to learn from a step of this plan.

    Args:
        plan: its actors release their GPUs when they are done. A runtime rule counts as if it never acted.
        problem: workload (with scenarios, means are over them), latency, admission and objective.
        work: per token; learners of sizes that its charges do not allow are no candidates.
        servers: candidates for servers beside the actors, each the GPUs of one actor; if empty 0, 1, 2, 4, ... up to the
            cluster's. Without 0 the learner always has GPUs of its own.
        released: GPUs that actors have released may join the learner.

    Raises:
        PlanningError: an argument is of the wrong type or out of its range, the plan holds GPUs that nobody could take, or no
            learner is possible.

    Example:
        >>> import solver
        >>> from solver.step.choose_learner import choose_learner
        >>> from solver.step.work import TokenWork
        >>> latency = solver.LatencyModel("mine", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([10] * 4, range(4), [50, 60, 70, 900])
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), latency, solver.Objective(1.0))
        >>> plan = solver.random_split(problem, actors=1)
        >>> learner = choose_learner(plan, problem, TokenWork(0.0, 0.01))
        >>> learner.chosen.learner.streams, learner.chosen.time_s < learner.batch.time_s
        (True, True)
    """
    check_flags(released=released)
    own = listed("servers", servers)
    for number in own:
        if not is_whole(number, 0):
            raise PlanningError(f"servers of a learner are {as_given(number)}; whole numbers of 0 or more are needed")
    search = _LearnerSearch(plan, problem, work, merges=True)
    if (held := next((actor.release for actor in plan.actors if actor.release != "done"), None)) is not None:
        raise PlanningError(
            f"the plan's actors hold their GPUs until the end of the {held}, so no learner can take them; release them when "
            "they are done"
        )
    return search.best(own, released)


def latest_start(
    plan: Plan,
    problem: PlanningProblem,
    work: TokenWork,
    learner: Learner,
    *,
    delay: float = 0.005,
    gpus_per_server: int | None = None,
    whole_groups: bool = False,
) -> LateStart:
    """Return the latest start of a learner with which the step is expected to end as early as with one from its start.

    It is found by bisection, to 1/4,096 of the step. A learner that starts later than the step loads its models first.

    Args:
        plan, problem: see ``choose_learner``.
        work: per token. learner: with servers of its own; its ``from_s`` is what is chosen.
        delay: share of the step's time by which it may end later.
        gpus_per_server: of the learner, which runs one item at a time on each server; None: those of an actor.
        whole_groups: a group is prepared and learned from as one item on the learner, once all of it is complete.

    Raises:
        PlanningError: an argument is of the wrong type or out of its range, or the learner has no GPUs of its own.

    Example:
        >>> import solver
        >>> from solver.step.choose_learner import latest_start
        >>> from solver.step.work import Learner, TokenWork
        >>> latency = solver.LatencyModel("mine", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([10] * 4, range(4), [50, 60, 70, 900])
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), latency)
        >>> plan = solver.random_split(problem, actors=1)
        >>> learner = Learner(1, grows=False, streams=True, overlaps=True)
        >>> start = latest_start(plan, problem, TokenWork(0.0, 0.01), learner)
        >>> start.from_s > 5, start.time_s <= 1.005 * start.held_time_s, start.gpu_seconds < start.held_gpu_seconds
        (True, True, True)
    """
    if not isinstance(learner, Learner):
        raise PlanningError(f"learner is {as_given(learner)}; a Learner is needed")
    if not learner.own:
        raise PlanningError("the learner has 0 servers of its own, so it has no start; own of 1 or more is needed")
    if not is_number(delay, 0):
        raise PlanningError(f"delay is {as_given(delay)}; a share of 0 or more is needed")
    if gpus_per_server is not None and not is_whole(gpus_per_server, 1):
        raise PlanningError(f"gpus_per_server is {as_given(gpus_per_server)}; a whole number of 1 or more, or None, is needed")
    check_flags(whole_groups=whole_groups)
    search = _LearnerSearch(plan, problem, work, merges=whole_groups, gpus_per_server=gpus_per_server)
    return search.latest_start(learner, delay)


class _LearnerSearch:
    """A plan's generation with its work in every scenario, and the steps that learners make of them.

    Args:
        merges: a group, or a response that unlocks alone, is prepared and learned from as one item.
    """

    def __init__(
        self, plan: Plan, problem: PlanningProblem, work: TokenWork, *, merges: bool, gpus_per_server: int | None = None
    ) -> None:
        check_plan(plan)
        check_problem(problem)
        if not isinstance(work, TokenWork):
            raise PlanningError(f"work is {as_given(work)}; a TokenWork is needed")
        cluster, latency = problem.one_kind
        self.plan, self.problem, self.work, self.merges = plan, problem, work, merges
        self.latency, self.most = latency.affine, cluster.max_actors
        self.server_gpus = cluster.gpus_per_actor if gpus_per_server is None else gpus_per_server
        self.price = cluster.usd_per_gpu_s if problem.objective.cost == "usd" else 1.0
        self.cases = [self._case(case) for case in problem.workload.cases()]

    def _case(self, workload: Workload) -> tuple[Generated, StepWork]:
        """Return generation with completions of items, and the work of the items."""
        generated = CutTimeline(self.plan, workload, self.latency, self.problem.admission).uncut
        work = self.work.of(workload, self.server_gpus)
        return _merged(generated, work) if self.merges else (generated, work)

    def totals(self, learner: Learner, cases: Sequence[tuple[Generated, StepWork]]) -> tuple[FloatArray, FloatArray]:
        """Return the (S,) times and GPU-seconds of the step with this learner in these cases."""
        times, costs = np.transpose([generated.step_totals(work, learner) for generated, work in cases])
        return times, costs

    def best(self, servers: tuple[int, ...], released: bool) -> LearnerPlan:
        """Return the best candidate; see ``choose_learner``."""
        expected = self._case(self.problem.workload)
        generation_s = float(expected[0].completion_s.max(initial=0.0))
        every = servers or (0, *(1 << k for k in range(self.most.bit_length())))
        learners = list(self._learners(every, released, generation_s))
        if not learners:
            raise PlanningError(
                "no learner is possible: with released False it needs servers of 1 or more, of a size that the charges of the "
                "work allow"
            )
        screened = self._valued(learners, [expected])
        best = [sorted((one for one in screened if one.learner.streams == streams), key=lambda one: one.value)[:FOLLOWED]
                for streams in (False, True)]  # fmt: skip
        candidates = self._valued([one.learner for one in (screened[0], *best[0], *best[1])], self.cases)
        batch = min((one for one in candidates if not one.learner.streams), key=lambda one: one.value)
        return LearnerPlan(min(candidates, key=lambda one: one.value), batch, candidates)

    def _learners(self, servers: tuple[int, ...], released: bool, generation_s: float) -> Iterator[Learner]:
        """Return the candidates that the charges allow; learning from the batch comes first."""
        for streams in (False, True):
            for own in sorted(servers):
                for share in STARTS if own else (0.0,):
                    for grows in (False, True) if own else (True,):
                        learner = Learner(own, share * generation_s, grows, streams, overlaps=True)
                        fits = self.work.charges.fits(learner.servers(len(self.plan.actors)))
                        if fits and (released or not grows):
                            yield learner

    def _valued(self, learners: Sequence[Learner], cases: Sequence[tuple[Generated, StepWork]]) -> tuple[LearnerCandidate, ...]:
        """Return the candidates with means and values over these cases."""
        totals = [self.totals(learner, cases) for learner in learners]
        reference = float(totals[0][0].mean()), float(totals[0][1].mean()) * self.price
        return tuple(
            LearnerCandidate(
                learner, float(times.mean()), float(costs.mean()),
                self.problem.objective.value_over(times, costs * self.price, reference),
            )
            for learner, (times, costs) in zip(learners, totals, strict=True)
        )  # fmt: skip

    def latest_start(self, learner: Learner, delay: float) -> LateStart:
        """Return the latest start; see the function of this name."""

        def step(from_s: float) -> tuple[float, float]:
            times, costs = self.totals(replace(learner, from_s=from_s), self.cases)
            return float(times.mean()), float(costs.mean())

        held = step(0.0)
        early, late, found = 0.0, held[0], held
        for _ in range(HALVINGS):
            middle = (early + late) / 2
            tried = step(middle)
            if tried[0] <= held[0] * (1 + delay):
                early, found = middle, tried
            else:
                late = middle
        return LateStart(early, *found, *held)


def _merged(generated: Generated, work: StepWork) -> tuple[Generated, StepWork]:
    """Return generation and work with one item for each set of responses that unlocks together, once all of it is complete."""
    items = work.unlocked_by(streams=True)
    count = int(items.max(initial=-1)) + 1
    completion_s, nothing = np.zeros(count), np.zeros(count)
    np.maximum.at(completion_s, items, generated.completion_s)
    seconds = np.bincount(items, work.prepare_s + work.learn_s, count)
    whole = replace(work, prepare_s=nothing, learn_s=seconds, group=np.arange(count), unlock="response")
    return replace(generated, completion_s=completion_s), whole

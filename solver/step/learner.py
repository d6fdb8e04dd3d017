"""Chooses how a step is learned from: from the whole batch or while others decode, on which GPUs, and from when.

A learner has GPUs in addition to the actors', and it may grow onto GPUs that actors have released; it never uses those of an
actor that decodes. Every candidate is timed (``step_totals``) on the expected lengths. The best of them, half of them
streaming, are then timed on each scenario, and the best by the objective is chosen. Learning from the whole batch on all
released GPUs is a candidate, so streaming is used only where it helps.

A group (or a response, see ``TokenWork.unlock``) is prepared and learned from as one item on one server, the GPUs of one actor.
Servers learn from different items and add their gradients at the end. S servers together are ``S (1 - loss)^log2(S)`` times as
fast as one, with the loss per doubling as given: communication, stated and not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.plan import Plan, check_plan
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray, Workload
from solver.step.cut_timeline import CutTimeline, Generated
from solver.step.follow import step_totals
from solver.step.late_start import by_group
from solver.step.token_work import TokenWork
from solver.step.work import PhaseWork

Way = tuple[str, int, float, bool]
STARTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a learner, as shares of the mean generation time
FOLLOWED = 6  # candidates of each way to learn that are followed on every scenario
LOSS_PER_DOUBLING = 0.1


class LearnerCandidate(NamedTuple):
    """A way to learn from a step, with the step that it is expected to make: means over scenarios.

    Attributes:
        learning: ``batch`` or ``stream``.
        gpus: beside the actors; 0: only freed ones.
        from_s: when the learner's own GPUs are allocated, from the start of the step; they are held until its end.
        grows: GPUs that actors have given back join it.
        time_s, gpu_seconds: of the whole step. value: by the objective, relative to the first candidate.
    """

    learning: str
    gpus: int
    from_s: float
    grows: bool
    time_s: float
    gpu_seconds: float
    value: float

    def __str__(self) -> str:
        own = f"{self.gpus} GPUs from {self.from_s:.2f} s" if self.gpus else ""
        where = " and ".join(filter(None, [own, "released GPUs" if self.grows else ""]))
        return f"{self.learning} on {where}: {self.time_s:.2f} s, {self.gpu_seconds:,.0f} GPU-seconds"


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


def speed_up(servers: float, loss_per_doubling: float) -> float:
    """Return how many times as fast several servers learn together as one.

    Example:
        >>> speed_up(4, 0.1)
        3.24
    """
    return servers * float((1.0 - loss_per_doubling) ** np.log2(servers))


def choose_learner(
    plan: Plan,
    problem: PlanningProblem,
    work: TokenWork,
    *,
    gpus: Sequence[int] = (),
    freed: bool = True,
    loss_per_doubling: float = LOSS_PER_DOUBLING,
) -> LearnerPlan:
    """Return the best way to learn from a step of this plan.

    Args:
        plan: its actors release their GPUs when they are done. A runtime rule counts as if it never acted.
        problem: workload (with scenarios, means are over them), latency, admission and objective.
        work: seconds per token, what learning waits for, and ``load_s``; its GPUs are what is chosen.
        gpus: candidates for GPUs beside the actors; if empty 0 and the sizes of 1, 2, 4, ... actors, up to the cluster's.
            Without 0 the learner always has GPUs of its own.
        freed: GPUs that actors have given back may join the learner.
        loss_per_doubling: share of its speed that a learner loses with every doubling of its servers.

    Raises:
        PlanningError: an argument is of the wrong type or out of its range, or the plan holds GPUs that nobody could take.

    Example:
        >>> import solver
        >>> from solver.step.learner import choose_learner
        >>> from solver.step.token_work import TokenWork
        >>> latency = solver.LatencyModel("mine", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([10] * 4, range(4), [50, 60, 70, 900])
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), latency, solver.Objective(1.0))
        >>> plan = solver.random_split(problem, actors=1)
        >>> learner = choose_learner(plan, problem, TokenWork(0.0, 0.01, unlock="group"))
        >>> learner.chosen.learning, learner.chosen.time_s < learner.batch.time_s
        ('stream', True)
    """
    check_plan(plan)
    check_problem(problem)
    if not isinstance(work, TokenWork):
        raise PlanningError(f"work is {as_given(work)}; a TokenWork is needed")
    if work.unlock == "batch":
        raise PlanningError("unlock of the work is 'batch', which never streams; choose 'group' or 'response'")
    if not (is_number(loss_per_doubling, 0) and loss_per_doubling < 1):
        raise PlanningError(f"loss_per_doubling is {as_given(loss_per_doubling)}; a share of 0 or more and below 1 is needed")
    size = problem.one_kind[0].gpus_per_actor
    for number in gpus:
        if not is_whole(number, 0) or number % size:
            raise PlanningError(
                f"gpus of a learner are {as_given(number)}; multiples of the {size} GPUs of an actor are needed"
            )
    if (held := next((actor.release for actor in plan.actors if actor.release != "done"), None)) is not None:
        raise PlanningError(
            f"the plan's actors hold their GPUs until the end of the {held}, so no learner can take them; release them when "
            "they are done"
        )
    if not freed and len(gpus) and not any(gpus):
        raise PlanningError(
            "the learner has no gpus, and with freed False it may not use released ones; give numbers of 1 or more"
        )
    return _LearnerSearch(plan, problem, work, loss_per_doubling).best(tuple(gpus), freed)


class _LearnerSearch:
    """Generation and items of learning in every scenario."""

    def __init__(self, plan: Plan, problem: PlanningProblem, work: TokenWork, loss_per_doubling: float) -> None:
        cluster, latency = problem.one_kind
        self.problem, self.work, self.loss = problem, work, loss_per_doubling
        self.plan, self.latency = plan, latency.affine
        self.actors, self.size, self.usd_per_gpu_s = len(plan.actors), cluster.gpus_per_actor, cluster.usd_per_gpu_s
        self.most = cluster.gpus // self.size
        self.expected = self._case(problem.workload)
        self.cases = [self._case(case) for case in problem.workload.cases()]

    def _case(self, workload: Workload) -> tuple[Generated, FloatArray]:
        """Return generation with completions of items, and the (I,) seconds of each item on one server."""
        generated = CutTimeline(self.plan, workload, self.latency, self.problem.admission).uncut
        phases = replace(self.work, learner_gpus=0, learner_from_s=None, learner_grows=False, place="freed").of(workload)
        if self.work.unlock == "response":
            return generated, phases.prepare_s + phases.learn_s
        generated, phases = by_group(generated, phases)
        return generated, phases.learn_s

    def best(self, gpus: tuple[int, ...], freed: bool) -> LearnerPlan:
        """Return the best candidate; see ``choose_learner``."""
        every = gpus or (0, *(self.size << k for k in range(self.most.bit_length())))
        screened = self._valued(list(self._ways(every, freed)), [self.expected])
        best = [sorted((one for one in screened if one.learning == learning), key=lambda one: one.value)[:FOLLOWED]
                for learning in ("batch", "stream")]  # fmt: skip
        candidates = self._valued([one[:4] for one in (screened[0], *best[0], *best[1])], self.cases)
        batch = min((one for one in candidates if one.learning == "batch"), key=lambda one: one.value)
        return LearnerPlan(min(candidates, key=lambda one: one.value), batch, candidates)

    def _valued(self, ways: Sequence[Way], cases: Sequence[tuple[Generated, FloatArray]]) -> tuple[LearnerCandidate, ...]:
        """Return the candidates with means and values over these cases."""
        totals = [self._totals(*way, cases) for way in ways]
        price = self.usd_per_gpu_s if self.problem.objective.cost == "usd" else 1.0
        reference = float(totals[0][0].mean()), float(totals[0][1].mean()) * price
        return tuple(
            LearnerCandidate(
                *way, float(times.mean()), float(costs.mean()),
                self.problem.objective.value_over(times, costs * price, reference),
            )
            for way, (times, costs) in zip(ways, totals, strict=True)
        )  # fmt: skip

    def _ways(self, gpus: tuple[int, ...], freed: bool) -> Iterator[Way]:
        """Return learning, GPUs, start and growth of every candidate; learning from the batch comes first."""
        starts = [share * float(self.expected[0].completion_s.max(initial=0.0)) for share in STARTS]
        growths = (False, True) if freed else (False,)
        for learning in ("batch", "stream"):
            for number in sorted(gpus):
                if number:
                    yield from ((learning, number, from_s, grows) for from_s in starts for grows in growths)
                elif freed:
                    yield learning, 0, 0.0, True

    def _totals(
        self, learning: str, gpus: int, from_s: float, grows: bool, cases: Sequence[tuple[Generated, FloatArray]]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the (S,) times and GPU-seconds of the step in these cases."""
        begin_s = np.array([actor.start_s for actor in self.plan.actors])
        servers = gpus // self.size + (self.actors if grows else 0)
        slower = servers / speed_up(servers, self.loss)
        times, costs = np.zeros(len(cases)), np.zeros(len(cases))
        for i, (generated, seconds) in enumerate(cases):
            work = PhaseWork(
                np.zeros(len(seconds)), seconds * slower, np.arange(len(seconds)),
                "batch" if learning == "batch" else "response", gpus, from_s if gpus else None, bool(gpus) and grows,
                "learner" if gpus else "freed", self.size, self.work.load_s,
            )  # fmt: skip
            times[i], phases_gpu_s = step_totals(generated.completion_s, generated.free_s, work)
            costs[i] = self.size * float((generated.free_s - begin_s).sum()) + phases_gpu_s
        return times, costs

"""Chooses RLHFuse's cut for the step as a whole: the share R_t at which actors are cut, and the number m that continue.

The paper (arXiv 2409.13221, section 4) simulates cuts off-line. Here every pair of a share and a number of actors is timed on
every scenario of the lengths (``cut_timeline.py``). A lower bound on the whole step (``phase_bound_s``) screens the pairs.
The best of them are then followed exactly (``follow``), until no bound is below the best value found. The step without a cut is
also a candidate, so a cut is used only where it helps. Nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from solver.lengths.survival import from_scenarios
from solver.model.errors import PlanningError, as_given, is_number, is_whole, listed
from solver.model.plan import Plan, check_plan
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray
from solver.step.bound import phase_bound_s, phase_server_s
from solver.step.cut_timeline import CutTimeline
from solver.step.follow import Generated
from solver.step.work import BESIDE_DECODING, PLACES, Learner, StepWork, TokenWork, check_fits

SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)
FOLLOWED = 10  # cuts that are followed exactly


class CutCandidate(NamedTuple):
    """A cut that was timed: its share of the batch (0: no cut) and actors that continue, and means over scenarios.

    ``bound`` is a lower bound on its value, by which it was screened. Where it was not followed to the end, ``time_s``,
    ``gpu_seconds`` and ``value`` are NaN; where the kept actors have no room, ``bound`` is infinite.
    """

    share: float
    keep: int
    place: str
    bound: float
    time_bound_s: float
    time_s: float = math.nan
    gpu_seconds: float = math.nan
    value: float = math.nan


@dataclass(frozen=True, eq=False)
class CutPlan:
    """The chosen cut of a step, with the step that it is expected to make.

    Attributes:
        share: R_t as a share of the batch; 0: no cut. threshold: the same in responses.
        keep: m, the actors that continue; all of them without a cut.
        place: where preparation runs.
        time_s, gpu_seconds, value: of the whole step, means over scenarios; ``value`` is relative to the step without a cut.
        uncut: the step without a cut, where preparation runs in the first place.
        candidates: every cut that was looked at.
    """

    share: float
    threshold: int
    keep: int
    place: str
    time_s: float
    gpu_seconds: float
    value: float
    uncut: CutCandidate
    candidates: tuple[CutCandidate, ...]

    def __repr__(self) -> str:
        cut = "no cut" if not self.share else f"cut to {self.keep} actors at {self.share:.0%} of the batch"
        return (
            f"CutPlan: {cut}, preparation on {self.place} GPUs; step {self.time_s:.2f} s, {self.gpu_seconds:,.0f} GPU-seconds "
            f"(without a cut {self.uncut.time_s:.2f} s, {self.uncut.gpu_seconds:,.0f})"
        )


def choose_cut(
    plan: Plan,
    problem: PlanningProblem,
    work: StepWork | TokenWork,
    learner: Learner = BESIDE_DECODING,
    *,
    places: Sequence[str] = (),
    shares: Sequence[float] = SHARES,
    keep: Sequence[int] = (),
    followed: int | None = FOLLOWED,
) -> CutPlan:
    """Return the best cut of a plan for a step with this preparation and learning, or no cut if none is better.

    Args:
        plan: static groups; its actors release their GPUs when they are done.
        problem: workload (with scenarios, means are over them), latency, admission and objective.
        work: of every response, or by token. With scenarios of lengths, only ``TokenWork`` changes with them.
        learner: where and when preparation and learning run. places: where preparation may run; the learner's place if empty.
        shares: candidates for R_t. keep: candidates for m; a sparse list of all if empty.
        followed: how many cuts are followed exactly at most; None follows every one.

    Raises:
        PlanningError: an argument is of the wrong type or out of its range, the plan holds GPUs that work needs early, or no
            given ``keep`` has room for the responses that are left.

    Example:
        >>> import solver
        >>> from solver.step.cut import choose_cut
        >>> from solver.step.work import TokenWork
        >>> latency = solver.LatencyModel("mine", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([10] * 8, range(8), [50, 60, 70, 80, 90, 100, 110, 900])
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 2, 1), latency, solver.Objective(1.0))
        >>> plan = solver.random_split(problem, actors=2)
        >>> cut = choose_cut(plan, problem, TokenWork(3e-2, 1e-3))
        >>> cut.keep, cut.time_s < cut.uncut.time_s
        (1, True)
    """
    check_plan(plan)
    check_problem(problem)
    if not isinstance(work, StepWork | TokenWork):
        raise PlanningError(f"work is {as_given(work)}; a StepWork or TokenWork is needed")
    if not isinstance(learner, Learner):
        raise PlanningError(f"learner is {as_given(learner)}; a Learner is needed")
    search = _CutSearch(plan, problem, work, learner, listed("places", places) or (learner.prepares_on,))
    return search.best(listed("shares", shares), listed("keep", keep), followed)


@dataclass(frozen=True, eq=False)
class _Screened:
    """A cut, its generation in every scenario (none where there is no room), and (S,) bounds on time and GPU-seconds."""

    candidate: CutCandidate
    generated: tuple[Generated, ...] = ()
    times_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    gpu_s: FloatArray = field(default_factory=lambda: np.zeros(0))


class _CutSearch:
    """Timelines and work of every scenario, and the values of cuts."""

    def __init__(
        self, plan: Plan, problem: PlanningProblem, work: StepWork | TokenWork, learner: Learner, places: tuple[str, ...]
    ) -> None:
        if unknown := [place for place in places if place not in PLACES]:
            raise PlanningError(f"place {as_given(unknown[0])} is unknown; choose one of {', '.join(PLACES)}")
        holds = next((actor.release for actor in plan.actors if actor.release != "done"), None)
        self.learners = {place: replace(learner, place=place) for place in places}
        if holds is not None and any(one.prepares_on_released or one.learns_on_released for one in self.learners.values()):
            raise PlanningError(
                f"the plan's actors hold their GPUs until the end of the {holds}, so none are released early; release "
                "them when they are done, or let preparation run on additional GPUs"
            )
        if problem.workload.passes is not None:
            raise PlanningError(
                "the workload decodes with drafts, but a cut is timed with one token per pass; leave drafts out"
            )
        cluster, latency = problem.one_kind
        self.plan, self.problem, self.places = plan, problem, places
        self.responses, self.actors = len(problem.workload), len(plan.actors)
        self.gpus = cluster.gpus_per_actor
        self.usd_per_gpu_s = cluster.usd_per_gpu_s
        forecast = from_scenarios(problem.workload)
        cases = problem.workload.cases()
        self.lines = [CutTimeline(plan, case, latency.affine, problem.admission, forecast.expected_tokens) for case in cases]
        self.work = [work.of(case, self.gpus) if isinstance(work, TokenWork) else work for case in cases]
        check_fits(self.work[0], self.responses, self.gpus)
        self.norms: tuple[float, float] | None = None

    def best(self, shares: tuple[float, ...], keep: tuple[int, ...], followed: int | None) -> CutPlan:
        """Return the best cut; see ``choose_cut``."""
        for share in shares:
            if not is_number(share, 0) or share > 1:
                raise PlanningError(
                    f"share {as_given(share)} is not a cut share R_t; a share of the batch from 0 to 1 is needed"
                )
        for m in keep:
            if not is_whole(m, 1) or m > self.actors:
                raise PlanningError(
                    f"keep {as_given(m)} is not a number of actors m; a whole number from 1 to the plan's "
                    f"{self.actors} actors is needed"
                )
        if followed is not None and not is_whole(followed, 0):
            raise PlanningError(f"followed is {as_given(followed)}; a whole number of 0 or more, or None, is needed")
        uncut = [line.uncut for line in self.lines]
        found = [self._uncut(uncut, place) for place in self.places]
        screened = self._screened(shares, keep)
        best = min(found, key=lambda candidate: candidate.value)
        measured: dict[int, CutCandidate] = {}
        for i in sorted(range(len(screened)), key=lambda i: (screened[i].candidate.bound, i)):
            if followed is not None and (len(measured) >= followed or screened[i].candidate.bound >= best.value):
                break
            if screened[i].generated:
                measured[i] = self._measured(screened[i], math.inf if followed is None else best.value)
                best = min(best, measured[i], key=lambda one: math.inf if math.isnan(one.value) else one.value)
        every = (*found, *(measured.get(i, one.candidate) for i, one in enumerate(screened)))
        threshold = max(1, round(best.share * self.responses)) if best.share else 0
        return CutPlan(best.share, threshold, best.keep, best.place, best.time_s, best.gpu_seconds, best.value, found[0], every)

    def _screened(self, shares: tuple[float, ...], keep: tuple[int, ...]) -> list[_Screened]:
        """Return every cut with the bound on its value, and with its generation where the kept actors have room."""
        found: list[_Screened] = []
        for share in shares:
            threshold = max(1, round(share * self.responses))
            states = [line.at(threshold) for line in self.lines]
            if not share or any(state is None for state in states):
                continue
            for m in keep or sparse_counts(self.actors):
                if m >= self.actors:
                    continue
                cuts = [line.cut(state, m) for line, state in zip(self.lines, states, strict=True) if state is not None]
                fits = [generated for generated in cuts if generated is not None]
                for place in self.places:
                    if len(fits) < len(cuts):
                        found.append(_Screened(CutCandidate(share, m, place, math.inf, math.inf)))
                    else:
                        found.append(self._bounded(share, m, place, fits))
        if keep and found and not any(one.generated for one in found):
            self._refuse_room(shares, keep)
        return found

    def _refuse_room(self, shares: tuple[float, ...], keep: tuple[int, ...]) -> None:
        """Refuse numbers of actors that have no room for the responses that are left."""
        share = min(share for share in shares if share)
        states = [line.at(max(1, round(share * self.responses))) for line in self.lines]
        room = next(
            (m for m in range(max(keep) + 1, self.actors)
             if all(state is None or line.cut(state, m) is not None for line, state in zip(self.lines, states, strict=True))),
            None,
        )  # fmt: skip
        admission = self.lines[0].admission[0]
        instead = f"keep {room} at a share of {share:g}" if room else "make no cut"
        raise PlanningError(
            f"{max(keep)} actors of {admission.max_batch} slots and {admission.kv_capacity_tokens:,} KV tokens have no room "
            f"for the responses that are left at a share of {share:g}; {instead}"
        )

    def _bounded(self, share: float, m: int, place: str, generated: list[Generated]) -> _Screened:
        """Return a cut with the bounds on its step: of each scenario the time bound, and the GPU-seconds of all work."""
        times, costs, learner = np.zeros(len(generated)), np.zeros(len(generated)), self.learners[place]
        for i, (one, work) in enumerate(zip(generated, self.work, strict=True)):
            times[i] = phase_bound_s(one.completion_s, one.free_s, work, learner)
            slower = work.charges.slower(learner.servers(self.actors))
            held_s = max(0.0, float(times[i]) - learner.from_s)
            costs[i] = one.gpu_seconds + self.gpus * phase_server_s(work, learner, slower, held_s)
        candidate = CutCandidate(share, m, place, self._value(times, costs), float(times.mean()))
        return _Screened(candidate, tuple(generated), times, costs)

    def _uncut(self, generated: list[Generated], place: str) -> CutCandidate:
        """Return the step without a cut; the first one is what values are relative to."""
        times, costs = np.transpose([self._followed(generated[i], place, i) for i in range(len(generated))])
        if self.norms is None:
            self.norms = float(times.mean()), float(costs.mean())
        time_s, value = float(times.mean()), self._value(times, costs)
        return CutCandidate(0.0, self.actors, place, value, time_s, time_s, float(costs.mean()), value)

    def _measured(self, screened: _Screened, best: float) -> CutCandidate:
        """Return a cut with its step followed exactly, as far as it may still be better than ``best``."""
        times, costs, candidate = screened.times_s.copy(), screened.gpu_s.copy(), screened.candidate
        for i, generated in enumerate(screened.generated):
            times[i], costs[i] = self._followed(generated, candidate.place, i)
            if self._value(times, costs) >= best and i + 1 < len(times):
                return candidate
        return candidate._replace(time_s=float(times.mean()), gpu_seconds=float(costs.mean()), value=self._value(times, costs))

    def _followed(self, generated: Generated, place: str, case: int) -> tuple[float, float]:
        """Return time and GPU-seconds of the step with this generation."""
        return generated.step_totals(self.work[case], self.learners[place])

    def _value(self, times: FloatArray, gpu_s: FloatArray) -> float:
        price = self.usd_per_gpu_s if self.problem.objective.cost == "usd" else 1.0
        assert self.norms is not None
        return self.problem.objective.value_over(times, gpu_s * price, (self.norms[0], self.norms[1] * price))


def sparse_counts(actors: int) -> list[int]:
    """Return candidates for the actors that continue, fewer than all: 1, 2, 3, 4, 6, 8, 12, 16, ...

    Example:
        >>> sparse_counts(8)
        [1, 2, 3, 4, 6]
    """
    counts = {c for k in range(actors.bit_length()) for c in (1 << k, 3 << k) if c < actors}
    return sorted(counts)

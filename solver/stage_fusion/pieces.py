"""Chooses in how many pieces a step is learned from where actors and learner share the cores of one machine.

Learning from the whole batch after generation takes the least work, but one core. Pieces of several prompts can be learned from
by several processes at once, in the trainer and on what actors have given back, and as soon as their prompts are complete. Each
piece costs a fixed time beside its tokens, and each process that joins costs its start. The caller measures all of these.

Processes that compute get equal shares of the cores, and are slower beside each other by what the run measured
(``shared_cores.py``). The actors' GPUs are charged for the whole step, as actors wait for the next one where starting them anew
would cost more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.plan import Plan, check_plan
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray
from solver.stage_fusion.cut_timeline import CutTimeline, Generated
from solver.stage_fusion.shared_cores import ALONE, CoreContention, follow_on_cores

Pieces = tuple[tuple[int, ...], ...]
GAIN = 0.15
"""Share of the batch's value that pieces have to bring: on two cores, plans of pieces were wrong by a tenth and more."""


@dataclass(frozen=True)
class PieceCosts:
    """Seconds of one core that learning takes on a machine, as measured there.

    Attributes:
        batch_per_token_s: of the whole batch. fixed_s, per_token_s: of a piece. join_s: of a process that joins the learner.

    Raises:
        PlanningError: a number is negative or not finite.
    """

    batch_per_token_s: float
    fixed_s: float
    per_token_s: float
    join_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("batch_per_token_s", "fixed_s", "per_token_s", "join_s"):
            if not is_number(getattr(self, name), 0):
                raise PlanningError(f"{name} is {as_given(getattr(self, name))}; a finite number of 0 or more is needed")


class PiecesCandidate(NamedTuple):
    """A way to learn from a step, with the step that it is expected to make: means over scenarios.

    Attributes:
        pieces: prompts of each piece; one piece is the whole batch. freed: processes on freed GPUs join the trainer's learner.
        time_s, gpu_seconds: of the whole step. value: by the objective, relative to the whole batch.
    """

    pieces: tuple[tuple[int, ...], ...]
    freed: bool
    time_s: float
    gpu_seconds: float
    value: float


@dataclass(frozen=True, eq=False)
class PiecesPlan:
    """The chosen way to learn from a step.

    Attributes:
        chosen: the best of the ``candidates``. batch: the one that learns from the whole batch.
        costs, cores, contention: by which they were followed.
    """

    chosen: PiecesCandidate
    batch: PiecesCandidate
    candidates: tuple[PiecesCandidate, ...]
    costs: PieceCosts
    cores: int
    contention: CoreContention = ALONE

    def __repr__(self) -> str:
        one, batch = self.chosen, self.batch
        return f"PiecesPlan: {len(one.pieces)} pieces, {one.time_s:.2f} s (whole batch: {batch.time_s:.2f} s)"


def choose_pieces(
    plan: Plan,
    problem: PlanningProblem,
    costs: PieceCosts,
    cores: int,
    *,
    freed: bool = True,
    most_pieces: int = 16,
    gain: float = GAIN,
    contention: CoreContention = ALONE,
) -> PiecesPlan:
    """Return the best way to learn from a step of this plan.

    Prompts are sorted by when they are expected to be complete, and divided into 2, 4, 8, ... pieces with about equal tokens.

    Args:
        plan: a runtime rule counts as if it never acted.
        problem: workload (with scenarios, means are over them), latency, admission and objective.
        cores: of the machine, shared by actors (one thread each), the trainer and what joins it.
        freed: processes of actors that are done may join the learner. most_pieces: at most so many.
        gain: share of the whole batch's value by which pieces have to be better.
        contention: how much slower actors and learner are beside each other; ``ALONE`` where they have devices of their own.

    Raises:
        PlanningError: an argument is of the wrong type or out of its range.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("mine", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([10] * 4, range(4), [100] * 4)
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 1, 1), latency, solver.Objective(1.0))
        >>> plan = solver.random_split(problem, actors=1)
        >>> costs = PieceCosts(0.01, 0.05, 0.01)
        >>> [len(choose_pieces(plan, problem, costs, cores).chosen.pieces) for cores in (1, 2)]
        [1, 2]
    """
    check_plan(plan)
    check_problem(problem)
    if not isinstance(costs, PieceCosts):
        raise PlanningError(f"costs are {as_given(costs)}; PieceCosts are needed")
    for name, number in (("cores", cores), ("most_pieces", most_pieces)):
        if not is_whole(number, 1):
            raise PlanningError(f"{name} is {as_given(number)}; a whole number of 1 or more is needed")
    if not (is_number(gain, 0) and gain < 1):
        raise PlanningError(f"gain is {as_given(gain)}; a share of 0 or more and below 1 is needed")
    if not isinstance(contention, CoreContention):
        raise PlanningError(f"contention is {as_given(contention)}; a CoreContention is needed")
    return _PiecesSearch(plan, problem, costs, cores, contention).best(freed, most_pieces, gain)


class _PiecesSearch:
    """Generation in every scenario, and prompts in the order in which they are expected to be complete."""

    def __init__(self, plan: Plan, problem: PlanningProblem, costs: PieceCosts, cores: int, contention: CoreContention) -> None:
        _, latency = problem.one_kind
        self.problem, self.costs, self.cores, self.contention = problem, costs, cores, contention
        self.gpus = sum(len(actor.gpu_ids) for actor in plan.actors)
        self.size = problem.one_kind[0].gpus_per_actor
        cases = [problem.workload, *(problem.workload.cases())]
        lines = [CutTimeline(plan, case, latency.affine, problem.admission) for case in cases]
        self.generated, self.actor_of = [line.uncut for line in lines], lines[0].actor_of
        owner = self.owner = problem.workload.prompt_of
        self.prompts = int(owner.max(initial=-1)) + 1
        self.tokens = [np.bincount(owner, case.prompt_tokens[owner] + case.response_tokens, self.prompts) for case in cases]
        complete_s = np.zeros(self.prompts)
        np.maximum.at(complete_s, owner, self.generated[0].completion_s)
        self.order = np.argsort(complete_s, kind="stable")

    def best(self, freed: bool, most: int, gain: float) -> PiecesPlan:
        """Return the best candidate; see ``choose_pieces``."""
        ways: list[tuple[Pieces, bool]] = [((tuple(range(self.prompts)),), False)]
        counts = [2**k for k in range(1, most.bit_length()) if 2**k <= min(most, self.prompts)]
        ways += [(self._divided(count), joins) for count in counts for joins in (False, True)[: 1 + freed]]
        totals = [self._totals(*way) for way in ways]
        reference = float(totals[0][0].mean()), float(totals[0][1].mean())
        found = tuple(
            PiecesCandidate(
                *way, float(times.mean()), float(costs.mean()), self.problem.objective.value_over(times, costs, reference)
            )
            for way, (times, costs) in zip(ways, totals, strict=True)
        )
        best = min(found, key=lambda one: one.value)
        return PiecesPlan(
            best if best.value < (1.0 - gain) * found[0].value else found[0], found[0], found, self.costs, self.cores,
            self.contention,
        )  # fmt: skip

    def _divided(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Return the prompts in so many pieces at most."""
        tokens = self.tokens[0][self.order]
        middle = np.cumsum(tokens) - tokens / 2.0
        piece = np.minimum((middle * count / max(float(tokens.sum()), 1.0)).astype(np.int64), count - 1)
        return tuple(tuple(sorted(self.order[piece == k].tolist())) for k in range(count) if (piece == k).any())

    def _totals(self, pieces: Sequence[tuple[int, ...]], freed: bool) -> tuple[FloatArray, FloatArray]:
        """Return the (S,) times and GPU-seconds of the step in all scenarios; without any, on the expected lengths."""
        first = 1 if len(self.generated) > 1 else 0
        times, costs = [], []
        for generated, tokens in list(zip(self.generated, self.tokens, strict=True))[first:]:
            sums, c = np.array([tokens[list(piece)].sum() for piece in pieces]), self.costs
            seconds = sums * c.batch_per_token_s if len(pieces) == 1 else c.fixed_s + sums * c.per_token_s
            scale = self.contention.decode_scale
            needs_s, free_s = scale * self._needs_s(generated, pieces), scale * generated.free_s
            step = follow_on_cores(
                needs_s, free_s, seconds, self.cores, freed=freed, join_s=c.join_s, contention=self.contention
            )
            times.append(step.time_s)
            costs.append(self.gpus * step.time_s + self.size * (step.time_s - step.learns_from_s))
        return np.array(times), np.array(costs)

    def _needs_s(self, generated: Generated, pieces: Sequence[tuple[int, ...]]) -> FloatArray:
        """Return (I, N) how long each actor decodes, alone on its core, until its responses of each piece are complete."""
        piece_of = np.zeros(self.prompts, np.int64)
        for number, piece in enumerate(pieces):
            piece_of[list(piece)] = number
        needs_s = np.zeros((len(pieces), len(generated.free_s)))
        np.maximum.at(needs_s, (piece_of[self.owner], self.actor_of), generated.completion_s)
        return needs_s

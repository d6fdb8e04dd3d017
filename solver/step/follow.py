"""Follows a step from its completions to its end: when each response is prepared and learned from, and on which GPUs.

``follow`` states preparation and learning as items with gates and calls the list scheduler (``solver.timing.work_schedule``),
as the executor does. Preparation goes first where both could start, because it unlocks learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given
from solver.model.workload import FloatArray, IntArray
from solver.step.work import Learner, StepWork, seconds_of
from solver.timing.work_schedule import NO_GATE, WorkInterval, WorkItems, WorkSchedule, schedule_work

PREPARE, LEARN, FINISH = "prepare", "learn", "finish"


class PhaseRow(NamedTuple):
    """One response prepared or learned from: ``prepare`` or ``learn``, the response, the server, and from when to when.

    ``finish`` is the end of a server's learning, of no response (-1).
    """

    kind: str
    response: int
    server: int
    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class PhaseSchedule:
    """Preparation and learning of a step.

    Attributes:
        prepare_end_s: when generation and preparation of all responses have ended.
        step_s: when learning has ended, too, and every actor has released its GPUs.
        gpu_s: GPU-seconds in addition to those of generation: of every other server from its first item to its last, with
            loading before it on released GPUs, and of the learner from its allocation to the end of the step.
        busy: intervals in which a server works without a pause, in the order in which they start.
        rows: all preparation and learning, in the order in which they start.
        actor: (S,) the actor whose GPUs a server has, -1 for GPUs beside the actors.
    """

    prepare_end_s: float
    step_s: float
    gpu_s: float
    busy: tuple[WorkInterval, ...]
    rows: tuple[PhaseRow, ...]
    actor: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Generated:
    """Generation of a step, timed or executed.

    Attributes:
        completion_s: (R,) when each response is complete, from the start of the step.
        free_s: (N,) when each actor releases its GPUs: at its cut, or when its last response is complete.
        gpu_seconds: of all actors.
    """

    completion_s: FloatArray
    free_s: FloatArray
    gpu_seconds: float

    @property
    def makespan_s(self) -> float:
        """Return when the last response is complete."""
        return float(self.completion_s.max(initial=0.0))

    def step_totals(self, work: StepWork, learner: Learner) -> tuple[float, float]:
        """Return seconds and GPU-seconds of the whole step, as ``follow`` has them; arrays of times are not checked."""
        servers = Servers.of(self.free_s, work, learner)
        schedule = _scheduled(self.completion_s, work, learner, servers)
        _, step_s, gpu_s = _totals(schedule, self.completion_s, self.free_s, work, learner, servers)
        return step_s, self.gpu_seconds + gpu_s


@dataclass(frozen=True, eq=False)
class Servers:
    """The S servers of preparation and learning, and what they pay.

    Attributes:
        free_s: (S,) when each is free, models loaded. pool: (S,) number of its pool; an item runs on any server of its pool.
        actor: (S,) the actor whose GPUs it has, -1 for GPUs beside the actors. learner: (S,) whether the learner holds it.
        prepare, learn: pools of preparation and of learning.
        learn_s: (R,) seconds of learning on a server. load_s, finish_s: of loading models, and of the end of learning.
    """

    free_s: FloatArray
    pool: IntArray
    actor: IntArray
    learner: NDArray[np.bool_]
    prepare: int
    learn: int
    learn_s: FloatArray
    load_s: float
    finish_s: float

    @classmethod
    def of(
        cls, free_s: FloatArray, work: StepWork, learner: Learner, charged: tuple[float, float, float] | None = None
    ) -> Servers:
        """Return the servers of a step whose actors release their GPUs at the (N,) times ``free_s``.

        Args:
            charged: what the learner pays, as ``Charges.of_size`` returns it; None: by the charges of the work.

        Raises:
            PlanningError: the charges of the work do not allow a learner of this size.
        """
        actors = len(free_s)
        slower, finish_s, load_s = charged or work.charges.of_size(learner.servers(actors))
        learn = int(learner.own > 0)
        prepare, released = learn if learner.one_pool else 0, learn if learner.learns_on_released else 0
        uses_released = learner.prepares_on_released or learner.learns_on_released
        parts = [  # (free from, pool, first actor or -1, whether it is the learner)
            *([(at_s + load_s, released, actor, False) for actor, at_s in enumerate(free_s.tolist())] if uses_released else []),
            *([(0.0, 0, -1, False)] * actors if learner.place == "beside" else []),
            *[(learner.from_s + load_s if learner.from_s else 0.0, 1, -1, True)] * learner.own,
        ]
        free, pool, actor, is_learner = (list(column) for column in zip(*parts, strict=True)) if parts else ([], [], [], [])
        return cls(
            np.array(free, float), np.array(pool, np.int64), np.array(actor, np.int64), np.array(is_learner, bool), prepare,
            learn, work.learn_s * slower, load_s, finish_s,
        )  # fmt: skip


def follow(completion_s: ArrayLike, free_s: ArrayLike, work: StepWork, learner: Learner) -> PhaseSchedule:
    """Return when preparation and learning run, once it is known when responses complete.

    Args:
        completion_s: (R,) when each response is complete, from the start of the step.
        free_s: (N,) when each actor releases its GPUs: at its cut, or when its last response is complete.

    Raises:
        PlanningError: a time is not finite, an array has another length, an argument is of the wrong type, or the learner is
            of a size that cannot learn.

    Example:
        >>> from solver.step.follow import follow
        >>> from solver.step.work import Learner, StepWork
        >>> work = StepWork([1, 1, 1], [2, 2, 2], group=[0, 0, 1])
        >>> learner = Learner(own=1, grows=False, streams=True, overlaps=True, place="released")
        >>> schedule = follow([2, 3, 9], [3, 9], work, learner)
        >>> schedule.prepare_end_s, schedule.step_s, schedule.gpu_s
        (10.0, 12.0, 19.0)
    """
    completion, free = checked_times(completion_s, free_s, work, learner)
    servers = Servers.of(free, work, learner)
    schedule = _scheduled(completion, work, learner, servers)
    prepare_end_s, step_s, gpu_s = _totals(schedule, completion, free, work, learner, servers)
    columns = [numbers.tolist() for numbers in (schedule.server, schedule.start_s, schedule.end_s)]
    count = len(work)
    rows = tuple(
        PhaseRow(
            *((PREPARE, LEARN)[item // count], item % count) if item < 2 * count else (FINISH, -1),
            *(column[item] for column in columns),
        )
        for item in schedule.order.tolist()
    )
    return PhaseSchedule(prepare_end_s, step_s, gpu_s, tuple(schedule.intervals()), rows, tuple(servers.actor.tolist()))


def checked_times(
    completion_s: ArrayLike, free_s: ArrayLike, work: StepWork, learner: Learner
) -> tuple[FloatArray, FloatArray]:
    """Return (R,) completions and (N,) times at which actors are free as arrays.

    Raises:
        PlanningError: see ``follow``.
    """
    if not isinstance(work, StepWork):
        raise PlanningError(f"work is {as_given(work)}; a StepWork is needed")
    if not isinstance(learner, Learner):
        raise PlanningError(f"learner is {as_given(learner)}; a Learner is needed")
    completion = seconds_of(
        "completion_s", completion_s, len(work), f"one time for each of the {len(work)} responses is needed"
    )
    free = seconds_of("free_s", free_s, None, "one time per actor is needed")
    if not len(free):
        raise PlanningError("free_s is empty; one time per actor is needed, for at least one actor")
    return completion, free


def _scheduled(completion: FloatArray, work: StepWork, learner: Learner, servers: Servers) -> WorkSchedule:
    """Return the list schedule of R preparations, as many learnings, and the end of each server's learning if it takes time."""
    count = len(work)
    ready = learner.prepares_from_s(completion)
    gates = work.unlocked_by(learner.streams)
    ends = int((servers.pool == servers.learn).sum()) if servers.finish_s and count else 0
    learned = count if ends else NO_GATE  # the gate that opens when all are learned from; the others are below it
    numbers = [count, count, ends]
    items = WorkItems(
        np.concatenate([work.prepare_s, servers.learn_s, np.full(ends, servers.finish_s)]),
        np.concatenate([ready, ready, np.zeros(ends)]),
        waits_for=np.concatenate([np.full(count, NO_GATE), gates, np.full(ends, learned)]),
        counts_for=np.concatenate([gates, np.full(count, learned), np.full(ends, NO_GATE)]),
        place=np.repeat([servers.prepare, servers.learn, servers.learn], numbers),
        priority=np.repeat([0.0, 1.0, 2.0], numbers),
    )
    return schedule_work(items, servers.free_s, servers.pool)


def _totals(
    schedule: WorkSchedule, completion: FloatArray, free: FloatArray, work: StepWork, learner: Learner, servers: Servers
) -> tuple[float, float, float]:
    """Return when preparation ends, when the step ends, and the GPU-seconds of ``PhaseSchedule``."""
    generated_s = max(float(completion.max(initial=0.0)), float(free.max(initial=0.0)))
    prepare_end_s = max(generated_s, float(schedule.end_s[: len(work)].max(initial=0.0)))
    step_s = max(prepare_end_s, schedule.finished_s)
    first, last = np.full(len(servers.free_s), np.inf), np.full(len(servers.free_s), -np.inf)
    takes_time = schedule.end_s > schedule.start_s
    np.minimum.at(first, schedule.server[takes_time], schedule.start_s[takes_time])
    np.maximum.at(last, schedule.server[takes_time], schedule.end_s[takes_time])
    load_s = np.where(servers.actor >= 0, servers.load_s, 0.0)
    held = np.where(np.isfinite(first), last - np.where(np.isfinite(first), first, 0.0) + load_s, 0.0)
    held = np.where(servers.learner, max(step_s - learner.from_s, 0.0), held)
    return prepare_end_s, step_s, work.gpus_per_actor * float(held.sum())

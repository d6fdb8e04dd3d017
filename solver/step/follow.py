"""Follows a step from its completions to its end: when each response is prepared and learned from, and on which GPUs.

``follow`` states preparation and learning as items with gates and calls the list scheduler (``solver.timing.work_schedule``),
as the executor does. Preparation goes first where both could start, because it unlocks learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given
from solver.model.workload import FloatArray
from solver.step.work import PhaseWork, Servers, servers_of, times
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
        step_s: when learning has ended, too, and every actor has given its GPUs back.
        gpu_s: GPU-seconds in addition to those of generation: of every other server from its first item to its last, of freed
            ones with loading before it, and of the learner from its allocation to the end of the step.
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


def follow(completion_s: ArrayLike, free_s: ArrayLike, work: PhaseWork) -> PhaseSchedule:
    """Return when preparation and learning run, once it is known when responses complete.

    Args:
        completion_s: (R,) when each response is complete, from the start of the step.
        free_s: (N,) when each actor gives its GPUs back: at its cut, or when its last response is complete.

    Raises:
        PlanningError: a time is not finite, an array has another length, or ``work`` is no PhaseWork.

    Example:
        >>> from solver.step.follow import follow
        >>> from solver.step.work import PhaseWork
        >>> work = PhaseWork([1, 1, 1], [2, 2, 2], group=[0, 0, 1], unlock="group", learner_gpus=1)
        >>> schedule = follow([2, 3, 9], free_s=[3, 9], work=work)
        >>> schedule.prepare_end_s, schedule.step_s, schedule.gpu_s
        (10.0, 12.0, 19.0)
    """
    completion, free = checked_times(completion_s, free_s, work)
    servers = servers_of(work, free)
    schedule = _scheduled(completion, work, servers)
    prepare_end_s, step_s, gpu_s = _totals(schedule, completion, free, work, servers)
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


def step_totals(completion_s: FloatArray, free_s: FloatArray, work: PhaseWork) -> tuple[float, float]:
    """Return ``step_s`` and ``gpu_s`` of ``follow``, without its rows; arrays of times are not checked."""
    servers = servers_of(work, free_s)
    return _totals(_scheduled(completion_s, work, servers), completion_s, free_s, work, servers)[1:]


def _scheduled(completion: FloatArray, work: PhaseWork, servers: Servers) -> WorkSchedule:
    """Return the list schedule of R preparations, as many learnings, and the end of each server's learning if it takes time."""
    count = len(work)
    gates = {"response": np.arange(count), "group": work.group, "batch": np.zeros(count, np.int64)}[work.unlock]
    gates = np.unique(gates, return_inverse=True)[1]
    ends = int((servers.pool == servers.learn).sum()) if work.finish_s and count else 0
    learned = count if ends else NO_GATE  # the gate that opens when all are learned from; the others are below it
    numbers = [count, count, ends]
    items = WorkItems(
        np.concatenate([work.prepare_s, work.learn_s, np.full(ends, work.finish_s)]),
        np.concatenate([completion, completion, np.zeros(ends)]),
        waits_for=np.concatenate([np.full(count, NO_GATE), gates, np.full(ends, learned)]),
        counts_for=np.concatenate([gates, np.full(count, learned), np.full(ends, NO_GATE)]),
        place=np.repeat([servers.prepare, servers.learn, servers.learn], numbers),
        priority=np.repeat([0.0, 1.0, 2.0], numbers),
    )
    return schedule_work(items, servers.free_s, servers.pool)


def checked_times(completion_s: ArrayLike, free_s: ArrayLike, work: PhaseWork) -> tuple[FloatArray, FloatArray]:
    """Return (R,) completions and (N,) times at which actors are free as arrays.

    Raises:
        PlanningError: see ``follow``.
    """
    if not isinstance(work, PhaseWork):
        raise PlanningError(f"work is {as_given(work)}; a PhaseWork is needed")
    completion = times("completion_s", completion_s, len(work), f"one time for each of the {len(work)} responses is needed")
    free = times("free_s", free_s, None, "one time per actor is needed")
    if not len(free):
        raise PlanningError("free_s is empty; one time per actor is needed, for at least one actor")
    return completion, free


def _totals(
    schedule: WorkSchedule, completion: FloatArray, free: FloatArray, work: PhaseWork, servers: Servers
) -> tuple[float, float, float]:
    """Return when preparation ends, when the step ends, and the GPU-seconds of ``PhaseSchedule``."""
    generated_s = max(float(completion.max(initial=0.0)), float(free.max(initial=0.0)))
    prepare_end_s = max(generated_s, float(schedule.end_s[: len(work)].max(initial=0.0)))
    step_s = max(prepare_end_s, schedule.finished_s)
    first, last = np.full(len(servers.free_s), np.inf), np.full(len(servers.free_s), -np.inf)
    takes_time = schedule.end_s > schedule.start_s
    np.minimum.at(first, schedule.server[takes_time], schedule.start_s[takes_time])
    np.maximum.at(last, schedule.server[takes_time], schedule.end_s[takes_time])
    load_s = np.where(servers.actor >= 0, work.load_s, 0.0)
    held = np.where(np.isfinite(first), last - np.where(np.isfinite(first), first, 0.0) + load_s, 0.0)
    held = np.where(servers.learner, max(step_s - (work.learner_from_s or 0.0), 0.0), held)
    return prepare_end_s, step_s, work.gpus_per_actor * float(held.sum())

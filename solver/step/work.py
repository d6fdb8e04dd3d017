"""Defines ``PhaseWork``: preparation and learning of a step's responses as work, and the servers that it may run on.

A server is the GPUs of one actor. Preparation (rewards, reference log-probabilities, values) of a response follows its
completion. Learning accumulates its gradient; the optimizer steps once, after all responses, so their order does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given, check_flags, is_number, is_whole
from solver.model.number_arrays import number_array
from solver.model.workload import FloatArray

IntArray = NDArray[np.int64]
UNLOCKS = ("response", "group", "batch")
PLACES = ("freed", "beside", "learner")


@dataclass(frozen=True, eq=False)
class PhaseWork:
    """Preparation and learning of R responses.

    Args:
        prepare_s, learn_s: (R,) seconds of each response on one server, 0 or more.
        group: (R,) group of each response, the samples of a prompt for example.
        unlock: what learning of a response waits for: preparation of the ``response`` itself (PPO), of its ``group`` (GRPO), or
            of the whole ``batch``.
        learner_gpus: GPUs of the learner beside the actors. With 0, learning runs where preparation runs.
        learner_from_s: when the learner's GPUs are allocated; None for the start of the step. They are held until its end.
        learner_grows: GPUs that actors have given back join the learner's. Learner and released GPUs are then one pool.
        place: where preparation runs: on GPUs ``freed`` by actors, on GPUs ``beside`` the cluster, as many as the actors have,
            or on the ``learner``.
        gpus_per_actor: GPUs of one server.
        load_s: seconds to load models on GPUs that are held meanwhile: on freed ones right before their first item, and on a
            learner's that are allocated after the start of the step.
        finish_s: seconds that every server of learning works when all responses are learned from: the reduction of gradients.

    Raises:
        PlanningError: seconds are negative or not finite, an array has another length, the learner has no whole server, or
            ``unlock`` or ``place`` is unknown.

    Example:
        >>> from solver.step.follow import follow
        >>> from solver.step.work import PhaseWork
        >>> work = PhaseWork([1.0, 1.0], [2.0, 2.0], group=[0, 0], unlock="group")
        >>> follow([3.0, 5.0], [3.0, 5.0], work).step_s
        8.0
    """

    prepare_s: Any
    learn_s: Any
    group: Any
    unlock: str = "response"
    learner_gpus: int = 0
    learner_from_s: float | None = None
    learner_grows: bool = False
    place: str = "freed"
    gpus_per_actor: int = 1
    load_s: float = 0.0
    finish_s: float = 0.0

    def __post_init__(self) -> None:
        seconds = _seconds("prepare_s", self.prepare_s, None)
        object.__setattr__(self, "prepare_s", seconds)
        object.__setattr__(self, "learn_s", _seconds("learn_s", self.learn_s, len(seconds)))
        object.__setattr__(self, "group", _groups(self.group, len(seconds)))
        _check_known("unlock", self.unlock, UNLOCKS)
        _check_known("place", self.place, PLACES)
        for name in ("load_s", "finish_s"):
            if not is_number(getattr(self, name), 0):
                given = as_given(getattr(self, name))
                raise PlanningError(f"{name} is {given}; a finite number of seconds of 0 or more is needed")
        self._check_learner()

    def _check_learner(self) -> None:
        """Refuse a learner that has no whole server, or that ``place`` needs and there is none."""
        if not is_whole(self.gpus_per_actor, 1):
            raise PlanningError(f"gpus_per_actor is {as_given(self.gpus_per_actor)}; a whole number of 1 or more is needed")
        least = 1 if self.place == "learner" else 0
        if not is_whole(self.learner_gpus, least):
            where = " where preparation runs on the learner" if least else ""
            raise PlanningError(
                f"learner_gpus is {as_given(self.learner_gpus)}; a whole number of {least} or more is needed{where}"
            )
        if self.learner_gpus % self.gpus_per_actor:
            raise PlanningError(
                f"learner_gpus is {self.learner_gpus}; a multiple of the {self.gpus_per_actor} GPUs of an actor is needed"
            )
        if self.learner_from_s is not None and not is_number(self.learner_from_s, 0):
            raise PlanningError(f"learner_from_s is {as_given(self.learner_from_s)}; a time of 0 or more, or None, is needed")
        check_flags(learner_grows=self.learner_grows)
        if not self.learner_gpus and (self.learner_grows or self.learner_from_s is not None):
            name = "learner_grows" if self.learner_grows else "learner_from_s"
            raise PlanningError(f"{name} is given, but the learner has no GPUs; give learner_gpus of 1 or more")

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self.prepare_s)

    @property
    def total_s(self) -> float:
        """Return the seconds of all preparation and learning on one server."""
        return float(self.prepare_s.sum() + self.learn_s.sum())

    @property
    def learner_servers(self) -> int:
        """Return the servers of the learner."""
        return self.learner_gpus // self.gpus_per_actor

    def unlocked_s(self, prepared_s: ArrayLike) -> FloatArray:
        """Return (R,) when each response may be learned from, given (R,) times at which the responses are prepared."""
        prepared = np.asarray(prepared_s, dtype=float)
        if self.unlock == "response" or not len(prepared):
            return prepared
        if self.unlock == "batch":
            return np.full(len(prepared), prepared.max())
        names, of = np.unique(self.group, return_inverse=True)
        latest = np.full(len(names), -np.inf)
        np.maximum.at(latest, of, prepared)
        return np.asarray(latest[of])


@dataclass(frozen=True, eq=False)
class Servers:
    """The S servers of preparation and learning.

    Attributes:
        free_s: (S,) when each is free. pool: (S,) number of its pool; an item runs on any server of its pool.
        actor: (S,) the actor whose GPUs it has, -1 for GPUs beside the actors. learner: (S,) whether the learner holds it.
        prepare, learn: pools of preparation and of learning.
    """

    free_s: FloatArray
    pool: IntArray
    actor: IntArray
    learner: NDArray[np.bool_]
    prepare: int
    learn: int


def servers_of(work: PhaseWork, free_s: FloatArray) -> Servers:
    """Return the servers of a step whose actors give their GPUs back at the (N,) times ``free_s``.

    Models are then loaded there.
    """
    actors, learner = len(free_s), work.learner_servers
    uses_freed = work.place == "freed" or work.learner_grows
    prepare = 1 if work.place == "learner" or (work.learner_grows and work.place == "freed") else 0
    learn = 1 if learner else prepare
    freed_pool = 1 if work.learner_grows else 0
    parts = [  # (free from, pool, first actor or -1, whether it is the learner)
        *([(at_s + work.load_s, freed_pool, actor, False) for actor, at_s in enumerate(free_s.tolist())] if uses_freed else []),
        *([(0.0, 0, -1, False)] * actors if work.place == "beside" else []),
        *[(work.learner_from_s + work.load_s if work.learner_from_s else 0.0, 1, -1, True)] * learner,
    ]
    free, pool, actor, is_learner = (list(column) for column in zip(*parts, strict=True)) if parts else ([], [], [], [])
    return Servers(
        np.array(free, float), np.array(pool, np.int64), np.array(actor, np.int64), np.array(is_learner, bool), prepare, learn
    )


def times(name: str, values: ArrayLike, length: int | None, needed: str) -> FloatArray:
    """Return (``length``,) finite times; refuse anything else, saying what is ``needed``."""
    array = number_array(name, values)
    if array.ndim != 1 or (length is not None and len(array) != length):
        raise PlanningError(f"{name} has shape {array.shape}; {needed}")
    seconds = array.astype(float)
    wrong = np.flatnonzero(~np.isfinite(seconds))
    if len(wrong):
        raise PlanningError(f"{name}[{wrong[0]}] is {seconds[wrong[0]]:g}; a finite time is needed")
    return seconds


def _seconds(name: str, values: ArrayLike, length: int | None) -> FloatArray:
    """Return (R,) seconds of 0 or more."""
    seconds = times(name, values, length, "one number per response is needed")
    wrong = np.flatnonzero(seconds < 0)
    if len(wrong):
        raise PlanningError(f"{name}[{wrong[0]}] is {seconds[wrong[0]]:g}; seconds of 0 or more are needed")
    return seconds


def _groups(group: ArrayLike, responses: int) -> IntArray:
    """Return (R,) numbers of groups."""
    array = number_array("group", group)
    if array.shape != (responses,):
        raise PlanningError(f"group has shape {array.shape}; the group of each of the {responses} responses is needed")
    numbers = array.astype(float)
    wrong = np.flatnonzero(~np.isfinite(numbers) | (numbers != np.floor(numbers)))
    if len(wrong):
        raise PlanningError(f"group[{wrong[0]}] is {numbers[wrong[0]]:g}; a whole number is needed")
    return numbers.astype(np.int64)


def _check_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise PlanningError(f"{name} {as_given(value)} is unknown; choose one of {', '.join(known)}")

"""What preparation and learning of a step take (``StepWork``), and where and when they run (``Learner``).

A server is the GPUs of one actor. Preparation (rewards, reference log-probabilities, values) of a response follows its
completion. Learning accumulates its gradient; the optimizer steps once, after all responses, so their order does not matter.
Before lengths are known, work is stated per token (``TokenWork``), as configurations and options of policies carry it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.cluster import MOST_GPUS
from solver.model.errors import PlanningError, as_given, check_flags, is_number, is_whole
from solver.model.number_arrays import number_array
from solver.model.workload import FloatArray, Workload
from solver.step.charges import Charges

IntArray = NDArray[np.int64]
UNLOCKS = ("response", "group")
PLACES = ("learner", "released", "beside")


@dataclass(frozen=True, eq=False)
class StepWork:
    """What preparation and learning of R responses take.

    Args:
        prepare_s, learn_s: (R,) seconds of each response on one server at full speed, 0 or more.
        group: (R,) group of each response, the samples of a prompt for example.
        unlock: what streamed learning of a response waits for: preparation of the ``response`` itself (PPO) or of its
            ``group`` (GRPO).
        gpus_per_actor: GPUs of one server.
        charges: what a learner pays beside, by its number of servers.

    Raises:
        PlanningError: seconds are negative or not finite, an array has another length, or ``unlock`` is unknown.

    Example:
        >>> from solver.step.follow import follow
        >>> from solver.step.work import Learner, StepWork
        >>> work = StepWork([1.0, 1.0], [2.0, 2.0], group=[0, 0])
        >>> follow([3.0, 5.0], [3.0, 5.0], work, Learner(streams=True, overlaps=True)).step_s
        8.0
    """

    prepare_s: Any
    learn_s: Any
    group: Any
    unlock: str = "group"
    gpus_per_actor: int = 1
    charges: Charges = field(default_factory=Charges)

    def __post_init__(self) -> None:
        seconds = _seconds("prepare_s", self.prepare_s, None)
        object.__setattr__(self, "prepare_s", seconds)
        object.__setattr__(self, "learn_s", _seconds("learn_s", self.learn_s, len(seconds)))
        object.__setattr__(self, "group", _groups(self.group, len(seconds)))
        _check_known("unlock", self.unlock, UNLOCKS)
        _check_charges(self.charges)
        if not is_whole(self.gpus_per_actor, 1):
            raise PlanningError(f"gpus_per_actor is {as_given(self.gpus_per_actor)}; a whole number of 1 or more is needed")

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self.prepare_s)

    @property
    def total_s(self) -> float:
        """Return the seconds of all preparation and learning on one server at full speed."""
        return float(self.prepare_s.sum() + self.learn_s.sum())

    def unlocked_by(self, streams: bool) -> IntArray:
        """Return (R,) the number, from 0, of the set of responses that are prepared before each one is learned from.

        Args:
            streams: learning does not wait for the whole batch.
        """
        if not streams:
            return np.zeros(len(self), np.int64)
        if self.unlock == "response":
            return np.arange(len(self))
        return np.unique(self.group, return_inverse=True)[1]

    def unlocked_s(self, prepared_s: ArrayLike, streams: bool = True) -> FloatArray:
        """Return (R,) when each response may be learned from, given (R,) times at which the responses are prepared."""
        prepared = np.asarray(prepared_s, dtype=float)
        if not len(prepared) or (streams and self.unlock == "response"):
            return prepared
        sets = self.unlocked_by(streams)
        latest = np.full(int(sets.max()) + 1, -np.inf)
        np.maximum.at(latest, sets, prepared)
        return np.asarray(latest[sets])


@dataclass(frozen=True)
class TokenWork:
    """Work of a step before its lengths are known: preparation and learning in proportion to tokens, prompts included.

    Args:
        prepare_per_token_s, learn_per_token_s: seconds per token on one server at full speed, 0 or more.
        unlock, charges: see ``StepWork``; groups are prompts.

    Raises:
        PlanningError: seconds per token are negative or not finite, or ``unlock`` is unknown.

    Example:
        >>> import solver
        >>> from solver.step.work import TokenWork
        >>> workload = solver.Workload([10], [0, 0], [90, 190])
        >>> TokenWork(0.001, 0.002).of(workload).learn_s.tolist()
        [0.2, 0.4]
    """

    prepare_per_token_s: float
    learn_per_token_s: float
    unlock: str = "group"
    charges: Charges = field(default_factory=Charges)

    def __post_init__(self) -> None:
        for name in ("prepare_per_token_s", "learn_per_token_s"):
            if not is_number(getattr(self, name), 0):
                raise PlanningError(f"{name} is {as_given(getattr(self, name))}; a finite number of 0 or more is needed")
        _check_known("unlock", self.unlock, UNLOCKS)
        _check_charges(self.charges)

    def of(self, workload: Workload, gpus_per_actor: int = 1) -> StepWork:
        """Return the work of these lengths; of scenarios, the workload's own lengths count."""
        tokens = workload.prompt_tokens[workload.prompt_of] + workload.response_tokens
        return StepWork(
            tokens * self.prepare_per_token_s, tokens * self.learn_per_token_s, workload.prompt_of, self.unlock,
            gpus_per_actor, self.charges,
        )  # fmt: skip


@dataclass(frozen=True)
class Learner:
    """Where and when a step is prepared and learned from. By default both follow generation, on all GPUs of the actors.

    Args:
        own: servers of the learner in addition to the actors', each the GPUs of one actor. from_s: when they are allocated;
            they are held until the end of the step.
        grows: GPUs that actors have released join the ``own`` servers. Without ``own`` servers learning runs on the GPUs that
            prepare: released ones, or those ``beside`` the cluster.
        streams: a response is learned from as soon as it is unlocked; else when the whole batch is prepared.
        overlaps: a response is prepared as soon as it is complete; else when the whole batch is.
        place: where preparation runs: on the ``learner``, on GPUs ``released`` by actors, or on GPUs ``beside`` the cluster, as
            many as the actors have. Without ``own`` servers ``learner`` means the released ones.

    Raises:
        PlanningError: a number is out of its range, ``place`` is unknown, or without ``own`` servers a start is given or no
            GPUs are left to learn on.
    """

    own: int = 0
    from_s: float = 0.0
    grows: bool = True
    streams: bool = False
    overlaps: bool = False
    place: str = "learner"

    def __post_init__(self) -> None:
        if not is_whole(self.own, 0):
            raise PlanningError(f"own is {as_given(self.own)}; a whole number of servers of 0 or more is needed")
        if self.own > MOST_GPUS:
            raise PlanningError(f"own is {self.own:,} servers; at most {MOST_GPUS:,} are possible, as many as GPUs")
        if not is_number(self.from_s, 0):
            raise PlanningError(f"from_s is {as_given(self.from_s)}; a time of 0 or more is needed")
        check_flags(grows=self.grows, streams=self.streams, overlaps=self.overlaps)
        _check_known("place", self.place, PLACES)
        if self.own:
            return
        if self.from_s:
            raise PlanningError(
                f"from_s is {self.from_s:g}, but the learner has no servers of its own; leave it out, or give own"
            )
        if not self.grows and self.place != "beside":
            raise PlanningError("grows is False, but the learner has no servers of its own to learn on; give own")

    def servers(self, actors: int) -> int:
        """Return the servers of the learner beside a plan of so many actors."""
        return self.own + (actors if self.grows or not self.own else 0)

    def prepares_from_s(self, completion_s: FloatArray) -> FloatArray:
        """Return (R,) when each response may be prepared, given (R,) times at which the responses are complete."""
        return completion_s if self.overlaps else np.full(len(completion_s), completion_s.max(initial=0.0))

    @property
    def prepares_on(self) -> str:
        """Return ``place``, or ``released`` where the learner has only released GPUs."""
        return "released" if self.place == "learner" and not self.own else self.place

    @property
    def one_pool(self) -> bool:
        """Return whether preparation and learning run on the same servers."""
        return not self.own or self.place == "learner" or (self.grows and self.place == "released")

    @property
    def learns_on_released(self) -> bool:
        """Return whether learning runs on GPUs that actors have released."""
        return self.grows if self.own else self.place != "beside"

    @property
    def prepares_on_released(self) -> bool:
        """Return whether preparation runs on GPUs that actors have released."""
        return self.prepares_on == "released" or (self.place == "learner" and self.grows)


def seconds_of(name: str, values: ArrayLike, length: int | None, needed: str) -> FloatArray:
    """Return (``length``,) finite times; refuse anything else, saying what is ``needed``."""
    array = number_array(name, values)
    if array.ndim != 1 or (length is not None and len(array) != length):
        raise PlanningError(f"{name} has shape {array.shape}; {needed}")
    seconds = array.astype(float)
    wrong = np.flatnonzero(~np.isfinite(seconds))
    if len(wrong):
        raise PlanningError(f"{name}[{wrong[0]}] is {seconds[wrong[0]]:g}; a finite time is needed")
    return seconds


def check_fits(work: StepWork, responses: int, gpus: int) -> None:
    """Refuse work of another number of responses, or of another number of GPUs per actor (a PlanningError)."""
    if len(work) != responses:
        raise PlanningError(
            f"the work has {len(work)} responses, but the workload has {responses}; one entry for each is needed"
        )
    if work.gpus_per_actor != gpus:
        raise PlanningError(f"gpus_per_actor of the work is {work.gpus_per_actor}, but an actor has {gpus} GPUs; give {gpus}")


def _seconds(name: str, values: ArrayLike, length: int | None) -> FloatArray:
    """Return (R,) seconds of 0 or more."""
    seconds = seconds_of(name, values, length, "one number per response is needed")
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


def _check_charges(charges: Charges) -> None:
    if not isinstance(charges, Charges):
        raise PlanningError(f"charges is {as_given(charges)}; Charges are needed")


BESIDE_DECODING = Learner(streams=True, overlaps=True)
"""Preparation and learning on released GPUs, each as soon as it can start."""

"""Limits after which an actor counts as lost or slow, and how often its responses are retried.

Inputs: latency models and reports. ``failure_handling.py`` applies the limits and handles lost actors; ``recovery.py`` chooses
where their responses continue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlhfless.executor.distributed.messages import ActorLost, ActorReport
from rlhfless.system.child import HEARTBEAT_TIMEOUT_S
from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.latency import LatencyModel
from solver.model.objective import Objective

GRACE_S = 1.0  # after the time by which one should have been heard of: this program may have been stopped itself
WINDOW = 8  # reports over which an actor's speed is measured


@dataclass(frozen=True)
class Faults:
    """Limits that decide when an actor counts as lost or slow, and how often responses and actors are retried.

    Attributes:
        retries: how often a response may move to another actor because its actor was lost.
        restarts: how often a new actor may start on the same GPUs within a step after one was lost there.
        silence_factor: a working actor is lost if it reports nothing for this multiple of a planned iteration.
        silence_floor_s: minimum of that time in seconds; also the time without a heartbeat after which a process with a work
            item without ``seconds`` is lost.
        min_start_timeout_s: minimum of that time for an actor that has not reported yet, and for a process that loads models
            for work items.
        slow_factor: an actor is slow if its iterations, relative to plan, take this multiple of the others'. Its responses
            migrate if recovery planning expects a gain. Infinite: never.
        objective: objective by which recovery plans are compared.

    Raises:
        PlanningError: a value is out of range.
    """

    retries: int = 3
    restarts: int = 3
    silence_factor: float = 20.0
    silence_floor_s: float = HEARTBEAT_TIMEOUT_S
    min_start_timeout_s: float = 120.0
    slow_factor: float = 6.0
    objective: Objective = Objective()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        for name in ("retries", "restarts"):
            if not is_whole(getattr(self, name), 0):
                raise PlanningError(f"{name} is {as_given(getattr(self, name))}; a whole number of 0 or more is needed")
        for name, minimum in (("silence_factor", 1), ("silence_floor_s", 0), ("min_start_timeout_s", 0)):
            if not is_number(getattr(self, name), minimum):
                raise PlanningError(
                    f"{name} is {as_given(getattr(self, name))}; a finite number of {minimum} or more is needed"
                )
        if not self.slow_factor > 1:
            raise PlanningError(
                f"slow_factor is {as_given(self.slow_factor)}; a number above 1, or infinity for never, is needed"
            )

    def silence_s(self, latency: LatencyModel, slots: int, responses: int, joining: int, longest_tokens: int) -> float:
        """Return the seconds for which a working actor may report nothing.

        They cover an iteration of all its responses, after the prefill of those that may join (all with contexts of
        ``longest_tokens``).
        """
        batch, admitted = min(slots, responses), min(slots, joining)
        planned_s = float(latency.iteration_s(batch, batch * longest_tokens))
        if admitted:
            planned_s += float(latency.prefill_s(admitted * longest_tokens))
        return max(self.silence_floor_s, self.silence_factor * planned_s)

    def start_s(self, latency: LatencyModel) -> float:
        """Return the seconds that an actor may take from its start to its first report."""
        return max(self.min_start_timeout_s, self.silence_factor * (latency.start_s + latency.sync_s))


def silent(since_s: float | None, limit_s: float, limited_by: str) -> ActorLost:
    """Return the loss of an actor that says nothing.

    Args:
        since_s: when it was last heard of; None: it was not since it was started. limit_s: for how long it may say nothing.
        limited_by: the field of ``Faults`` that sets it.
    """
    since = "since it was started" if since_s is None else f"since {since_s:.1f} s"
    return ActorLost(
        f"has not reported {since} although it has to within {limit_s:.3g} s ({limited_by} of Faults, heartbeat_timeout_s of a "
        "training run)"
    )


class Speed:
    """Ratio of an actor's measured to its planned iteration times, over its last reports."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._taken: list[tuple[float, float]] = []  # seconds, and seconds planned, of each report

    def observe(self, report: ActorReport) -> None:
        """Enter a report's decode spans."""
        taken_s = planned_s = 0.0
        for span in report.spans:
            if span.phase == "decode" and span.batch_mean > 0:
                taken_s += span.end_s - span.start_s
                planned_s += span.tokens / span.batch_mean * float(self._latency.iteration_s(span.batch_mean, span.kv_tokens))
        if planned_s > 0:
            self._taken = [*self._taken[1 - WINDOW :], (taken_s, planned_s)]

    @property
    def measured(self) -> bool:
        """Return whether the actor has reported often enough."""
        return len(self._taken) == WINDOW

    @property
    def ratio(self) -> float:
        """Return measured seconds per planned second; NaN before anything was reported."""
        taken_s, planned_s = np.sum(self._taken, axis=0) if self._taken else (math.nan, 1.0)
        return float(taken_s / planned_s)

"""Policies for the life of actors: how long they stay alive after their work, and how long before it they are started.

Inputs: when steps began and ended, and what was planned. A cold start costs GPU time, and so does waiting for work, before or
after it. Which of the two costs more depends on the time between steps, so both are policies. ``warm_pool.py`` records the GPU
time of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from rlhfless.errors import InputError
from solver.model.errors import as_given
from solver.model.objective import NonGenerationPhases
from solver.model.plan import Plan


@dataclass
class StepHistory:
    """The steps of a run as a pool sees them, in seconds since the run's start.

    Attributes:
        starts_s: when each step's generation began, in order; generated_s: when that of each complete one ended.
        plan, phases: of the last step.
        start_s: the longest cold start so far; 0 before there was one.
    """

    starts_s: list[float] = field(default_factory=list)
    generated_s: list[float] = field(default_factory=list)
    plan: Plan | None = None
    phases: NonGenerationPhases = field(default_factory=NonGenerationPhases)
    start_s: float = 0.0

    def begin(self, at_s: float, plan: Plan, phases: NonGenerationPhases) -> None:
        """Note that the next step begins."""
        self.starts_s.append(at_s)
        self.plan, self.phases = plan, phases

    def give_up(self) -> None:
        """Note that the running step will not be complete, so that forecasts ignore it."""
        self.starts_s.pop()

    @property
    def steps_s(self) -> list[float]:
        """Return the seconds from each step's generation to the next one's."""
        return [after - before for before, after in zip(self.starts_s, self.starts_s[1:], strict=False)]

    @property
    def rests_s(self) -> list[float]:
        """Return the seconds from the end of each generation to the beginning of the next one."""
        return [after - over for over, after in zip(self.generated_s, self.starts_s[1:], strict=False)]


class Forecast(Protocol):
    """Forecasts when the next step begins."""

    def next_start_s(self, history: StepHistory) -> float | None:
        """Return the forecast start, called once the last step has begun; None when no forecast is possible."""
        ...


@dataclass(frozen=True)
class ShortestStep:
    """The rule of RLHFless (arXiv 2602.22718): the shortest execution time of earlier steps plus a fixed buffer.

    The shortest time is used, so that actors are up before the step needs them. There is no forecast during the first step.

    Raises:
        InputError: a buffer that is not a number of 0 or more.
    """

    buffer_s: float = 0.0

    def __post_init__(self) -> None:
        _refuse("ShortestStep.buffer_s", self.buffer_s)

    def next_start_s(self, history: StepHistory) -> float | None:
        """See ``Forecast``."""
        if not history.steps_s:
            return None
        return history.starts_s[-1] + min(history.steps_s) + self.buffer_s


@dataclass(frozen=True)
class PlanForecast:
    """The solver's own forecast: the planned makespan, then the other phases of the step.

    Their duration is given by the caller of ``run_step``; without it, the shortest one so far is used. There is no forecast as
    long as neither is known.

    Raises:
        InputError: a buffer that is not a number of 0 or more.
    """

    buffer_s: float = 0.0

    def __post_init__(self) -> None:
        _refuse("PlanForecast.buffer_s", self.buffer_s)

    def next_start_s(self, history: StepHistory) -> float | None:
        """See ``Forecast``."""
        assert history.plan is not None, "asked before the first step"
        rest_s = history.phases.seconds or min(history.rests_s, default=None)
        if rest_s is None:
            return None
        return history.starts_s[-1] + history.plan.makespan_s + rest_s + self.buffer_s


@dataclass(frozen=True)
class Lifecycle:
    """Policy of a pool for its actors between steps.

    Attributes:
        idle_timeout_s: an actor without work ends after this time: 0 ends it at once, infinity never.
        prewarm: forecasts the next step. The actors of the last plan are started early enough to be up by then; None starts
            actors when they are needed.
        patience_s: a prewarmed actor ends when its step has not begun this long after the forecast.

    Raises:
        InputError: a time that is not a number of 0 or more.
    """

    idle_timeout_s: float = 0.0
    prewarm: Forecast | None = None
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        _refuse("Lifecycle.idle_timeout_s", self.idle_timeout_s, math.inf)
        _refuse("Lifecycle.patience_s", self.patience_s, math.inf)

    @classmethod
    def cold(cls) -> Lifecycle:
        """Return the life-cycle in which every actor starts when it is needed and ends with its work: none waits, each pays for
        a start.
        """
        return cls()

    @classmethod
    def serverful(cls) -> Lifecycle:
        """Return the baseline: actors keep their GPUs from their first step on, during learning too; nothing starts twice."""
        return cls(idle_timeout_s=math.inf)

    def keeps_until_s(self, history: StepHistory, now_s: float) -> float:
        """Return until when to keep an actor that has no work from now on; ``now_s`` means to end it at once.

        It is also kept where the next step's actors would already have to start by now.
        """
        kept_s = now_s + self.idle_timeout_s
        warm_s = self.prewarm_s(history)
        if warm_s is not None and warm_s <= now_s:
            kept_s = max(kept_s, self.waits_until_s(history, now_s))
        return kept_s

    def prewarm_s(self, history: StepHistory) -> float | None:
        """Return when to start the next step's actors so that they are up when it begins; None for no prewarming."""
        begins_s = None if self.prewarm is None or not history.starts_s else self.prewarm.next_start_s(history)
        return None if begins_s is None else begins_s - history.start_s

    def waits_until_s(self, history: StepHistory, now_s: float) -> float:
        """Return until when a prewarmed actor waits for its step."""
        warm_s = self.prewarm_s(history)
        assert warm_s is not None
        return max(now_s, warm_s + history.start_s) + self.patience_s


def _refuse(name: str, value: float, maximum: float = math.nextafter(math.inf, 0.0)) -> None:
    if not 0.0 <= value <= maximum:
        wanted = "number" if maximum == math.inf else "finite number"
        raise InputError(f"{name} is {as_given(value)}; a {wanted} of seconds, 0 or more, is needed")

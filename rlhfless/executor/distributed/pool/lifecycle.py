"""Policies for the life of actors: how long they stay alive after their work, and how long before it they are started.

Inputs: when steps began and ended, and what was planned. A cold start costs GPU time, and so does waiting for work, before or
after it. Which of the two costs more depends on the time between steps: by default both are measured and compared.
``pool.py`` asks, and records the GPU time of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, Protocol

from rlhfless.errors import InputError
from solver.model.errors import as_given, is_number
from solver.model.objective import TIME_WEIGHT, NonGenerationPhases, Objective
from solver.model.plan import Plan


@dataclass
class StepHistory:
    """The steps of a run as a pool sees them, in seconds since the run's start.

    Attributes:
        starts_s: when each step's generation began, in order; generated_s: when that of each complete one ended.
        plan, phases: of the last step.
        start_s: the longest cold start so far; 0 before there was one.
        decoding_s: seconds of generation of each complete one, without its cold starts.
    """

    starts_s: list[float] = field(default_factory=list)
    generated_s: list[float] = field(default_factory=list)
    plan: Plan | None = None
    phases: NonGenerationPhases = field(default_factory=NonGenerationPhases)
    start_s: float = 0.0
    decoding_s: list[float] = field(default_factory=list)

    def begin(self, at_s: float, plan: Plan, phases: NonGenerationPhases) -> None:
        """Note that the next step begins."""
        self.starts_s.append(at_s)
        self.plan, self.phases = plan, phases

    def end_generation(self, at_s: float, cold_s: float) -> None:
        """Note that the last step's generation is complete; its longest cold start took ``cold_s`` (0: there was none)."""
        self.generated_s.append(at_s)
        self.decoding_s.append(max(0.0, at_s - self.starts_s[-1] - cold_s))
        self.start_s = max(self.start_s, cold_s)

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

    def expected_start_s(self, now_s: float) -> float | None:
        """Return when the next step is expected, now or later; None when nothing is known of it.

        The other phases take as long as the caller of ``run_step`` said, or else the median of what they took so far. While
        the last step generates, it takes as long as the median step so far without cold starts, or as it was planned to.
        """
        rest_s = self.phases.seconds or (median(self.rests_s) if self.rests_s else None)
        if rest_s is None:
            return None
        if len(self.generated_s) == len(self.starts_s):
            return max(now_s, self.generated_s[-1] + rest_s)
        assert self.plan is not None, "asked before the first step"
        generation_s = median(self.decoding_s) if self.decoding_s else self.plan.makespan_s
        return max(now_s, self.starts_s[-1] + generation_s) + rest_s


class Forecast(Protocol):
    """Forecasts when the next step begins."""

    def next_start_s(self, history: StepHistory) -> float | None:
        """Return the forecast start, called once the last step has begun; None when no forecast is possible."""
        ...


@dataclass(frozen=True)
class ShortestStep:
    """Forecasts the start of the next step as RLHFless (arXiv 2602.22718) does: the shortest time of earlier steps plus a fixed
    buffer.

    The shortest time is used so that actors are ready before the step needs them. There is no forecast during the first step.

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
    """Forecasts the start of the next step from the plan: the planned makespan, then the other phases of the step.

    The caller of ``run_step`` gives the duration of the other phases; without it, the shortest one so far is used. There is no
    forecast while neither is known.

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


class KeepDecision(NamedTuple):
    """Whether an actor without work waits for the next step.

    Attributes:
        until_s: until when it waits, if its next step does not begin before; the time of the decision: it ends at once.
        waiting_gpu_s: GPU-seconds until the next step is expected; None where none is expected yet.
        starting_gpu_s: GPU-seconds of starting it again, the delay of the step included. Both are None where the user gave a
            time.
    """

    until_s: float
    waiting_gpu_s: float | None = None
    starting_gpu_s: float | None = None

    @property
    def by_cost(self) -> bool:
        """Return whether costs have decided."""
        return self.starting_gpu_s is not None


@dataclass(frozen=True)
class Lifecycle:
    """What a pool does with its actors between steps: keep, stop or prewarm them.

    By default an actor without work is kept if that is cheaper than stopping it. Keeping it costs its GPUs until the next step.
    Stopping it costs its GPUs while it starts again, and delays the step. If a step holds all GPUs for its whole duration, a
    second of delay is worth ``w / (1 - w)`` seconds of all GPUs (``Objective.cost_of_a_second``; w is the time weight). So an
    actor is kept if the next step is expected within ``start_s / (1 - w)``, or within ``start_s`` if it would be prewarmed.
    Both times are measured: the pool's longest cold start, and the median time between generation and the next step. Before the
    second step, an actor is kept for as long as a start would take. It is decided once, when an actor has no work left.

    Attributes:
        idle_timeout_s: seconds after which an actor without work is stopped: 0 stops it at once, infinity never. None: costs
            decide.
        prewarm: forecast of the next step; the actors of the last plan are started early enough to be ready by then. None:
            actors start when they are needed.
        patience_s: a prewarmed actor is stopped if its step has not begun this many seconds after the forecast.
        time_weight: w in ``T^w C^(1-w)``, from 0 (cost only) to 1 (time only: actors always wait).

    Raises:
        InputError: a time that is not a number of 0 or more, or a weight that is not one from 0 to 1.
    """

    idle_timeout_s: float | None = None
    prewarm: Forecast | None = None
    patience_s: float = 60.0
    time_weight: float = TIME_WEIGHT

    def __post_init__(self) -> None:
        if self.idle_timeout_s is not None:
            _refuse("Lifecycle.idle_timeout_s", self.idle_timeout_s, math.inf)
        _refuse("Lifecycle.patience_s", self.patience_s, math.inf)
        if not (is_number(self.time_weight, 0) and self.time_weight <= 1):
            raise InputError(
                f"Lifecycle.time_weight is {as_given(self.time_weight)}; a number from 0 (cost only) to 1 (time only) is needed"
            )

    @classmethod
    def cold(cls) -> Lifecycle:
        """Return the life cycle without reuse: an actor starts when it is needed and stops with its work."""
        return cls(idle_timeout_s=0.0)

    @classmethod
    def serverful(cls) -> Lifecycle:
        """Return the baseline: actors keep their GPUs from their first step on, during learning too; nothing starts twice."""
        return cls(idle_timeout_s=math.inf)

    def keep(self, history: StepHistory, now_s: float, gpus: int) -> KeepDecision:
        """Return whether an actor with this many GPUs and no work is kept, and why.

        It is also kept if the next step's actors would already have to start by now.
        """
        by_cost = self.idle_timeout_s is None
        decision = self._by_cost(history, now_s, gpus) if by_cost else KeepDecision(now_s + (self.idle_timeout_s or 0.0))
        warm_s = self.prewarm_s(history)
        if warm_s is not None and warm_s <= now_s:
            decision = decision._replace(until_s=max(decision.until_s, self.waits_until_s(history, now_s)))
        return decision

    def _by_cost(self, history: StepHistory, now_s: float, gpus: int) -> KeepDecision:
        """Compare waiting with starting. An actor whose step does not come waits as long again as starting would have cost."""
        delay = 0.0 if self.prewarm is not None else Objective(self.time_weight).cost_of_a_second(1.0, 1.0)
        starting_s = history.start_s * (1.0 + delay) if history.start_s else 0.0
        next_s = None if self.prewarm is None else self.prewarm.next_start_s(history)
        next_s = history.expected_start_s(now_s) if next_s is None else max(next_s, now_s)
        waiting_s = 0.0 if next_s is None else next_s - now_s
        until_s = now_s + waiting_s + starting_s if waiting_s <= starting_s else now_s
        return KeepDecision(until_s, None if next_s is None else waiting_s * gpus, starting_s * gpus)

    def prewarm_s(self, history: StepHistory) -> float | None:
        """Return when to start the next step's actors so that they are ready when it begins; None without prewarming."""
        begins_s = None if self.prewarm is None or not history.starts_s else self.prewarm.next_start_s(history)
        return None if begins_s is None else begins_s - history.start_s

    def waits_until_s(self, history: StepHistory, now_s: float) -> float:
        """Return the time until which a prewarmed actor waits for its step."""
        warm_s = self.prewarm_s(history)
        assert warm_s is not None
        return max(now_s, warm_s + history.start_s) + self.patience_s


def _refuse(name: str, value: float, maximum: float = math.nextafter(math.inf, 0.0)) -> None:
    if not 0.0 <= value <= maximum:
        wanted = "number" if maximum == math.inf else "finite number"
        raise InputError(f"{name} is {as_given(value)}; a {wanted} of seconds, 0 or more, is needed")

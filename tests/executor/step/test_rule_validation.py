"""What a rule cannot order or ask for, and the sentence that says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from executor_samples import plan_of, run, uniform_step
from wall_clock_steps import on_the_wall_clock

from rlhfless.executor import RuleError, StepFailed, StepRecord
from solver.model.runtime_rules import ActorCounts, ActorView, Cut, Decision, Move, StepState, Trigger, Triggers


@dataclass
class Says:
    """Decides at 0.05 what it is told to."""

    decided: Any
    name: str = "says"
    asked: bool = False

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return None if self.asked else Trigger(time_s=0.05)

    def decide(self, now_s: float, state: StepState) -> Any:
        self.asked = True
        return self.decided


@pytest.mark.parametrize(
    ("decided", "sentence"),
    [
        (None, ()),
        ([7], ()),
        ([Cut(0, (5,))], ()),  # type: ignore[arg-type]
        ([Move(9, 1)], ("to_actor",)),
        ([Move(-1, 1)], ("to_actor",)),
        ([Cut(7, ())], ("actor 7",)),
        ([Move(0, 7)], ("to_actor", "actor 0")),
        ([Move(0, 0)], ("actor 0",)),
        ([Cut(0, (Move(0, 1),))], ("actor 0",)),
        ([Cut(0, (Move(0, 1), Move(1, 0)))], ("to_actor", "actor 0")),
        ([Cut(0, (Move(0, 1), Move(1, 1))), Move(2, 0)], ("actor 1",)),
        ([Cut(0, (Move(0, 1), Move(1, 1))), Cut(0, ())], ("actor 0",)),
    ],
)
@pytest.mark.parametrize("clock", [run, on_the_wall_clock])
def test_a_rule_that_is_wrong_is_told_what_would_be_right(
    clock: Callable[..., StepRecord], decided: Any, sentence: tuple[str, ...]
) -> None:
    with refused(StepFailed, *sentence) as error:
        clock(uniform_step([90] * 5), plan_of([[0, 1], [2, 3], [4]], Says(decided)))
    assert isinstance(error.value.__cause__, RuleError)


@dataclass
class Asks:
    """Wants to be asked at ``trigger``, whatever it is; the second time, where ``late``."""

    trigger: Any
    late: bool = False
    name: str = "asks"
    told: bool = False

    def next_trigger(self, view: ActorView) -> Any:
        return Trigger(time_s=0.05) if self.late and not self.told else self.trigger

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.told = True
        return []


COUNT = "a whole number of at least 1, or None, is needed"
TIME = "since the run's start, or None, are needed"


@pytest.mark.parametrize(
    ("trigger", "sentence"),
    [
        (5, ("actor 0", "next_trigger")),
        ([Trigger(1)], ("next_trigger",)),
        (Trigger(0), ("actor 0", str(COUNT))),
        (Trigger(-3), (str(COUNT),)),
        (Trigger(1.5), ("1.5", str(COUNT))),  # type: ignore[arg-type]
        (Trigger(True), (str(COUNT),)),
        (Trigger("1"), ("'1'", str(COUNT))),  # type: ignore[arg-type]
        (Trigger(step_completions=0), ("step_completions", str(COUNT))),
        (Trigger(step_completions=math.inf), ("step_completions", str(COUNT))),  # type: ignore[arg-type]
        (Trigger(time_s=math.nan), ("actor 0", "time_s", str(TIME))),
        (Trigger(time_s=-math.inf), ("time_s", str(TIME))),
        (Trigger(time_s="1"), ("time_s", "'1'", str(TIME))),  # type: ignore[arg-type]
        (Trigger(1, math.nan), ("time_s",)),
    ],
)
@pytest.mark.parametrize("clock", [run, on_the_wall_clock])
def test_a_rule_that_asks_for_what_is_no_moment_is_told_what_would_be_right(
    clock: Callable[..., StepRecord], trigger: Any, sentence: tuple[str, ...]
) -> None:
    with refused(StepFailed, *sentence):
        clock(uniform_step([90] * 5), plan_of([[0, 1], [2, 3], [4]], Asks(trigger)))


@pytest.mark.parametrize("clock", [run, on_the_wall_clock])
def test_a_time_that_has_passed_when_the_rule_observed_the_step_is_refused(clock: Callable[..., StepRecord]) -> None:
    with refused(StepFailed, "time_s", "0.04", "after 0.0"):
        clock(uniform_step([90] * 5), plan_of([[0, 1], [2, 3], [4]], Asks(Trigger(time_s=0.04), late=True)))


@pytest.mark.parametrize("trigger", [None, Trigger(), Trigger(time_s=math.inf), Trigger(np.int64(7), 1e9, 99)])
@pytest.mark.parametrize("clock", [run, on_the_wall_clock])
def test_a_rule_may_wait_for_what_never_comes(clock: Callable[..., StepRecord], trigger: Trigger | None) -> None:
    record = clock(uniform_step([9] * 5), plan_of([[0, 1], [2, 3], [4]], Asks(trigger)))
    assert sorted(record.completions) == [0, 1, 2, 3, 4]
    assert not record.rule.told  # type: ignore[union-attr]


def test_a_time_before_the_step_is_due_as_it_starts() -> None:
    """Which is how a rule learns the time."""
    step = uniform_step([9] * 5)
    record = run(step, plan_of([[0, 1], [2, 3], [4]], Once(1.0)), start_s=5.0)
    assert record.rule.asked_s == [5.0, 5.25]  # type: ignore[union-attr]


@dataclass
class Once:
    """Asked at ``time_s``, and a quarter of a second after that."""

    time_s: float
    name: str = "once"
    asked_s: list[float] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return (Trigger(time_s=self.time_s), Trigger(time_s=5.25), None)[len(self.asked_s)]

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.asked_s.append(now_s)
        return []


@dataclass
class AsksTogether:
    """Wants to be asked at ``triggers`` for all actors, whatever they are."""

    triggers: Any
    name: str = "asks together"
    complete: list[int] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        raise AssertionError("it is asked for all actors at once")

    def next_triggers(self, counts: ActorCounts) -> Any:
        return self.triggers(counts) if callable(self.triggers) else self.triggers

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.complete.append(int(np.count_nonzero(state.complete)))
        return []


@pytest.mark.parametrize(
    ("triggers", "sentence"),
    [
        (Trigger(1), ("next_triggers",)),
        (Triggers(np.array([1, 2])), ("for 3 actors",)),
        (Triggers(np.array([1.0, 2.0, 3.0])), ("for 3 actors",)),  # type: ignore[arg-type]
        (Triggers(np.array([1, -1, 2])), ("for 3 actors",)),
        (Triggers(time_s=math.nan), ("each", "time_s", str(TIME))),
        (Triggers(step_completions=0), ("each", "step_completions", str(COUNT))),
    ],
)
def test_a_rule_that_asks_for_all_actors_at_once_is_told_what_would_be_right(triggers: Any, sentence: tuple[str, ...]) -> None:
    with refused(StepFailed, *sentence):
        run(uniform_step([90] * 5), plan_of([[0, 1], [2, 3], [4]], AsksTogether(triggers)))


@pytest.mark.parametrize("clock", [run, on_the_wall_clock])
def test_a_rule_may_ask_for_all_actors_at_once(clock: Callable[..., StepRecord]) -> None:
    """At the first completion of every actor, which come one after the other: after one, two and three responses."""
    plan = plan_of([[0, 1], [2, 3], [4, 5]], AsksTogether(lambda counts: Triggers(np.where(counts.completed < 1, 1, 0))))
    record = clock(uniform_step([9, 60, 19, 60, 29, 60]), plan)
    assert record.rule.complete == [1, 2, 3]  # type: ignore[union-attr]


class OwnTrigger(AsksTogether):
    """A user's: asks for each actor, though the rule that it extends asks for all at once."""

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(completions=2) if view.actor == 1 and view.completed < 2 else None


def test_a_subclass_with_its_own_trigger_is_asked_for_each_actor() -> None:
    record = run(uniform_step([9, 60, 19, 29, 39, 60]), plan_of([[0, 1], [2, 3], [4, 5]], OwnTrigger(None)))
    assert record.rule.complete == [3]  # type: ignore[union-attr]

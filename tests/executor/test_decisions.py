"""What a rule cannot order or ask for, and the sentence that says so."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from executor_samples import Step, plan_of, run, uniform_step
from remote_samples import ScriptedCrew

from rlhfless.executor import RuleError, StepRecord
from rlhfless.executor.wall import WallStep
from solver import Plan
from solver.objective import StepRest
from solver.rules import ActorView, Cut, Decision, Move, StepState, Trigger


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


def on_the_wall_clock(step: Step, plan: Plan) -> StepRecord:
    record = StepRecord("run", 0, plan, 0.0)
    WallStep(plan, step.requests(), ScriptedCrew(0), step.latency, step.cluster, record, StepRest(), "reserve", "move").run()
    return record


@pytest.mark.parametrize(
    ("decided", "sentence"),
    [
        (None, "rule says returned None; decide must return a list of Move and Cut, empty for none"),
        ([7], "rule says ordered 7; a decision must be a Move, or a Cut with a Move per response"),
        ([Cut(0, (5,))], "rule says ordered Cut(actor=0, moves=(5,)); a decision must be a Move"),  # type: ignore[arg-type]
        ([Move(9, 1)], "rule says ordered Move(response=9, to_actor=1); the step has responses 0 to 4 only"),
        ([Move(-1, 1)], "rule says ordered Move(response=-1, to_actor=1); the step has responses 0 to 4 only"),
        ([Cut(7, ())], "rule says cuts actor 7; an actor that goes on and was not cut before is needed, which now are 0, 1, 2"),
        ([Move(0, 7)], "rule says ordered Move(response=0, to_actor=7), off actor 0; a response must move to another actor"),
        ([Move(0, 0)], "off actor 0; a response must move to another actor that goes on, which now are 1, 2"),
        ([Cut(0, (Move(0, 1),))], "rule says cuts actor 0 but says not where responses [1] go; a Cut needs a Move for each"),
        ([Cut(0, (Move(0, 1), Move(1, 0)))], "rule says ordered Move(response=1, to_actor=0), off actor 0"),
        ([Cut(0, (Move(0, 1), Move(1, 1))), Move(2, 0)], "off actor 1; a response must move to another actor that goes on"),
        ([Cut(0, (Move(0, 1), Move(1, 1))), Cut(0, ())], "rule says cuts actor 0; an actor that goes on and was not cut"),
    ],
)
@pytest.mark.parametrize("clock", [run, on_the_wall_clock])
def test_a_rule_that_is_wrong_is_told_what_would_be_right(
    clock: Callable[..., StepRecord], decided: Any, sentence: str
) -> None:
    with pytest.raises(RuleError, match=re.escape(sentence)):
        clock(uniform_step([90] * 5), plan_of([[0, 1], [2, 3], [4]], Says(decided)))


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
TIME = "counted from the run's start, or None is needed"


@pytest.mark.parametrize(
    ("trigger", "sentence"),
    [
        (5, "rule asks returned 5 about actor 0; next_trigger must return a Trigger, or None"),
        ([Trigger(1)], "next_trigger must return a Trigger, or None"),
        (Trigger(0), f"rule asks wants to be asked because of actor 0 at completions=0; {COUNT}"),
        (Trigger(-3), f"completions=-3; {COUNT}"),
        (Trigger(1.5), f"completions=1.5; {COUNT}"),  # type: ignore[arg-type]
        (Trigger(True), f"completions=True; {COUNT}"),
        (Trigger("1"), f"completions='1'; {COUNT}"),  # type: ignore[arg-type]
        (Trigger(step_completions=0), f"step_completions=0; {COUNT}"),
        (Trigger(step_completions=math.inf), f"step_completions=inf; {COUNT}"),  # type: ignore[arg-type]
        (Trigger(time_s=math.nan), f"rule asks wants to be asked because of actor 0 at time_s=nan; a time, {TIME}"),
        (Trigger(time_s=-math.inf), f"time_s=-inf; a time, {TIME}"),
        (Trigger(time_s="1"), f"time_s='1'; a time, {TIME}"),  # type: ignore[arg-type]
        (Trigger(1, math.nan), "time_s=nan"),
    ],
)
@pytest.mark.parametrize("clock", [run, on_the_wall_clock])
def test_a_rule_that_asks_for_what_is_no_moment_is_told_what_would_be_right(
    clock: Callable[..., StepRecord], trigger: Any, sentence: str
) -> None:
    with pytest.raises(RuleError, match=re.escape(sentence)):
        clock(uniform_step([90] * 5), plan_of([[0, 1], [2, 3], [4]], Asks(trigger)))


@pytest.mark.parametrize("clock", [run, on_the_wall_clock])
def test_a_time_that_has_passed_when_the_rule_was_told_the_time_is_refused(clock: Callable[..., StepRecord]) -> None:
    with pytest.raises(RuleError, match=r"time_s=0\.04; a time after 0\.05\d* s"):
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

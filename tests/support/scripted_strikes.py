"""What tests of a scripted world have in common: when an actor is struck, and rules that move responses at a known moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from executor_samples import plan_of
from scripted_steps import POOL_KINDS, Stage
from scripted_world import Actor

from solver.model.runtime_rules import ActorView, Decision, Move, StepState, Trigger

TWO = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
LONG = [40, 30, 50, 35, 45, 55, 42, 33, 51, 38, 47, 36]
MOVING = [8, *LONG[1:6], 8, *LONG[7:]]
"""Two short ones, so that a rule is asked while the others decode."""
EVERY_POOL_KIND = pytest.mark.parametrize("pool_kind", POOL_KINDS)


def at(on: Stage, strike: Callable[[Actor], None], when: Callable[[Actor], bool], number: int | None = None) -> list[Actor]:
    """Strikes an actor once, when its turn comes and that is so; returns who was struck."""
    struck: list[Actor] = []

    def turn(actor: Actor) -> None:
        if not struck and number in (None, actor.number) and when(actor):
            struck.append(actor)
            strike(actor)

    on.world.strikes.append(turn)
    return struck


def decodes(tokens: int = 5) -> Callable[[Actor], bool]:
    """Whether it has generated so many tokens of each."""

    def there(actor: Actor) -> bool:
        engine = None if actor.worker is None else actor.worker.engine
        return engine is not None and bool(engine.running()) and min(engine.generated_tokens().values()) >= tokens

    return there


def starts(actor: Actor) -> bool:
    """Whether it is not up yet."""
    return actor.state == "starts"


def has_weights(actor: Actor) -> bool:
    """Whether it has an engine, and nothing to do yet."""
    return actor.worker is not None and actor.worker.engine is not None and not actor.worker.busy


def up(on: Stage, actors: int = 2) -> None:
    """A step before, so that so many actors are up: a rule has nothing to move while none decodes."""
    on.run(plan_of([[i] for i in range(actors)]), lengths=[1] * actors)


@dataclass
class Looker:
    """Looks every few milliseconds and decides nothing."""

    name: str = "looker"
    seen: list[StepState] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(time_s=(self.seen[-1].now_s if self.seen else 0.0) + 0.002)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.seen.append(state)
        return []


@dataclass
class MoveOne:
    """Moves a response from actor 0 to actor 1 once both decode."""

    name: str = "move one"
    moved: list[int] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return None if self.moved else Trigger(completions=view.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        views = {a.actor: a for a in state.actors}
        if self.moved or not (views.keys() >= {0, 1} and len(views[0].running) > 1 and views[1].running):
            return []
        self.moved.append(views[0].running[0])
        return [Move(self.moved[0], 1)]


@dataclass
class MoveTwice(MoveOne):
    """Gives the same response to actor 1 and, while it is on its way there, to actor 2."""

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        moves = super().decide(now_s, state)
        return [*moves, *(Move(response, 2) for response in self.moved if moves)]

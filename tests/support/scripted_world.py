"""A world without processes, waiting or chance: actors take turns on a clock that moves when somebody waits.

The actors are the real ones (``worker.Worker``), as are pools, crews, life-cycles and the event loop. Scripted are what
carries them (``scripted_pools.py``), time, and what goes wrong. An order or a report is on its way for as long as ``Dice`` say,
so whatever can cross on the wire does. An actor may die, stop, run out of memory, fail, be slow or hold other weights, each at
a turn that a test chooses. The same dice and the same script give the same run.
"""

from __future__ import annotations

import contextlib
import math
import queue
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scripted_engine import HERE

from rlhfless.executor.distributed.messages import ActorReport, NoRoom, Unreachable
from rlhfless.executor.distributed.wall_clock import Clock
from rlhfless.executor.distributed.worker import worker
from rlhfless.system.child import Ended, Failed, Ready

BEAT_S = 0.1  # between two heartbeats
COPY_S = 1e-4  # that laying a state out or reading it takes
FAILURES: dict[str, Exception] = {
    "fail": RuntimeError("a kernel failed"),
    "unrecoverable": ValueError("no such prompt"),
    "unrecoverable type": TypeError("no such thing"),
    "unrecoverable number": FloatingPointError("logits of response 3 are not numbers"),
}
LOOK_S = 1e-6  # that whoever waited in vain takes to go on, so that time never stands still
DELAYS_S = (0.0, 0.0, 1e-4, 1e-3, 4e-3, 2e-2)


class Dice:
    """Whatever nobody decided, from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def delay_s(self) -> float:
        """That a message takes."""
        return float(self._rng.choice(DELAYS_S))

    def below(self, count: int) -> int:
        """A number from 0 on."""
        return int(self._rng.integers(count))


class Punctual(Dice):
    """No message takes any time."""

    def delay_s(self) -> float:
        """That a message takes."""
        return 0.0


@dataclass
class Trouble:
    """What happens to the actor that takes this turn of the world, or the first one after it that fits.

    Attributes:
        kind: ``kill``, ``stop`` (it is noticed by silence, and ends when it is killed), ``zombie`` (it goes on when it is
            killed, as if nobody could end it), ``memory``, ``fail``, ``unrecoverable``, ``slow``, ``no room`` and
            ``unreachable`` (what it lays out or reads from now on), ``interrupt`` (Ctrl-C).
        turn: of the world. actor: only that one (its number, in the order in which they were started); None: whoever's turn
            it is.
    """

    kind: str
    turn: int
    actor: int | None = None
    done: bool = False


@dataclass
class World:
    """What there is: actors, a clock, messages under way.

    Attributes:
        turns: so far. looks, looked_s: at the clock since it moved last, and what it showed then.
        troubles: what goes wrong. start_s: that an actor takes to start, a number for each in turn.
        stale: numbers of actors that hold other weights than the step's.
        hears: told of every report that arrives, and from whom. strikes: told whose turn it is, before it takes it.
        acts: do what is due and return when something is due again.
    """

    dice: Dice
    troubles: list[Trouble] = field(default_factory=list)
    start_s: Callable[[int], float] = lambda number: 0.01
    stale: frozenset[int] = frozenset()
    now_s: float = 100.0
    turns: int = 0
    looks: int = 0
    looked_s: float = math.nan
    actors: list[Actor] = field(default_factory=list)
    hears: list[Callable[[Actor, Any], None]] = field(default_factory=list)
    acts: list[Callable[[], float]] = field(default_factory=list)
    strikes: list[Callable[[Actor], None]] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        """For a pool: whoever sleeps lets things happen."""
        return Clock(self._look, self.sleep)

    def _look(self) -> float:
        self.looks, self.looked_s = (self.looks + 1 if self.looked_s == self.now_s else 0), self.now_s
        assert self.looks < 10_000, "somebody looks at the clock and never waits"
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.until(lambda: False, self.now_s + seconds)

    def until(self, true: Callable[[], bool], ends_s: float | None) -> bool:
        """Let things happen until something is true, or until a time; returns which."""
        passes, began_s = 0, self.now_s
        while not true():
            passes, began_s = (passes + 1, began_s) if self.now_s == began_s else (0, self.now_s)
            assert passes < 10_000, "time stands still"
            acts_s = min((act() for act in self.acts), default=math.inf)
            turn_s = min((one.next_s for one in self.actors), default=math.inf)
            next_s = max(self.now_s, min(acts_s, turn_s, self._next_arrival_s()))
            if ends_s is not None and next_s > ends_s:
                self.now_s = max(self.now_s, ends_s) + LOOK_S
                return bool(true())
            assert next_s < math.inf, "somebody waits although nothing will ever happen"
            self.now_s = next_s
            if able := [one for one in self.actors if one.next_s <= next_s]:
                self._turn(able[self.dice.below(len(able))])
        return True

    def _next_arrival_s(self) -> float:
        return min((one.said[0][0] for one in self.actors if one.said and one.said[0][0] > self.now_s), default=math.inf)

    def _turn(self, actor: Actor) -> None:
        self.turns += 1
        for trouble in self.troubles:
            fits = not trouble.done and trouble.turn <= self.turns and trouble.actor in (None, actor.number)
            if fits and actor.works and not actor.killed:  # a zombie that was killed has suffered enough
                trouble.done = True
                if trouble.kind == "interrupt":
                    raise KeyboardInterrupt
                actor.suffer(trouble.kind)
                break
        for strike in self.strikes:
            strike(actor)
        if actor.next_s <= self.now_s:
            actor.turn()


class Actor:
    """An actor's process: takes its turns on a clock of its own, which shows ``ahead_s`` more than the world's.

    Attributes:
        number: in the order in which they were started; pid: nobody else's. said: messages under way, and when they arrive.
        state: ``starts``, ``up``, ``stopped``, ``dead``. why: how it ended, in the words of who looks.
    """

    def __init__(self, world: World, make: Callable[[Actor], worker.Worker], prewarm: Any = None, ahead_s: float = 0.0) -> None:
        self.world, self.number = world, len(world.actors)
        self.pid, self.state, self.why = 1000 + self.number, "starts", "closed its pipe"
        self.at_s = world.now_s + world.start_s(self.number)
        self.orders: deque[tuple[float, Any]] = deque()
        self.said: deque[tuple[float, Any]] = deque()
        self.troubles: set[str] = set()
        self.stale, self.slowness, self.has_more = int(self.number in world.stale), 1.0, False
        self.ends_when_killed = True
        self.killed = False
        self.ahead_s = ahead_s
        self.worker: worker.Worker | None = None
        self.beat: Callable[[], object] | None = None
        self._make, self._prewarm = make, prewarm
        self._last_s = {"in": 0.0, "out": 0.0}
        world.actors.append(self)

    @property
    def clock(self) -> Clock:
        """Its own."""
        return Clock(lambda: self.at_s + self.ahead_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        """It does nothing else meanwhile, but send heartbeats while it runs a work item."""
        while self.beat is not None and seconds > BEAT_S:
            self.at_s, seconds = self.at_s + BEAT_S, seconds - BEAT_S
            self.beat()
        self.at_s += seconds

    @property
    def works(self) -> bool:
        """Whether it belongs to a step: it starts, or has an engine."""
        return self.state == "starts" or (self.state == "up" and (self.worker is None or self.worker.engine is not None))

    @property
    def next_s(self) -> float:
        """When its next turn is; never while there is nothing to do."""
        if self.state not in ("starts", "up"):
            return math.inf
        if self.state == "starts" or (self.worker is not None and (self.worker.busy or not self.worker.inbox.empty())):
            return self.at_s
        return max(self.at_s, self.orders[0][0]) if self.orders else math.inf

    def _arrives_s(self, way: str, left_s: float) -> float:
        self._last_s[way] = max(self._last_s[way], left_s + self.world.dice.delay_s())
        return self._last_s[way]

    def order(self, order: Any) -> None:
        """Somebody gives it an order, which arrives after those before it."""
        self.orders.append((self._arrives_s("in", self.world.now_s), order))

    def send(self, message: Any) -> None:
        """It says something (as its worker's connection)."""
        self.said.append((self._arrives_s("out", self.at_s), message))

    def turn(self) -> None:
        """It starts, or obeys or decodes once."""
        self.at_s = max(self.at_s, self.world.now_s)
        with here(self):
            try:
                if self.worker is None:
                    self.worker = self._make(self)
                    if self._prewarm is not None:
                        self.worker.prewarm(*self._prewarm)
                    self.state = "up"
                    self.send(Ready(self.worker.up_s))
                    return
                while self.orders and self.orders[0][0] <= self.at_s:
                    self.worker.inbox.put(self.obeyed(self.orders.popleft()[1]))
                self.worker.turn()
            except Exception as error:
                self.send(Failed.of(error))
                self.end("ended with exit code 1", 0)

    def obeyed(self, order: Any) -> Any:
        """An order as it arrives."""
        return order

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def iterates(self, engine: Any) -> None:
        """Before an iteration of its engine: what it suffers from."""
        if "memory" in self.troubles and len(engine.running()) > 1:
            raise MemoryError("no more pages")
        for kind, error in FAILURES.items():
            if kind in self.troubles:
                raise error

    def suffer(self, kind: str) -> None:
        """From now on."""
        if kind == "kill":
            self.end("was killed by SIGKILL", self.world.dice.below(len(self.said) + 1))
        elif kind in ("stop", "zombie"):
            self.ends_when_killed, self.state = kind == "stop", "stopped" if self.state == "up" else self.state
            self.at_s = math.inf if self.state == "starts" else self.at_s
        elif kind == "slow":
            self.slowness = 20.0
        else:
            self.troubles.add(kind)

    def end(self, why: str, unheard: int) -> None:
        """It is gone, and with it the last so many messages that are under way."""
        if self.state != "dead":
            for _ in range(min(unheard, len(self.said))):
                self.said.pop()
            self.state, self.why = "dead", why
            self.at_s = max(self.world.now_s, self.at_s if self.at_s < math.inf else 0.0)
            self.worker = None
            self.orders.clear()
            self.say_the_end()

    def say_the_end(self) -> None:
        """Whoever listens is told, after all that it said."""
        self.send(Ended())

    def kill(self) -> None:
        """Somebody ends it, if it can be ended from there."""
        self.killed = True
        if self.state == "stopped" and not self.ends_when_killed:
            self.state, self.at_s = "up", self.world.now_s
        else:
            self.end("was killed by SIGKILL", 0)

    # --- what is heard of it ------------------------------------------------------------------------------------------

    @property
    def heard(self) -> bool:
        """Whether a message has arrived."""
        return bool(self.said) and self.said[0][0] <= self.world.now_s

    def take(self) -> Any:
        """The first message that has arrived."""
        message = self.said.popleft()[1]
        if isinstance(message, ActorReport):
            for hear in self.world.hears:
                hear(self, message)
        return message


@contextlib.contextmanager
def here(actor: Actor) -> Iterator[None]:
    """Its turn."""
    HERE.append(actor)
    try:
        yield
    finally:
        HERE.pop()


class Inbox(queue.SimpleQueue[Any]):
    """A worker's, which never waits: nobody else is there."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next order."""
        assert not block or not self.empty(), "a turn without an order"
        return super().get(block=False)


class Copying:
    """A worker that takes a moment to lay something out or to read it, and may find no room or nothing there."""

    @staticmethod
    @contextlib.contextmanager
    def beating(beat: Callable[[], object]) -> Iterator[None]:
        """It sends heartbeats while its clock moves."""
        actor, HERE[-1].beat = HERE[-1], beat
        try:
            yield
        finally:
            actor.beat = None

    def _read(self, block: Any, free: bool = False) -> Any:
        HERE[-1].sleep(COPY_S)
        thing = super()._read(block, free)  # type: ignore[misc]
        if free and "unreachable" in HERE[-1].troubles:
            raise Unreachable("it is not there")
        return thing

    def _write(self, name: str, thing: Any) -> Any:
        HERE[-1].sleep(COPY_S)
        if "no room" in HERE[-1].troubles:
            raise NoRoom("memory is full")
        return super()._write(name, thing)  # type: ignore[misc]

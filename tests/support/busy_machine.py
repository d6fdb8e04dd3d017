"""What tests on the wall clock need so that the speed of the machine decides nothing: limits that no machine reaches, and gates
that let something happen only after something else."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhfless.engine.protocol import Progress, Request
from rlhfless.executor import Faults
from solver import LatencyModel
from solver.model.admission import Admission

PATIENCE_S = 600.0
A_PASS = 8  # tokens, or more than a pass of any engine here writes
PATIENT = Faults(silence_floor_s=PATIENCE_S, min_start_timeout_s=PATIENCE_S, slow_factor=math.inf)
"""No actor counts as lost because it is silent, and none is relieved of responses because it is slow: processes that share
cores are slower than others now and then."""


@dataclass(frozen=True)
class Gate:
    """A gate between processes of this machine, closed at first: a file that is there once it is open."""

    file: Path

    def open(self) -> None:
        """Let everybody pass."""
        self.file.touch()

    @contextlib.contextmanager
    def opened(self, when: Callable[[], object]) -> Iterator[None]:
        """Context in which a thread opens it once that is so."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.005):
                if when():
                    self.open()
                    return

        watcher = threading.Thread(target=watch, name="watches for a gate")
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def close(self) -> None:
        """Let nobody pass any more."""
        self.file.unlink()

    @property
    def is_open(self) -> bool:
        """Whether everybody may pass."""
        return self.file.exists()


@dataclass(frozen=True)
class Gated:
    """An engine factory for other processes. The last ``last`` responses of each of its engines end after the gate was opened.

    Before, they decode until one of them would end, and obey orders.
    """

    factory: Any
    gate: Gate
    last: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "factory":  # asked while it is unpickled
            raise AttributeError(name)
        return getattr(self.factory, name)

    def measured(self, devices: Sequence[str] = ()) -> Gated:
        """See ``PoolEngines``."""
        return replace(self, factory=self.factory.measured(devices))

    def to_remote(self) -> Gated:
        """See ``PoolEngines``."""
        return replace(self, factory=self.factory.to_remote())

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> Any:
        """Make an engine."""
        engine = self.factory(latency, admission, start_s)
        step, add, targets = engine.step, engine.add, dict[int, int | None]()

        def noted(requests: Sequence[Request]) -> None:
            targets.update({request.response: request.target_tokens for request in requests})
            add(requests)

        def gated(from_s: float, clock: Any) -> Progress:
            tokens = engine.generated_tokens()
            ends = any((target := targets[r]) is None or tokens[r] + A_PASS >= target for r in engine.running())
            if ends and len(tokens) <= self.last and not self.gate.is_open:
                time.sleep(0.002)
                return Progress((), ())
            return step(from_s, clock)  # type: ignore[no-any-return]

        engine.add, engine.step = noted, gated
        return engine


def has_moved(pool: Any, moves: int = 1) -> bool:
    """Whether so many responses were handed over in the step that the pool runs."""
    under_way = pool._step
    return under_way is not None and under_way.step.record.moves >= moves


def has_sent_kv(pool: Any) -> bool:
    """Whether a KV state has arrived at its receiver in the step that the pool runs."""
    under_way = pool._step
    reported = [] if under_way is None else list(under_way.step.record._new_spans)
    return any(getattr(span, "phase", None) == "transfer" and span.what.get("bytes") for span in reported)


def gate_last(trainer: Any, gate: Gate, last: int) -> None:
    """Let the last ``last`` responses of each actor of a trainer's steps end after the gate has been opened."""
    of_step = trainer.engines.of_step
    trainer.engines.of_step = lambda model, step: Gated(of_step(model, step), gate, last)
    trainer.actor_pool.faults = PATIENT

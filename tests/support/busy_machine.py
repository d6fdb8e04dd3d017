"""What tests on the wall clock need so that the speed of the machine decides nothing: limits that no machine reaches, and gates
that let something happen only after something else."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rlhfless.engine.protocol import Progress
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.executor import Faults
from solver import Admission, LatencyModel

PATIENCE_S = 600.0  # it ends what hangs
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

    def close(self) -> None:
        """Let nobody pass any more."""
        self.file.unlink()

    def pass_through(self) -> None:
        """Wait until it is open."""
        ends_s = time.monotonic() + PATIENCE_S
        while not self.file.exists():
            assert time.monotonic() < ends_s, f"{self.file.name} was not opened"
            time.sleep(0.005)


@dataclass(frozen=True, kw_only=True)
class Gated(TorchEngineFactory):
    """Engines whose last ``last`` responses end after a gate has been opened, in whatever process they decode."""

    gate: Gate
    last: int

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> TorchEngine:
        engine: TorchEngine = super().__call__(latency, admission, start_s)
        step = engine.step

        def gated(from_s: float, clock: Any) -> Progress:
            if len(engine.running()) + len(engine.waiting()) <= self.last:
                self.gate.pass_through()
            return step(from_s, clock)

        engine.step = gated  # type: ignore[method-assign]
        return engine


def gated(factory: TorchEngineFactory, gate: Gate, last: int) -> Gated:
    """The same engines behind a gate."""
    return Gated(**{field.name: getattr(factory, field.name) for field in fields(factory)}, gate=gate, last=last)


def gate_last(trainer: Any, gate: Gate, last: int) -> None:
    """Let the last ``last`` responses of each actor of a trainer's steps end after the gate has been opened."""
    of_step = trainer.engines.of_step
    trainer.engines.of_step = lambda model, step: gated(of_step(model, step), gate, last)
    trainer.actor_pool.faults = PATIENT

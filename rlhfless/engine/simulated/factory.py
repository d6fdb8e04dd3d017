"""The engine factory for simulated actors: makes a ``SimulatedEngine`` per actor, on either clock.

On the wall clock an actor's process sleeps for every iteration as long as the latency model says, times a factor. Start-up and
hand-overs take what they take there: a process starts, and there are no weights or KV states to copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rlhfless.engine.common.pool_engines import Capabilities, PoolEngines
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.real_time import SIMULATED, RealTimeEngine
from rlhfless.errors import InputError
from rlhfless.latency.scaling import scaled
from solver.model.admission import Admission
from solver.model.errors import as_given, is_number
from solver.model.latency import LatencyModel


@dataclass(frozen=True)
class SimulatedEngineFactory(PoolEngines):
    """Makes simulated engines, one per actor. ``SimulatedEngine`` itself is a factory with a ``time_scale`` of 1.

    Attributes:
        time_scale: an iteration takes the latency model's seconds times this: 0.1 runs a step on the wall clock ten times as
            fast, to try rules and failures.
        real_time: make engines that sleep through their iterations, for actors in separate processes.

    Raises:
        InputError: ``time_scale`` is not a number above 0.

    Example:
        >>> import rlhfless as rl, solver
        >>> from rlhfless.engine import SimulatedEngineFactory
        >>> latency, cluster = rl.load_profile("cpu-tiny-qwen2"), solver.Cluster(1, 2, 1, "cpu")
        >>> executor = rl.Executor(SimulatedEngineFactory(time_scale=0.5), cluster, latency=latency)
    """

    time_scale: float = 1.0
    real_time: bool = False

    capabilities: ClassVar[Capabilities] = SIMULATED

    def __post_init__(self) -> None:
        if not (is_number(self.time_scale, 0) and self.time_scale > 0):
            raise InputError(f"time_scale is {as_given(self.time_scale)}; a finite number above 0 is needed")

    def measured(self, devices: Sequence[str] = ()) -> Self:
        """Return the same engines in real time."""
        return replace(self, real_time=True)

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> SimulatedEngine:
        latency = scaled(latency, self.time_scale)
        if self.real_time:
            return RealTimeEngine(latency, admission, start_s)
        return SimulatedEngine(latency, admission, start_s)

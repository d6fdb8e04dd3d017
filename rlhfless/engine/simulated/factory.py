"""The engine factory for simulated actors: makes a ``SimulatedEngine`` per actor, on either clock.

On the wall clock an actor's process sleeps for every iteration as long as the latency model says, times a factor. Start-up and
hand-overs take what they take there: a process starts, and there are no weights or KV states to copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.errors import InputError
from rlhfless.latency.scaling import scaled
from solver.model.admission import Admission
from solver.model.errors import as_given, is_number
from solver.model.latency import LatencyModel


@dataclass(frozen=True)
class SimulatedEngineFactory:
    """Makes simulated engines: one call per actor. ``SimulatedEngine`` itself stands for a factory with a ``time_scale`` of 1.

    Attributes:
        time_scale: an iteration takes the latency model's seconds times this: 0.1 runs a step on the wall clock ten times as
            fast, to try rules and failures.

    Raises:
        InputError: it is not a number above 0.

    Example:
        >>> import rlhfless as rl, solver
        >>> from rlhfless.engine import SimulatedEngineFactory
        >>> latency, cluster = rl.load_profile("cpu-tiny-qwen2"), solver.Cluster(1, 2, 1, "cpu")
        >>> executor = rl.Executor(SimulatedEngineFactory(time_scale=0.5), cluster, latency=latency)
    """

    time_scale: float = 1.0

    backend_module: ClassVar[str] = "rlhfless.engine.simulated.worker_backend"
    several_gpus: ClassVar[bool] = True
    min_start_timeout_s: ClassVar[float] = 0.0
    starts_server: ClassVar[bool] = False
    takes_prefixes: ClassVar[bool] = False
    weights_version: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not (is_number(self.time_scale, 0) and self.time_scale > 0):
            raise InputError(f"time_scale is {as_given(self.time_scale)}; a finite number above 0 is needed")

    def measured(self) -> SimulatedEngineFactory:
        """Return itself: its engines sleep for as long as they are charged."""
        return self

    def to_remote(self) -> SimulatedEngineFactory:
        """Return the form of the factory that other machines receive: itself."""
        return self

    def compatibility_key(self, latency: LatencyModel) -> None:
        """Return the compatibility key of a process for these engines: None, because any process can make them."""

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> SimulatedEngine:
        return SimulatedEngine(scaled(latency, self.time_scale), admission, start_s)

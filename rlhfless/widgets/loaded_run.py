"""What the dashboards ask of a run that ``rlhfless.load`` returns; they know no more of ``rlhfless.run``, which uses them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from rlhfless.analysis import OwnTimes
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import Trace
from solver.model.objective import Objective


@runtime_checkable
class LoadedRun(Protocol):
    """A trace with the GPUs, the profile, the price and the time weight that it is studied with."""

    @property
    def trace(self) -> Trace:
        """The trace; without allocations where a framework logged responses only."""

    def explore(self, step: int = -1, **changes: Any) -> Any:
        """Show sliders over one step, which begin with the run's own settings."""


class StatedHardware(Protocol):
    """The hardware of a run, as far as it is stated."""

    @property
    def gpus(self) -> int | None:
        """GPUs of the cluster."""

    @property
    def gpus_per_actor(self) -> int | None:
        """GPUs of one replica; None where a plan may choose them."""

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Price of a GPU; None is the list price."""


class RunWithTimes(LoadedRun, Protocol):
    """The same with what plans of its steps need."""

    @property
    def steps(self) -> list[int]:
        """The steps of the log, in order."""

    @property
    def profile(self) -> str:
        """Name or file of the latency profile."""

    @property
    def hardware(self) -> StatedHardware:
        """GPUs and price of the run."""

    @property
    def objective(self) -> Objective:
        """What plans minimise."""

    @property
    def max_response_tokens(self) -> int | None:
        """The longest response that the run allowed; None: the longest of the log."""

    @property
    def setting(self) -> SimulationConfig:
        """GPUs, latency profile and objective of the run."""

    @property
    def times(self) -> OwnTimes:
        """The run's own times, and how profiles are scaled to them."""

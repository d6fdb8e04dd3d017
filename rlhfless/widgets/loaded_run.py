"""What the dashboards ask of a run that ``rlhfless.load`` returns; they know no more of ``rlhfless.run``, which uses them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from rlhfless.trace import Trace


@runtime_checkable
class LoadedRun(Protocol):
    """A trace with the GPUs, the profile, the price and the time weight that it is studied with."""

    @property
    def trace(self) -> Trace:
        """The trace; without allocations where a framework logged responses only."""

    def explore(self, step: int = -1, **changes: Any) -> Any:
        """Show sliders over one step, which begin with the run's own settings."""

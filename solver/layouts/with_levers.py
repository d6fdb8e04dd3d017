"""Defines ``WithLevers``: generation of a step whose plan may use levers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from solver.layouts.generation import StepGeneration
from solver.model.step_levers import CALL_LEVERS, lever_names


@dataclass(frozen=True, eq=False)
class WithLevers:
    """The generation of a step, and the optimisations ("levers") that the plan may use.

    Attributes:
        generation: of each step, or one for each generate call by its name.
        levers: ``all``, ``none``, or some of ``overlap``, ``streaming`` and ``drafts``. Drafts need ``StepGeneration.drafts``,
            and ``streaming`` needs costs with a method ``updates`` (see ``DividedCosts``).

    Raises:
        PlanningError: a lever is unknown.

    Example:
        >>> import solver
        >>> from solver.layouts import StepGeneration, WithLevers
        >>> latency = {1: solver.LatencyModel("tp1", 1, base_s=5e-3, per_response_s=1e-5)}
        >>> WithLevers(StepGeneration(solver.Workload([10], [0, 0], [100, 300]), latency), "streaming,overlap").names
        ('overlap', 'streaming')
    """

    generation: StepGeneration | Mapping[str, StepGeneration]
    levers: str | Collection[str] = "all"

    def __post_init__(self) -> None:
        self.names  # noqa: B018  refuses unknown ones

    @property
    def names(self) -> tuple[str, ...]:
        """The levers, in the order of ``CALL_LEVERS``."""
        return lever_names(self.levers, CALL_LEVERS)

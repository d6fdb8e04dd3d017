"""Steps that ``live`` can run: the remaining steps of a trainer, or plans with their requests on an executor.

Each source implements ``Steps``; threads and views are in ``live_run`` and ``live_view``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlhfless.engine.protocol import Request
from rlhfless.errors import InputTypeError
from rlhfless.executor import Executor, StepFailed
from rlhfless.executor.step.progress import OnPhase, OnProgress
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import Trace
from solver.model.plan import Plan


class Steps(Protocol):
    """A sequence of steps to run one after the other."""

    on_progress: OnProgress | None
    on_phase: OnPhase | None

    def left(self) -> int:
        """Number of steps that have not been run."""
        ...

    def next_step(self) -> int:
        """Number of the step that ``next`` runs."""
        ...

    def next(self) -> Trace:
        """Run one step; returns its part of the trace."""
        ...

    def setting(self) -> SimulationConfig:
        """Cluster and latency, for the cost of the static schedule."""
        ...

    def interrupted(self, error: BaseException) -> Trace | None:
        """Return what is kept of a step that ``error`` ended."""
        ...


class TrainerSteps:
    """The steps of a ``Trainer``. A stopped step has not happened: weights and trace agree with the last complete step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.decodes_on = trainer, trainer.actor_pool is not None

    @property
    def on_progress(self) -> OnProgress | None:
        """The callback for progress of generation; None without one. Can be set."""
        return self.trainer.on_progress  # type: ignore[no-any-return]

    @on_progress.setter
    def on_progress(self, on_progress: OnProgress | None) -> None:
        self.trainer.on_progress = on_progress

    @property
    def on_phase(self) -> OnPhase | None:
        """The callback for the phases of steps; None without one. Can be set."""
        return self.trainer.on_phase  # type: ignore[no-any-return]

    @on_phase.setter
    def on_phase(self, on_phase: OnPhase | None) -> None:
        self.trainer.on_phase = on_phase

    def left(self) -> int:
        """See ``Steps``."""
        return int(self.trainer.config.steps - self.trainer.next_step)

    def next_step(self) -> int:
        """See ``Steps``."""
        return int(self.trainer.next_step)

    def next(self) -> Trace:
        """See ``Steps``."""
        return self.trainer.step().trace  # type: ignore[no-any-return]

    def setting(self) -> SimulationConfig:
        """See ``Steps``."""
        return SimulationConfig(
            self.trainer.cluster, self.trainer.latency, max_response_tokens=self.trainer.config.rollout.max_response_tokens
        )

    def interrupted(self, error: BaseException) -> Trace | None:
        """Return nothing: the step has not happened."""
        return None


class ExecutorSteps:
    """Plans and their requests, to be run by an ``Executor`` one after the other. Its steps start and generate; the progress of
    a step says when it does the latter, so ``on_phase`` is never called.
    """

    on_phase: OnPhase | None = None

    def __init__(self, executor: Executor, work: Sequence[tuple[Plan, Sequence[Request]]]) -> None:
        self.executor, self.work, self.decodes_on = executor, list(work), executor.actor_pool is not None
        self._done = 0
        self._max_response_tokens = max(r.max_tokens for _, requests in self.work for r in requests)

    @property
    def on_progress(self) -> OnProgress | None:
        """Set the callback for progress of the running step."""
        return self.executor.on_progress

    @on_progress.setter
    def on_progress(self, on_progress: OnProgress | None) -> None:
        self.executor.on_progress = on_progress

    def left(self) -> int:
        """See ``Steps``."""
        return len(self.work) - self._done

    def next_step(self) -> int:
        """See ``Steps``."""
        return self.executor.next_step

    def next(self) -> Trace:
        """See ``Steps``."""
        plan, requests = self.work[self._done]
        record = self.executor.run(plan, requests)
        self._done += 1
        return record.trace

    def setting(self) -> SimulationConfig:
        """See ``Steps``."""
        limit, latency = self._max_response_tokens, self.executor.latency
        return SimulationConfig(self.executor.cluster, latency, max_response_tokens=limit)  # type: ignore[arg-type]

    def interrupted(self, error: BaseException) -> Trace | None:
        """Return the rows of the completed part of the step, where any response was complete."""
        try:
            record = StepFailed.of(error).record
        except InputTypeError:  # the step had not begun
            return None
        return record.trace if record.completions else None


def steps_of(source: Any, work: Sequence[tuple[Plan, Sequence[Request]]] = ()) -> Steps:
    """Return what ``live`` runs: the remaining steps of a trainer, or plans with their requests on an executor.

    Raises:
        InputTypeError: ``source`` is neither, or an executor comes without work or with something else.
    """
    if isinstance(source, Executor):
        if not isinstance(work, Sequence) or not work:
            raise InputTypeError("an executor needs work to run; give a list of (plan, requests) as well")
        for i, pair in enumerate(work):
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Plan)):
                raise InputTypeError(f"work[{i}] is no pair of a Plan and its requests; a list of (plan, requests) is needed")
        return ExecutorSteps(source, work)
    if hasattr(source, "step") and hasattr(source, "config") and hasattr(source, "next_step"):
        return TrainerSteps(source)
    raise InputTypeError(f"{type(source).__name__} cannot be run live; a Trainer or an Executor is needed")

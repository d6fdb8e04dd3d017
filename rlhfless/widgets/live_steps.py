"""Steps that ``live`` can run: the remaining steps of a trainer, or plans with their requests on an executor.

An executor without work has no steps to run here: its steps are shown when a cell runs them. Each source implements ``Steps``;
threads and views are in ``live_run`` and ``live_view``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rlhfless.engine.protocol import Request
from rlhfless.errors import InputTypeError
from rlhfless.executor import Executor, StepFailed, StepRecord
from rlhfless.executor.step.progress import OnPhase, OnProgress, OnStepEnd
from rlhfless.executor.step.requests import longest_response
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import Trace
from solver.model.plan import Plan


class Steps(Protocol):
    """A sequence of steps to run one after the other. Whoever runs them, the callbacks are called.

    Attributes:
        on_end: called when a call or a loop that runs several steps has ended, however it did.
        decodes_on: whether actors decode on while a callback holds the step.
    """

    on_progress: OnProgress | None
    on_phase: OnPhase | None
    on_step_end: OnStepEnd | None
    on_end: Callable[[], object] | None
    decodes_on: bool

    def goes_on(self) -> bool:
        """Whether a call or a loop that runs several steps is under way, which runs the next one by itself."""
        ...

    def left(self) -> int:
        """Number of steps that have not been run."""
        ...

    def next_step(self) -> int:
        """Number of the step that ``next`` runs."""
        ...

    def next(self) -> object:
        """Run one step."""
        ...

    def generated(self) -> StepRecord | None:
        """Return the record of the running step between its generation and the end of learning; None otherwise."""
        ...

    def learning(self) -> StepRecord | None:
        """Return the running step as if learning ended now, with the spans of rewards and learning alone. None while it does
        not learn, or where its seconds are known only when it has. Learning while others decode is part of the progress.
        """
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

    @property
    def on_step_end(self) -> OnStepEnd | None:
        """The callback for ends of steps; None without one. Can be set."""
        return self.trainer.on_step_end  # type: ignore[no-any-return]

    @on_step_end.setter
    def on_step_end(self, on_step_end: OnStepEnd | None) -> None:
        self.trainer.on_step_end = on_step_end

    @property
    def on_end(self) -> Callable[[], object] | None:
        """The callback for the end of ``Trainer.train`` and of loops; None without one. Can be set."""
        return self.trainer.on_train_end  # type: ignore[no-any-return]

    @on_end.setter
    def on_end(self, on_end: Callable[[], object] | None) -> None:
        self.trainer.on_train_end = on_end

    def goes_on(self) -> bool:
        """See ``Steps``."""
        return bool(self.trainer.trains)

    def generated(self) -> StepRecord | None:
        """See ``Steps``."""
        return self.trainer.generated  # type: ignore[no-any-return]

    def learning(self) -> StepRecord | None:
        """See ``Steps``."""
        return self.trainer.learning_so_far()  # type: ignore[no-any-return]

    def left(self) -> int:
        """See ``Steps``."""
        return int(self.trainer.config.steps - self.trainer.next_step)

    def next_step(self) -> int:
        """See ``Steps``."""
        return int(self.trainer.next_step)

    def next(self) -> object:
        """See ``Steps``."""
        return self.trainer.step()

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
    a step says when it does the latter, so ``on_phase`` is never called. Nor is ``on_end``: a call runs one step.
    """

    on_phase: OnPhase | None = None
    on_end: Callable[[], object] | None = None

    def __init__(self, executor: Executor, work: Sequence[tuple[Plan, Sequence[Request]]]) -> None:
        self.executor, self.work, self.decodes_on = executor, list(work), executor.actor_pool is not None
        self._done = 0

    @property
    def on_progress(self) -> OnProgress | None:
        """Set the callback for progress of the running step."""
        return self.executor.on_progress

    @on_progress.setter
    def on_progress(self, on_progress: OnProgress | None) -> None:
        self.executor.on_progress = on_progress

    @property
    def on_step_end(self) -> OnStepEnd | None:
        """Set the callback for ends of steps."""
        return self.executor.on_step_end

    @on_step_end.setter
    def on_step_end(self, on_step_end: OnStepEnd | None) -> None:
        self.executor.on_step_end = on_step_end

    def goes_on(self) -> bool:
        """See ``Steps``."""
        return False

    def generated(self) -> None:
        """See ``Steps``: an executor does not learn."""

    def learning(self) -> None:
        """See ``Steps``: an executor does not learn."""

    def left(self) -> int:
        """See ``Steps``."""
        return len(self.work) - self._done

    def next_step(self) -> int:
        """See ``Steps``."""
        return self.executor.next_step

    def next(self) -> object:
        """See ``Steps``."""
        plan, requests = self.work[self._done]
        self._done += 1  # before the step's end is told of
        try:
            return self.executor.run(plan, requests)
        except BaseException:
            self._done -= 1
            raise

    def setting(self) -> SimulationConfig:
        """See ``Steps``."""
        limits = [longest_response(requests) for _, requests in self.work if len(requests)]
        limit = {"max_response_tokens": max(limits)} if limits else {}
        return SimulationConfig(self.executor.cluster, self.executor.latency, **limit)  # type: ignore[arg-type]

    def interrupted(self, error: BaseException) -> Trace | None:
        """Return the rows of the completed part of the step, where any response was complete."""
        try:
            record = StepFailed.of(error).record
        except InputTypeError:  # the step had not begun
            return None
        return record.trace if record.completions else None


def steps_of(source: Any, work: Sequence[tuple[Plan, Sequence[Request]]] = ()) -> Steps:
    """Return what ``live`` runs: the remaining steps of a trainer, or plans with their requests on an executor, or none.

    Raises:
        InputTypeError: ``source`` is neither, or the work of an executor is something else.
    """
    if isinstance(source, Executor):
        if not isinstance(work, Sequence):
            raise InputTypeError("the work of an executor is a list of (plan, requests); leave it out to show what cells run")
        for i, pair in enumerate(work):
            if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Plan)):
                raise InputTypeError(f"work[{i}] is no pair of a Plan and its requests; a list of (plan, requests) is needed")
        return ExecutorSteps(source, work)
    if hasattr(source, "step") and hasattr(source, "config") and hasattr(source, "next_step"):
        return TrainerSteps(source)
    raise InputTypeError(f"{type(source).__name__} cannot be run live; a Trainer or an Executor is needed")

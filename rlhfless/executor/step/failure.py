"""``StepFailed``: a step that has begun and was not finished, with the record of what was done until then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlhfless.errors import InputTypeError, UserError
from rlhfless.executor.step.record import StepRecord
from solver.model.errors import PlanningError

if TYPE_CHECKING:
    from pathlib import Path


class ActorError(UserError, RuntimeError):
    """Actors died or failed, so the step could not be finished; the message says why. It is the cause of a ``StepFailed``."""


class StepFailed(UserError, RuntimeError):
    """A step began and was not finished. Its cause (``__cause__``) is the error that ended it.

    A ``KeyboardInterrupt`` is raised as usual, so that it ends a notebook's cell or a program; its cause is then the
    ``StepFailed``.

        try:
            record = executor.run(plan, requests)
        except (StepFailed, KeyboardInterrupt) as error:
            record = StepFailed.of(error).record  # rows of a valid trace, and the completions so far

    Attributes:
        record: the completed part of the step: completions, spans, events and allocations; on the virtual clock in the latency
            model's seconds.
        reason: one sentence about the cause, which is the message. kept_in: the folder of a separate trace with this record, if
            the run keeps a trace.
        resume_with: options that are needed to resume the run, because its cluster has become smaller.
    """

    def __init__(self, record: StepRecord, reason: str) -> None:
        super().__init__(record, reason)
        self.record, self.reason = record, reason
        self.kept_in: Path | None = None
        self.resume_with = ""

    def __str__(self) -> str:
        return self.reason

    @staticmethod
    def of(error: BaseException) -> StepFailed:
        """Return ``error`` if it is a ``StepFailed``, or the ``StepFailed`` that is the cause of an interrupt.

        Raises:
            InputTypeError: ``error`` did not end a step that had begun.
        """
        for found in (error, error.__cause__):
            if isinstance(found, StepFailed):
                return found
        raise InputTypeError(f"{type(error).__name__} did not end a step that had begun, so there is no record")


@contextlib.contextmanager
def ends_as_failed(record: StepRecord) -> Iterator[None]:
    """Raise ``StepFailed`` from every error inside; an interrupt is raised again, from a ``StepFailed``."""
    try:
        yield
    except Exception as error:
        own = isinstance(error, PlanningError | ActorError)  # their messages are whole sentences
        raise StepFailed(record, str(error) if own else f"{type(error).__name__}: {error}") from error
    except BaseException as error:
        said = f"step {record.step} was interrupted when {len(record.completions)} of its responses were complete"
        raise error from StepFailed(record, said)

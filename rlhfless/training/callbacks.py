"""Callback interface of the trainer: one call after every committed step, one when the trainer is closed.

``loggers.py`` has the callbacks that write metrics to a file or a tracker.
"""

from __future__ import annotations

from typing import Any

from rlhfless.training.step_result import TrainedStep


class Callback:
    """Base class of callbacks; override the methods that you need.

    An exception in a callback ends the run like any other error. The reported step stays committed, and the run can be resumed
    after it.

    Example:
        >>> from rlhfless.training import Callback
        >>> class Print(Callback):
        ...     def on_step(self, trainer, step):
        ...         print(step.in_short)
    """

    def on_step(self, trainer: Any, step: TrainedStep) -> None:
        """Called after a step was committed: its weights, checkpoint and trace are written. ``trainer`` is the ``Trainer``."""

    def on_end(self, trainer: Any) -> None:
        """Called once, when the trainer is closed after its last step or after an error."""

"""What is told of a run's steps.

Knows the protocol only; ``loggers`` has callbacks that write metrics somewhere.
"""

from __future__ import annotations

from typing import Any

from rlhfless.training.step_result import TrainedStep


class Callback:
    """Told of every step once it counts, and of the end; derive from it what is needed.

    What a callback raises ends the run as any other error does. The step that it was told of counts, and the run can go on
    after it.
    """

    def on_step(self, trainer: Any, step: TrainedStep) -> None:
        """A step is complete: its weights, its checkpoint and its trace are there. ``trainer`` is the ``Trainer``."""

    def on_end(self, trainer: Any) -> None:
        """The trainer is closed, after its last step or after an error. Called once."""

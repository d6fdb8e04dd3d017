"""What several commands state about a run that was logged, and what they refuse or assume of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhfless.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from rlhfless.run import Run


def refuse_without_gpus(run: Run, path: Path) -> None:
    """Refuse a run whose number of GPUs neither --gpus nor its trace states.

    Raises:
        InputError: it is such a run.
    """
    if run.hardware.gpus is None:
        raise InputError(f"{path}: does not say how many GPUs the run had; --gpus N is needed")


def assumed_of(run: Run) -> list[str]:
    """Return a sentence on everything that is assumed, because neither options nor the log state it."""
    return [f"Assumed: {sentence}." for sentence in run.assumed]

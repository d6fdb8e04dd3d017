"""Checkpoints: the learner's state after a step, found again by step number.

Knows folders; nothing of traces, or of what a learner writes. A checkpoint is a folder that appears whole: renamed into place
once the disk has its files, so that it is whole after the machine went down too.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rlhfless.trace.storage import sync
from rlhfless.training.config import TrainError
from rlhfless.training.learner.learner import Learner
from solver.model.plurals import counted


def folder_of(root: Path, steps: int) -> Path:
    """Where the checkpoint after ``steps`` completed steps lies."""
    return root / f"after-{steps:06d}"


def save_checkpoint(root: Path, steps: int, learner: Learner) -> None:
    """Write the state after ``steps`` completed steps, all of it or nothing.

    Raises:
        TrainError: it could not be written, as on a full disk; earlier checkpoints are as they were.
    """
    target = folder_of(root, steps)
    draft = target.with_suffix(".tmp")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        root.mkdir(parents=steps == 0, exist_ok=True)  # later on a run's folder that is gone is not made again
        draft.mkdir()
        learner.write(draft)
        for written in (*draft.iterdir(), draft):
            sync(written)
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
        sync(root)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        why = error.strerror or error
        raise TrainError(
            f"{target}: could not be written ({why}); what was saved before it is there: make room, and resume the run"
        ) from error


def load_checkpoint(root: Path, steps: int, learner: Learner) -> None:
    """Restore the state after ``steps`` completed steps.

    Raises:
        TrainError: there is no such checkpoint, it is of another configuration, or a file of it cannot be read.
    """
    folder = folder_of(root, steps)
    if not (folder / "state.json").is_file():
        raise TrainError(f"{root}: has no checkpoint after {counted(steps, 'step')}, which the trace has; start the run anew")
    learner.read(folder)


def keep_latest(root: Path, steps: int, count: int) -> None:
    """Remove every checkpoint but the ``count`` latest up to the one after ``steps`` steps, which stays."""
    kept = {folder_of(root, steps)} | set(sorted(f for f in root.glob("after-*") if f <= folder_of(root, steps))[-count:])
    for folder in root.glob("after-*"):
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)

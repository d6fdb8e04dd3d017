"""Writes and reads checkpoints: the learner's state after a step, in a folder named by the number of completed steps.

A checkpoint appears complete or not at all. Its folder is renamed into place after its files were synced to the disk, so it
also survives a crash of the machine. What the files contain is the learner's business (``learner/learner.py``).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rlhfless.trace.storage import sync
from rlhfless.training.config import TrainError
from rlhfless.training.learner.learner import Learner
from solver.model.plurals import counted

STATE = "state.json"  # of every learner; other files are its business


def folder_of(root: Path, steps: int) -> Path:
    """Return the folder of the checkpoint after ``steps`` completed steps."""
    return root / f"after-{steps:06d}"


def saved_steps(root: Path) -> list[int]:
    """Return the numbers of completed steps after which there is a checkpoint, in order."""
    return sorted(int(folder.name.removeprefix("after-")) for folder in root.glob("after-*") if (folder / STATE).is_file())


def save_checkpoint(root: Path, steps: int, learner: Learner) -> None:
    """Write the learner's state after ``steps`` completed steps, completely or not at all.

    Raises:
        TrainError: it could not be written, as on a full disk; earlier checkpoints are unchanged.
    """
    target = folder_of(root, steps)
    draft = target.with_name(f".{target.name}.tmp")  # what a killed process left of it is no checkpoint
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
        reason = error.strerror or error
        raise TrainError(
            f"{target}: could not be written ({reason}); earlier checkpoints are complete: free disk space and resume the run"
        ) from error


def load_checkpoint(root: Path, steps: int, learner: Learner) -> None:
    """Restore the learner's state after ``steps`` completed steps.

    Raises:
        TrainError: there is no such checkpoint, it belongs to another configuration, or one of its files cannot be read.
    """
    folder = folder_of(root, steps)
    if not (folder / STATE).is_file():
        raise TrainError(
            f"{root}: has no checkpoint after {counted(steps, 'step')}, although the trace has as many; start a new run"
        )
    learner.read(folder)


def keep_latest(root: Path, steps: int, count: int) -> None:
    """Remove all checkpoints but the ``count`` latest up to the one after ``steps`` steps, which always stays, and what killed
    processes left unfinished.
    """
    kept = {folder_of(root, steps)} | set(sorted(f for f in root.glob("after-*") if f <= folder_of(root, steps))[-count:])
    for folder in (*root.glob("after-*"), *root.glob(".after-*.tmp")):
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)

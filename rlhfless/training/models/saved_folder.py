"""Replaces what a folder has of a model by a new save: its files are on the disk before the first one is replaced."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from rlhfless.training import missing_torch

try:
    from safetensors import SafetensorError
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.trace.storage import sync
from rlhfless.training.config import TrainError


@contextlib.contextmanager
def saved_folder(folder: Path) -> Iterator[Path]:
    """Context that writes into a new folder beside ``folder``; at its end the files replace those of ``folder``.

    Weights of an earlier save in other parts (``model-00001-of-00002.safetensors``) are removed. All other files stay.

    Raises:
        TrainError: it could not be written, as on a full disk; earlier content is unchanged.
    """
    draft = folder.with_name(f"{folder.name}.tmp")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        _move(draft, folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TrainError(
            f"{folder}: the model could not be written ({reason}); free disk space and write it again, "
            "which resuming its run does"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _move(draft: Path, folder: Path) -> None:
    written = [path.relative_to(draft) for path in sorted(draft.rglob("*")) if path.is_file()]
    for path in written:
        sync(draft / path)
    for path in written:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (draft / path).replace(folder / path)
    for earlier in folder.glob("model*.safetensors*"):
        if earlier.relative_to(folder) not in written:
            earlier.unlink()
    for parent in {(folder / path).parent for path in written}:
        sync(parent)

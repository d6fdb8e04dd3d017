"""Ships a weight version to another machine as bytes and writes it once per node into a shared temporary folder.

The first process that needs a version on a machine writes it, in memory where the system has such a folder. Other processes
there read the same folder, and the last reader deletes it. Folders of a killed process are removed by its sweeper
(``rlhfless.system.scratch_folders``).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhfless.system.file_locks import LockKind, lock_file
from rlhfless.system.scratch_folders import give_up, goes_with_this_process, in_memory, is_at, locked, sweep

PREFIX = "rlhfless-carried-"
AGAIN_S = 0.01


@dataclass(frozen=True)
class ShippedWeights:
    """A factory with its weights.

    Attributes:
        engines: a frozen dataclass that names a folder as ``weights``, a ``VllmEngineFactory``.
        files: (bytes,) uint8 of every file of its folder, by name.
        name: of this version of these weights, unique among all versions.
    """

    engines: Any
    files: Mapping[str, np.ndarray]
    name: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, engines: Any) -> ShippedWeights:
        """Return the factory with the current files of its folder, which are read when they are serialised."""
        files = sorted(Path(engines.weights).iterdir())
        mapped = {f.name: torch.from_file(str(f), size=f.stat().st_size, dtype=torch.uint8) for f in files}
        return cls(engines, {name: content.numpy() for name, content in mapped.items()})

    def materialise(self) -> LocalWeights:
        """Write its folder on this machine unless it exists; returns it locked against removal."""
        sweep(PREFIX, in_memory())
        place = in_memory() / f"{PREFIX}{self.name}"
        goes_with_this_process(place)
        while True:
            with contextlib.suppress(FileExistsError):
                place.mkdir(mode=0o700)
            if (lock := locked(place, LockKind.SHARED)) is None:  # waits while somebody writes
                continue
            try:
                if not (place / "weights").exists():
                    lock_file(lock, LockKind.EXCLUSIVE_NOW)  # gives the other lock up, so it may be removed now
                    if is_at(lock, place):
                        self._write(place)
                    lock_file(lock, LockKind.SHARED)
                if is_at(lock, place):
                    return LocalWeights(replace(self.engines, weights=str(place / "weights")), place, lock)
            except BlockingIOError:
                time.sleep(AGAIN_S)  # somebody else is about to write
            except BaseException:
                give_up(place, lock)
                raise
            os.close(lock)

    def _write(self, place: Path) -> None:
        unfinished = place / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)  # of somebody who was killed
        unfinished.mkdir()
        for name, content in self.files.items():
            content.tofile(unfinished / name)
        unfinished.rename(place / "weights")


@dataclass(frozen=True)
class LocalWeights:
    """Weights in a folder of this machine, which exists at least until ``release``.

    Attributes:
        engines: the factory that reads them. place: the folder to remove. lock: an open file, shared by all readers.
    """

    engines: Any
    place: Path
    lock: int

    def release(self) -> None:
        """Release the folder after the weights were read. Called once."""
        give_up(self.place, self.lock)

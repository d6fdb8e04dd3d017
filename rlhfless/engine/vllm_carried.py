"""vLLM's weights on their way to other machines: their files as bytes, and for as long as they are read a folder of them there.

Knows files and locks; nothing of Ray, vLLM or what is decoded. Whoever needs a version first on a machine lays it down, in
memory where the system has such a place; others there read the same folder, and the last one removes it. What a process that
was killed left behind is removed by the next one that comes by.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlhfless.engine.vllm_factory import VllmEngineFactory

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "rlhfless-carried-"
AGAIN_S = 0.01


@dataclass(frozen=True)
class Carried:
    """A factory with its weights.

    Attributes:
        files: (bytes,) uint8 of every file of its folder, by name.
        name: of this version of these weights, different from all others.
    """

    engines: VllmEngineFactory
    files: Mapping[str, Tensor]
    name: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, engines: VllmEngineFactory) -> Carried:
        """With the files as they are now, which are read when they are laid out."""
        files = sorted(Path(engines.weights).iterdir())
        return cls(engines, {f.name: torch.from_file(str(f), size=f.stat().st_size, dtype=torch.uint8) for f in files})

    def lay_down(self) -> LaidDown:
        """Its folder on this machine, written unless it is there."""
        _sweep(self.name)
        place = shared_folder() / f"{PREFIX}{self.name}"
        while True:
            with contextlib.suppress(FileExistsError):
                place.mkdir(mode=0o700)
            if (lock := _locked(place, fcntl.LOCK_SH)) is None:  # waits while somebody writes
                continue
            try:
                if not (place / "weights").exists():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gives the other lock up, so it may be removed now
                    if _is_at(lock, place):
                        self._write(place)
                    fcntl.flock(lock, fcntl.LOCK_SH)
                if _is_at(lock, place):
                    return LaidDown(replace(self.engines, weights=str(place / "weights")), place, lock)
            except BlockingIOError:
                time.sleep(AGAIN_S)  # somebody else is about to write
            os.close(lock)

    def _write(self, place: Path) -> None:
        unfinished = place / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)  # of somebody who was killed
        unfinished.mkdir()
        for name, content in self.files.items():
            content.numpy().tofile(unfinished / name)
        unfinished.rename(place / "weights")


@dataclass(frozen=True)
class LaidDown:
    """Weights in a folder of this machine, which is there at least until ``let_go``.

    Attributes:
        engines: the factory that reads them. place: what is removed. lock: an open file, shared by all that read.
    """

    engines: VllmEngineFactory
    place: Path
    lock: int

    def let_go(self) -> None:
        """The weights were read. Called once."""
        _remove_unless_read(self.place, self.lock)


def shared_folder() -> Path:
    """Where weights are laid down."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


def _sweep(name: str) -> None:
    """Remove other weights that nobody reads."""
    for other in shared_folder().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else's, or being written
            if other.name != f"{PREFIX}{name}" and (lock := _locked(other, fcntl.LOCK_SH | fcntl.LOCK_NB)) is not None:
                _remove_unless_read(other, lock)


def _locked(place: Path, how: int) -> int | None:
    """The folder, locked; None where it is gone, or another one by now."""
    try:
        lock = os.open(place, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, how)
        if _is_at(lock, place):
            return lock
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _is_at(lock: int, place: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), place.stat())
    return False


def _remove_unless_read(place: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(place, ignore_errors=True)
    except BlockingIOError:
        pass  # others read it
    finally:
        os.close(lock)

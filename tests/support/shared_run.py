"""A folder that all processes of one test run share, and what is made in it only once.

Knows files and locks; nothing of what is made. ``.ci/run`` names the folder, as it calls pytest twice.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

VARIABLE = "RLHFLESS_TEST_RUN"


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of this test run: the one that ``.ci/run`` gave, else one that this call's worker processes share."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(place: Path, make: Callable[[Path], object]) -> Path:
    """Return the folder ``place``, which the first caller fills; callers in other processes wait for it.

    Args:
        place: the folder.
        make: fills a folder, which has another name until it is complete; whoever comes after a failure tries again.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_name(f"{place.name}.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = place.with_name(f"{place.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(place)
    return place

"""Preparation that kills its process: functions of work items that other processes import."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhfless.training.freed_preparation import PreparedResponse, prepare_response

STEP, PART = 1, 3


def die_and_prepare(marks: str, deaths: int, stream: Sequence[int], *given: Any) -> PreparedResponse:
    """Kill the process with the third response of the second step, so many times; ``marks``: a file with a line per death."""
    file = Path(marks)
    if tuple(stream[1:]) == (STEP, PART) and len(file.read_text().splitlines() if file.exists() else ()) < deaths:
        with file.open("a") as each:
            each.write("dead\n")
        os.kill(os.getpid(), signal.SIGKILL)
    return prepare_response(stream, *given)

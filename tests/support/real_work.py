"""Functions of work items that other processes import."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def count(completions: Sequence[Any], results: Sequence[Any]) -> tuple[int, int]:
    """Return the process, and the tokens of the responses and of the items before."""
    return os.getpid(), sum(len(c.token_ids) for c in completions) + sum(tokens for _, tokens in results)


def die_first(mark: str, completions: Sequence[Any], results: Sequence[Any]) -> tuple[int, int]:
    """Kill the process, but only once; ``mark``: a file that says that this was done."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return count(completions, results)


def die(completions: Sequence[Any], results: Sequence[Any]) -> None:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)

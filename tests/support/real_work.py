"""Functions of work items that other processes import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import waiting_workers


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


def stop(completions: Sequence[Any], results: Sequence[Any]) -> None:
    """Stop the process, which says nothing any more."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_first(mark: str, completions: Sequence[Any], results: Sequence[Any]) -> str:
    """Stop the process, but only once; see ``die_first``."""
    if not Path(mark).exists():
        Path(mark).touch()
        stop(completions, results)
    return "worked"


def wait(seconds: float, completions: Sequence[Any], results: Sequence[Any]) -> str:
    """Use no processor for a while."""
    time.sleep(seconds)
    return "worked"


def compute(seconds: float, completions: Sequence[Any], results: Sequence[Any]) -> str:
    """Use the processor for a while, in calls that keep Python's lock."""
    waiting_workers.compute(seconds)
    return "worked"

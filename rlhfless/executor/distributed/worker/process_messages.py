"""Control messages of a worker process: it accepts orders, or it has failed."""

from __future__ import annotations

import traceback
from dataclasses import dataclass


@dataclass(frozen=True)
class ActorReady:
    """Sent before any report: the process accepts orders, since ``up_s`` on the machine's monotonic clock."""

    up_s: float


@dataclass(frozen=True)
class Failed:
    """Sent instead of a report: the process has ended with an exception (see ``ActorLost``)."""

    error: str
    trace: str
    out_of_memory: bool = False
    unrecoverable: bool = False


def failed(error: Exception) -> Failed:
    """Return the message for an exception; called where it is handled."""
    name = type(error).__name__
    memory = isinstance(error, MemoryError) or name == "OutOfMemoryError"  # torch's, which is not imported here
    # A request is wrong, or the weights are (logits that are no numbers): it is the same wherever they go.
    unrecoverable = isinstance(error, ValueError | TypeError | FloatingPointError)
    return Failed(f"{name}: {error}", traceback.format_exc(), memory, unrecoverable)

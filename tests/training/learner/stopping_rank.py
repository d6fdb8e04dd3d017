"""A learner process on Ray without a learner: it answers orders, or stops."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any


class StoppingRank:
    """See ``rlhfless.training.learner.ray_ranks.RayRank``."""

    def __init__(self, rank: int) -> None:
        self._rank, self._thread = rank, 0

    def meeting(self) -> str:
        return "nowhere"

    def start(self, startup: Any) -> tuple[int, str]:
        self._thread = threading.get_ident()
        return os.getpid(), "here"

    def beat(self) -> None:
        """Say that the process lives."""

    def order(self, name: str, argument: Any, seed: int) -> bool:
        """Return whether orders are executed in the thread in which the process has started; ``stop`` stops the second one."""
        if name == "stop" and self._rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        return threading.get_ident() == self._thread

"""A process in place of the one in which vLLM decodes for emulated actors: it answers calls, dies or stops."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from rlhfless.system.child import HeartbeatConnection, serve


class Replica:
    """Answers ``echo``; ``die`` and ``stop`` do that to the process."""

    ready = "about"

    def echo(self, what: Any) -> Any:
        return what

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


def main(pipe: Connection, device: str, settings: Any, folder: str, version: int) -> None:
    serve(HeartbeatConnection(pipe), Replica)

"""A process in place of the one in which vLLM decodes for emulated actors: it answers calls, dies or stops."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from rlhfless.system.piped_processes import HeartbeatConnection


def main(pipe: Connection, device: str, settings: Any, folder: str, version: int) -> None:
    """Answer ``echo`` with its argument; ``die`` and ``stop`` do that to the process."""
    connection = HeartbeatConnection(pipe)
    connection.send("about")
    while True:
        call, arguments = connection.recv()
        if call != "echo":
            os.kill(os.getpid(), signal.SIGKILL if call == "die" else signal.SIGSTOP)
        connection.send(*arguments)

"""The process of one actor: runs a worker on the orders of its pipe.

A separate thread reads the pipe, so that a sender never waits for an iteration. When the pipe closes because the parent has
ended, the process ends too.
"""

from __future__ import annotations

import os
import queue
import threading
from multiprocessing.connection import Connection
from typing import Any

from rlhfless.executor.distributed.messages import Prewarm
from rlhfless.executor.distributed.worker.worker import Worker
from rlhfless.system.child import Failed, Ready


def main(connection: Connection, device: str, backend_module: str, prewarm: Prewarm | None) -> None:
    """Run the process until its pipe closes: an actor on ``device`` that imports ``backend_module``."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    try:
        worker = Worker(connection, inbox, device, backend_module)
        if prewarm is not None:
            worker.prewarm(prewarm.engines, prewarm.latency)
        connection.send(Ready(worker.up_s))
        worker.serve()
    except Exception as error:
        connection.send(Failed.of(error))


def _receive(connection: Connection, inbox: queue.SimpleQueue[Any]) -> None:
    while True:
        try:
            inbox.put(connection.recv())  # the parent may have no orders for hours; when it ends, the pipe does
        except (EOFError, OSError):
            os._exit(0)  # at once, whatever the main thread is doing: no process is left that would read an error
        except Exception as error:  # an order that cannot be read here: the main thread says so
            inbox.put(error)
            return

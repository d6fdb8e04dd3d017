"""Main functions of processes that work together, and wait for each other for ever where one does not come."""

from __future__ import annotations

import os
import re
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlhfless.system.piped_processes import Heartbeat, HeartbeatConnection
from rlhfless.training.worker_group import DONE, READY, report

BACKTRACKING = re.compile("(a+)+$")


def main(pipe: Connection, rank: int) -> None:
    """Answer orders: ``read`` at once, ``compute`` after so many seconds, ``say`` once there is a file, after a heartbeat with
    the rank. Others are answered by the first process only.

    ``stop`` stops the second one, ``die`` kills the first one after its answer, and ``wrong`` ends in the first one's error.
    """
    connection = HeartbeatConnection(pipe)
    connection.send((READY, None))
    try:
        while True:
            order, argument, _ = connection.recv()
            if order == "compute":
                compute(argument)
            elif order == "say":
                connection.send(Heartbeat(rank))
                while not Path(argument).exists():
                    time.sleep(0.01)
            elif rank and order != "read":
                if order == "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(3600)
            if order == "wrong":
                raise RuntimeError("shapes differ")
            connection.send((DONE, rank))
            if order == "die":
                os.kill(os.getpid(), signal.SIGKILL)
    except Exception as error:
        report(connection, error)


def compute(seconds: float) -> None:
    """Use the processor for a while, in calls that keep Python's lock, so that no other thread sends anything."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        BACKTRACKING.match("a" * 22 + "b")


def answer(pipe: Connection) -> None:
    """Send heartbeats; answer an order with itself, ``stop`` with nothing."""
    connection = HeartbeatConnection(pipe)
    while True:
        order: Any = connection.recv()
        if order == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        connection.send(order)


def say_nothing(pipe: Connection) -> None:
    """Send no heartbeats, and use no processor."""
    time.sleep(3600)

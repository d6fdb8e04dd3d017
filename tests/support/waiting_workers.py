"""Main functions of processes that work together, and wait for each other for ever where one does not come."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlhfless.system.child import Child, Heartbeat, HeartbeatConnection, serve

BACKTRACKING = re.compile("(a+)+$")


class Waiting:
    """Answers orders: ``read`` at once, ``compute`` after so many seconds, ``say`` once there is a file, after a heartbeat with
    the rank. Others are answered by the first process only.

    ``stop`` stops the second one, ``die`` kills the first one after its answer, and ``wrong`` ends in the first one's error.
    """

    def __init__(self, connection: HeartbeatConnection, rank: int) -> None:
        self.connection, self.rank = connection, rank

    def execute(self, order: str, argument: Any = None) -> int:
        if order == "compute":
            compute(argument)
        elif order == "say":
            self.connection.send(Heartbeat(self.rank))
            while not Path(argument).exists():
                time.sleep(0.01)
        elif self.rank and order != "read":
            if order == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(3600)
        if order == "wrong":
            raise RuntimeError("shapes differ")
        if order == "die":
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return self.rank


def main(pipe: Connection, rank: int) -> None:
    connection = HeartbeatConnection(pipe)
    serve(connection, lambda: Waiting(connection, rank))


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


def leave(pipe: Connection, code: int) -> None:
    """End with this exit code."""
    os._exit(code)


def start_another(pipe: Connection) -> None:
    """Start a process, and say its id and this one's process group."""
    pipe.send((subprocess.Popen(["sleep", "3600"]).pid, os.getpgid(0)))
    pipe.recv()


def become_parent(pipe: Connection) -> None:
    """Start a child, and say its id once it runs; die at the next order."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    child = Child(serve_numbers, (), "grandchild", inbox)
    inbox.get()
    pipe.send(child.pid)
    pipe.recv()
    os.kill(os.getpid(), signal.SIGKILL)


class Server:
    """Answers ``double``; fails otherwise."""

    ready = "it doubles"

    def double(self, number: int) -> int:
        return 2 * number

    def fail(self, how: str) -> Any:
        if how == "unpicklable error":
            raise ValueError("held", threading.Lock())
        if how == "unpicklable answer":
            return threading.Lock()
        raise KeyError("gold")


def serve_numbers(pipe: Connection) -> None:
    serve(pipe, Server)

"""Processes at the other end of a pipe: one that hangs is noticed, one that computes is waited for."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import waiting_workers

from rlhfless.system import piped_processes
from rlhfless.system.piped_processes import Ended, PipedProcess, SilentProcess, end_all, next_message

TIMEOUT_S = 5.0
Start = Callable[[Callable[..., None]], PipedProcess]


@pytest.fixture
def inbox() -> queue.SimpleQueue[Any]:
    return queue.SimpleQueue()


@pytest.fixture
def start(inbox: queue.SimpleQueue[Any]) -> Iterator[Start]:
    made: list[PipedProcess] = []

    def run(target: Callable[..., None]) -> PipedProcess:
        made.append(PipedProcess(target, (), "rlhfless-test", inbox))
        return made[-1]

    yield run
    end_all(made)


@pytest.mark.full
def test_orders_are_answered_and_an_end_is_told(start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    process = start(waiting_workers.answer)
    process.send("hello")
    assert next_message(inbox, [process], TIMEOUT_S) == (process, "hello")
    os.kill(process.pid or 0, signal.SIGKILL)
    assert next_message(inbox, [process], TIMEOUT_S) == (process, Ended())
    assert "SIGKILL" in process.how_it_ended(60.0)


@pytest.mark.full
def test_one_that_hangs_is_noticed_among_others(start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    lives, hangs = start(waiting_workers.answer), start(waiting_workers.answer)
    hangs.send("stop")
    with pytest.raises(SilentProcess, match=f"{TIMEOUT_S:g} s") as silent:
        next_message(inbox, [lives, hangs], TIMEOUT_S)
    assert silent.value.process is hangs
    lives.send("still there")
    assert next_message(inbox, [lives], TIMEOUT_S) == (lives, "still there")


@pytest.mark.full
def test_one_that_never_sends_a_heartbeat_is_noticed(
    start: Start, inbox: queue.SimpleQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piped_processes, "START_TIMEOUT_S", TIMEOUT_S)
    process = start(waiting_workers.say_nothing)
    with pytest.raises(SilentProcess):
        next_message(inbox, [process], TIMEOUT_S)

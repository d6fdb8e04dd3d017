"""Processes that execute orders together: what ends one ends all, and its error is told."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import waiting_workers
from error_messages import refused

from rlhfless.training.config import LearnerError
from rlhfless.training.worker_group import WorkerGroup

TIMEOUT_S = 5.0


@pytest.fixture
def group() -> Iterator[WorkerGroup]:
    """Two processes."""
    made = WorkerGroup("group", TIMEOUT_S)
    made.start(waiting_workers.main, [(0,), (1,)])
    yield made
    made.end()


def assert_ended(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.full
def test_a_process_that_is_killed_after_its_answer_ends_the_one_that_waits(group: WorkerGroup) -> None:
    _, second = group.pids
    with refused(LearnerError, "process 0", "SIGKILL", "'die'"):
        group.order("die")
    assert group.pids == []
    assert_ended(second)


@pytest.mark.full
def test_an_error_that_is_of_no_other_process_is_told_as_it_is(group: WorkerGroup) -> None:
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        group.order("wrong")
    assert group.pids == []


@pytest.mark.full
def test_a_process_that_hangs_ends_all(group: WorkerGroup) -> None:
    first, second = group.pids
    with refused(LearnerError, "process 1", str(second), "heartbeat", f"{TIMEOUT_S:g} s", "'stop'", "heartbeat_timeout_s"):
        group.order("stop")
    assert group.pids == []
    assert_ended(first)
    assert_ended(second)


@pytest.mark.full
def test_processes_that_compute_for_longer_than_the_limit_are_waited_for(group: WorkerGroup) -> None:
    assert group.order("compute", TIMEOUT_S + 4.0) == [0, 1]


@pytest.mark.full
def test_what_processes_say_while_they_execute_an_order_can_be_read_until_the_next_one(
    group: WorkerGroup, tmp_path: Path
) -> None:
    answered: list[Any] = []
    ordering = threading.Thread(target=lambda: answered.append(group.order("say", str(tmp_path / "go"))))
    assert group.so_far() == []
    ordering.start()
    until = time.monotonic() + 300
    while group.so_far() != [0, 1]:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert answered == []
    (tmp_path / "go").touch()
    ordering.join()
    assert (answered, group.so_far()) == ([[0, 1]], [0, 1])
    group.order("read")
    assert group.so_far() == []


@pytest.mark.full
def test_an_order_that_cannot_be_sent_is_an_error(group: WorkerGroup) -> None:
    with pytest.raises(Exception, match="pickle"):
        group.order("compute", lambda: None)
    assert group.pids == []


@pytest.mark.full
def test_an_order_that_does_not_fit_into_the_pipe_of_a_process_that_hangs_ends_all(group: WorkerGroup) -> None:
    """Nobody waits while it is sent."""
    with refused(LearnerError, "process 1", "heartbeat_timeout_s"):
        os.kill(group.pids[1], signal.SIGSTOP)
        group.order("read", bytes(1 << 24))
    assert group.pids == []

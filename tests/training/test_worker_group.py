"""Processes that execute orders together: what ends one ends all, and its error is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import waiting_workers
from error_messages import refused

from rlhfless.training import worker_group
from rlhfless.training.config import LearnerError
from rlhfless.training.worker_group import WorkerGroup


@pytest.fixture
def group() -> Iterator[WorkerGroup]:
    """Two processes."""
    made = WorkerGroup("group")
    made.start(waiting_workers.main, [(0,), (1,)])
    yield made
    made.end()


@pytest.mark.full
def test_a_process_that_is_killed_after_its_answer_ends_the_one_that_waits(
    group: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer wakes up for the answer and for the end, and for nothing else: it looks at no clock."""
    first, second = group.pids
    waits: list[float | None] = []

    def counted(awaited: list[object], timeout: float | None = None) -> list[object]:
        if len(waits) == 1:
            os.kill(first, signal.SIGKILL)  # its answer was read
        waits.append(timeout)
        return wait(awaited, timeout)

    wait = worker_group.wait
    monkeypatch.setattr(worker_group, "wait", counted)
    with refused(LearnerError, "process 0", "SIGKILL", "'first'"):
        group.order("first")
    assert waits == [None, None]
    assert worker_group.SOON_S + 2 * worker_group.END_S < 10
    assert group.pids == []
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


@pytest.mark.full
def test_an_error_that_is_of_no_other_process_is_told_as_it_is(group: WorkerGroup) -> None:
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        group.order("wrong")
    assert group.pids == []

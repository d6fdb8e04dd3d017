"""Of a burst of requests the newest is worked on, and work learns that it is out of date."""

from __future__ import annotations

import subprocess
import sys
import threading

from rlhfless.widgets.latest_request import LatestRequestWorker, Newest


def nothing(_: Exception) -> None:
    raise AssertionError("no request of this test fails")


def test_of_a_burst_only_the_newest_is_worked_on() -> None:
    done: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def work(request: int, _: Newest) -> None:
        done.append(request)
        begun.set()
        assert go_on.wait(300)

    latest: LatestRequestWorker[int] = LatestRequestWorker(work, nothing)
    latest.submit(0)
    assert begun.wait(300)
    for request in range(1, 50):
        latest.submit(request)
    go_on.set()
    assert latest.wait(300)
    assert done == [0, 49], "the first at once, of the others the newest"


def test_work_under_way_learns_that_something_newer_was_asked() -> None:
    begun, go_on = threading.Event(), threading.Event()
    told: list[tuple[str, bool]] = []

    def work(request: str, newest: Newest) -> None:
        told.append((request, newest()))
        if request == "old":
            begun.set()
            assert go_on.wait(300)
            told.append((request, newest()))

    latest: LatestRequestWorker[str] = LatestRequestWorker(work, nothing, wait_s=0)
    latest.submit("old")
    assert begun.wait(300)
    latest.submit("new")
    go_on.set()
    assert latest.wait(300)
    assert told == [("old", True), ("old", False), ("new", True)]


def test_an_error_is_reported_and_the_next_request_is_worked_on() -> None:
    errors: list[Exception] = []
    done: list[int] = []

    def work(request: int, _: Newest) -> None:
        done.append(1 // request)

    latest: LatestRequestWorker[int] = LatestRequestWorker(work, errors.append, wait_s=0)
    latest.submit(0)
    assert latest.wait(300)
    latest.submit(1)
    assert latest.wait(300)
    assert [type(e) for e in errors] == [ZeroDivisionError]
    assert done == [1]


def test_no_thread_is_left_when_nothing_is_asked() -> None:
    latest: LatestRequestWorker[int] = LatestRequestWorker(lambda *_: None, nothing, wait_s=0)
    latest.submit(1)
    assert latest.wait(300)
    for thread in threading.enumerate():
        if thread.name == "rlhfless-latest":
            thread.join(300)
    assert not [t for t in threading.enumerate() if t.name == "rlhfless-latest" and t.is_alive()]


def test_the_end_of_the_program_waits_for_work_under_way() -> None:
    script = """
import threading, time
from rlhfless.widgets.latest_request import LatestRequestWorker

begun = threading.Event()

def work(request, newest):
    begun.set()
    while newest():
        time.sleep(0.01)
    print("stopped", request, flush=True)

LatestRequestWorker(work, print).submit(1)
begun.wait()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "stopped 1\n", "")

"""Child processes: calls, ends, hangs, and that none outlives its parent."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import waiting_workers
from torch_wall_samples import until

from rlhfless.system import child
from rlhfless.system.child import Answer, Child, Ended, Failed, Ready, SilentChild, end_all, next_message

TIMEOUT_S = 5.0
Start = Callable[..., Child]


@pytest.fixture
def inbox() -> queue.SimpleQueue[Any]:
    return queue.SimpleQueue()


@pytest.fixture
def start(inbox: queue.SimpleQueue[Any]) -> Iterator[Start]:
    made: list[Child] = []

    def run(target: Callable[..., None], *arguments: Any) -> Child:
        made.append(Child(target, arguments, "rlhfless-test", inbox))
        return made[-1]

    yield run
    end_all(made)


def gone(pid: int) -> bool:
    """Whether a process has ended, though somebody may not have asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_calls_are_answered_with_results_and_errors(start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    process = start(waiting_workers.serve_numbers)
    assert process.ready is None
    assert inbox.get() == (process, Ready("it doubles"))
    assert process.ready == Ready("it doubles")

    def called(name: str, argument: Any) -> Any:
        process.call(name, argument)
        return inbox.get()[1]

    assert called("double", 4) == Answer(8)
    given = [("fail", "at all"), ("fail", "unpicklable error"), ("fail", "unpicklable answer"), ("double", threading.Lock())]
    failed: list[Failed] = [called(*each) for each in given]
    assert [(one.kind, one.out_of_memory, one.unrecoverable) for one in failed] == [
        ("KeyError", False, False), ("ValueError", False, True), ("TypeError", False, True), ("TypeError", False, True),
    ]  # fmt: skip
    assert isinstance(failed[0].exception, KeyError)
    assert isinstance(failed[1].exception, RuntimeError)
    assert "held" in str(failed[1].exception)
    assert failed[0].error == "KeyError: 'gold'"
    assert failed[3].error.startswith("an order that cannot be sent (")
    assert called("double", 5) == Answer(10)


@pytest.mark.parametrize("error", [MemoryError(), type("OutOfMemoryError", (RuntimeError,), {})()])
def test_an_error_for_want_of_memory_is_known_as_one(error: Exception) -> None:
    assert Failed.of(error).out_of_memory


@pytest.mark.full
def test_orders_are_answered_and_an_end_is_told(start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    process = start(waiting_workers.answer)
    process.send("hello")
    assert next_message(inbox, [process], TIMEOUT_S) == (process, "hello")
    os.kill(process.pid or 0, signal.SIGKILL)
    assert next_message(inbox, [process], TIMEOUT_S) == (process, Ended())
    assert process.how_it_ended(60.0).startswith("was killed by SIGKILL")


def test_how_a_process_ended_is_one_clause(start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    leaves, stays = start(waiting_workers.leave, 3), start(waiting_workers.say_nothing)
    assert inbox.get() == (leaves, Ended())
    assert leaves.how_it_ended(60.0) == "ended with exit code 3"
    assert stays.how_it_ended(0.0) == "closed its pipe"


def test_a_process_that_the_system_killed_for_want_of_memory_is_said_to_be(
    start: Start, inbox: queue.SimpleQueue[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control group counts such kills, in both versions of the interface."""
    monkeypatch.setattr(child, "CONTROL_GROUPS", tmp_path)
    (tmp_path / "memory").mkdir()
    counts = [tmp_path / "memory.events", tmp_path / "memory" / "memory.oom_control"]
    for file in counts:
        file.write_text("low 0\noom 0\noom_kill 2\n")
    process, other = start(waiting_workers.say_nothing), start(waiting_workers.say_nothing)
    process.kill()
    assert process.how_it_ended(60.0) == "was killed by SIGKILL"
    for file in counts:
        file.write_text("low 0\noom 1\noom_kill 3\n")
    other.kill()
    assert other.how_it_ended(60.0) == "was killed by SIGKILL (the system ran out of memory)"


@pytest.mark.full
def test_one_that_hangs_is_noticed_among_others(start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    lives, hangs = start(waiting_workers.answer), start(waiting_workers.answer)
    hangs.send("stop")
    with pytest.raises(SilentChild, match=f"{TIMEOUT_S:g} s") as silent:
        next_message(inbox, [lives, hangs], TIMEOUT_S)
    assert silent.value.child is hangs
    lives.send("still there")
    assert next_message(inbox, [lives], TIMEOUT_S) == (lives, "still there")


@pytest.mark.full
def test_one_that_never_sends_a_heartbeat_is_noticed(
    start: Start, inbox: queue.SimpleQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "START_TIMEOUT_S", TIMEOUT_S)
    process = start(waiting_workers.say_nothing)
    with pytest.raises(SilentChild):
        next_message(inbox, [process], TIMEOUT_S)


@pytest.mark.parametrize("leader", ["lives", "died"])
def test_what_a_child_started_ends_with_it(leader: str, start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    process = start(waiting_workers.start_another)
    _, (other, group) = inbox.get()
    assert group == process.pid != os.getpgid(0)
    assert not gone(other)
    if leader == "died":
        os.kill(process.pid or 0, signal.SIGKILL)
        assert inbox.get() == (process, Ended())
        process.how_it_ended()
    process.kill()
    process.join()
    until(lambda: gone(other), "the other process ends")


@pytest.mark.parametrize("hangs", [False, True])
def test_a_child_ends_with_its_parent_even_if_it_hangs(hangs: bool, start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    parent = start(waiting_workers.become_parent)
    _, pid = inbox.get()
    if hangs:
        os.kill(pid, signal.SIGSTOP)
    parent.send("end")
    until(lambda: gone(pid), "the grandchild ends")


def test_a_child_ends_when_its_pipe_does(start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    """Where the kernel does not end it with its parent."""
    process = start(waiting_workers.serve_numbers)
    assert inbox.get() == (process, Ready("it doubles"))
    with socket.socket(fileno=os.dup(process._connection.fileno())) as pipe:
        pipe.shutdown(socket.SHUT_RDWR)
    assert process.how_it_ended(300.0) == "ended with exit code 0"


@pytest.mark.full
def test_a_child_outlives_the_thread_that_asked_for_it(start: Start, inbox: queue.SimpleQueue[Any]) -> None:
    made: list[Child] = []
    thread = threading.Thread(target=lambda: made.append(start(waiting_workers.serve_numbers)))
    thread.start()
    thread.join()
    assert inbox.get() == (made[0], Ready("it doubles"))
    made[0].call("double", 1)
    assert inbox.get() == (made[0], Answer(2))


SCRIPT = """
import os, queue, signal, sys
sys.path[:0] = {paths!r}
import waiting_workers
from rlhfless.system.child import Child

print("imported", flush=True)
inbox = queue.SimpleQueue()
child = Child(waiting_workers.serve_numbers, (), "child", inbox)  # no main guard
print(inbox.get()[1].value, child.pid, flush=True)
os.kill(child.pid, signal.SIGSTOP)
"""


def test_a_script_needs_no_main_guard_and_ends_though_its_child_hangs(tmp_path: Path) -> None:
    script, root = tmp_path / "script.py", Path(__file__).parents[2]
    script.write_text(SCRIPT.format(paths=[str(root), str(root / "tests" / "support")]))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    imported, ready = done.stdout.splitlines()
    assert imported == "imported"
    assert ready.startswith("it doubles ")
    until(lambda: gone(int(ready.split()[-1])), "the child ends")

"""Reward functions of files and formats: judged in a process of their own, which ends with its time, whatever it does, and with
the program."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import check_message, refused
from torch_wall_samples import until
from training_samples import config

from rlhfless.training.loop import Trainer
from rlhfless.training.rewards import FunctionReward, Response, process
from rlhfless.training.rewards.process import MAX_LOST, FunctionProcesses
from rlhfless.training.rewards.registry import make_rewards
from rlhfless.training.tasks.arithmetic import ArithmeticTask

PROBLEM = ArithmeticTask(0, 1).problems[0]
BACKTRACKS = "^(a+)+$"
STUCK = "a" * 60 + "b"  # takes that expression longer than anybody lives
FUNCTIONS = """
from __future__ import annotations

import multiprocessing, os, random, re, signal, subprocess, sys, threading, time
from dataclasses import dataclass

import numpy as np

@dataclass
class Verdict:
    number: float

def length(response):
    return Verdict(len(response.text)).number

def odd(response):
    text = response.text
    if text == "stuck":
        re.match("^(a+)+$", "a" * 60 + "b")
    if text.startswith("says "):
        open(text.removeprefix("says "), "w").close()
        time.sleep(600)
    if text == "exit":
        sys.exit(0)
    if text == "end":
        os._exit(3)
    if text == "end well":
        os._exit(0)
    if text == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if text == "print":
        print("a line", flush=True)
    if text == "lock":
        raise ValueError("held", threading.Lock())
    if text == "crash":
        os.kill(os.getpid(), 11)
    if text == "nothing":
        return None
    return os.getpid()

def meets(response):
    here, other, awaited, number = response.text.split()
    for path in (here, other, awaited):
        if path == here:
            open(path, "w").close()
        while not os.path.exists(path):
            time.sleep(0.01)
    open(here + "-ended", "w").close()
    return float(number)

def drawn(response):
    time.sleep(float(response.text or 0))
    return random.random() + np.random.random()

def child(response):
    other = multiprocessing.Process(target=print)
    other.start()
    other.join()
    return other.exitcode

def leaves(response):
    started = subprocess.Popen(["sleep", "600"])
    with open(response.text, "w") as file:
        file.write(f"{started.pid} {os.getpid()}")
    time.sleep(600)

def sees(response):
    if response.truncated:
        return response.problem.lock
    problem = response.problem
    return response.tokens + len(response.prompt) + int(response.answer) + problem.row["more"] + len(problem.prompt_id)
"""


def response(text: str = "") -> Response:
    return Response(PROBLEM, text)


@pytest.fixture
def named(tmp_path: Path) -> Callable[..., FunctionReward]:
    """A function of a file as a reward."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)

    def make(name: str, timeout_s: float = 60.0) -> FunctionReward:
        rewards = make_rewards([f"{tmp_path / 'functions.py'}:{name}"], ArithmeticTask(0, 1), timeout_s=timeout_s)
        reward = rewards.parts[0][0]
        assert isinstance(reward, FunctionReward)
        return reward

    return make


def line_of(text: str) -> int:
    """The line of the file in which this stands."""
    return next(number for number, line in enumerate(FUNCTIONS.splitlines(), start=1) if text in line)


def pids_of(reward: FunctionReward) -> list[int]:
    assert isinstance(reward.function, FunctionProcesses)
    return reward.function.pids


def until_gone(*pids: int, within_s: float = 300.0) -> None:
    end = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end, f"one of {pids} is still there"
        time.sleep(0.02)


# --- what a function does ---------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_format_that_backtracks_is_ended_and_the_next_response_judged() -> None:
    reward = make_rewards([f"format:{BACKTRACKS}"], ArithmeticTask(0, 1), timeout_s=4.0).parts[0][0]
    assert isinstance(reward, FunctionReward)
    (first,) = pids_of(reward)
    values, failures = reward.score([response(STUCK), response("aa"), response("ab"), response("aaa")])
    np.testing.assert_equal(values, [np.nan, 1.0, 0.0, 1.0])
    assert [(f.response, f.reward, f.reason) for f in failures] == [(0, "format", "TimedOut: took longer than 4 s")]
    until_gone(first)
    reward.close()


def test_a_process_is_kept_from_batch_to_batch(named: Callable[..., FunctionReward]) -> None:
    reward = named("odd")
    before = pids_of(reward)
    values = np.concatenate([reward.score([response("a"), response("b")])[0], reward.score([response()])[0]])
    assert set(before) <= set(pids_of(reward))
    assert set(values.tolist()) <= set(pids_of(reward))
    assert os.getpid() not in values


def test_responses_are_judged_several_at_a_time_and_keep_their_order(
    named: Callable[..., FunctionReward], tmp_path: Path
) -> None:
    """Each of two responses waits until the other is being judged, and the first ends last."""
    reward = named("meets")
    texts = [f"{tmp_path}/a {tmp_path}/b {tmp_path}/b-ended 1", f"{tmp_path}/b {tmp_path}/a {tmp_path}/a 2"]
    values, failures = reward.score([response(text) for text in texts])
    assert not failures
    assert values.tolist() == [1.0, 2.0]
    assert len(pids_of(reward)) == 2


@pytest.mark.full
def test_what_is_drawn_is_the_same_in_one_process_and_in_several(named: Callable[..., FunctionReward]) -> None:
    found = []
    for text in ("", "0.3"):  # the second batch takes long enough for another process
        reward = named("drawn")
        random.seed(7)
        found.append(reward.score([response(text)] * 8)[0].tolist())
        found_in = len(pids_of(reward))
    assert found_in > 1
    assert found[0] == found[1]


@pytest.mark.full
def test_a_response_that_is_killed_leaves_those_beside_it_alone(named: Callable[..., FunctionReward], tmp_path: Path) -> None:
    reward = named("meets", timeout_s=8.0)
    never = f"{tmp_path}/a {tmp_path}/b {tmp_path}/never 1"
    values, failures = reward.score([response(never), response(f"{tmp_path}/b {tmp_path}/a {tmp_path}/a 2")] * 2)
    np.testing.assert_equal(values, [np.nan, 2.0, np.nan, 2.0])
    assert [(f.response, f.reason) for f in failures] == [(i, "TimedOut: took longer than 8 s") for i in (0, 2)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "timeout_s", "reason", "ends"),
    [
        ("stuck", 4.0, "TimedOut: took longer than 4 s", True),
        ("exit", 60.0, f"SystemExit: 0 (functions.py, line {line_of('sys.exit(0)')})", False),
        ("deaf", 4.0, "TimedOut: took longer than 4 s", True),
        ("end", 60.0, "ProcessEnded: its process ended with exit code 3", True),
        ("end well", 60.0, "ProcessEnded: its process ended with exit code 0", True),
        ("crash", 60.0, "ProcessEnded: its process was killed by SIGSEGV", True),
    ],
)
def test_whatever_a_function_does_is_one_responses(
    named: Callable[..., FunctionReward], text: str, timeout_s: float, reason: str, ends: bool
) -> None:
    reward = named("odd", timeout_s=timeout_s)
    values, failures = reward.score([response(), response(text), response(), response()])
    assert [(f.response, f.reason) for f in failures] == [(1, reason)]
    assert np.isnan(values[1])
    assert (values[0] != values[2]) == ends
    assert values[2] == values[3]


def test_a_function_in_a_process_may_abstain(named: Callable[..., FunctionReward]) -> None:
    values, failures = named("odd", timeout_s=60.0).score([response(), response("nothing")])
    assert np.isnan(values).tolist() == [False, True]
    assert not failures


def test_a_function_may_print_and_raise_what_cannot_be_pickled(named: Callable[..., FunctionReward]) -> None:
    reward = named("odd")
    values, failures = reward.score([response("print"), response("lock"), response()])
    assert [f.response for f in failures] == [1]
    assert failures[0].reason.startswith("ValueError: ('held', <unlocked _thread.lock object")
    assert {values[0], values[2]} <= set(pids_of(reward))


@pytest.mark.full
def test_a_function_whose_process_ends_again_and_again_is_soon_not_asked(named: Callable[..., FunctionReward]) -> None:
    reward = named("odd")
    _, failures = reward.score([response("end")] * (MAX_LOST + 2))
    assert [f.reason for f in failures[: MAX_LOST + 1]] == ["ProcessEnded: its process ended with exit code 3"] * MAX_LOST + [
        f"skipped after its process timed out or ended {MAX_LOST} times in this batch"
    ]
    assert not reward.score([response()])[1], "the next batch starts anew"


def test_a_file_that_can_no_longer_be_loaded_is_reported(named: Callable[..., FunctionReward], tmp_path: Path) -> None:
    reward = named("odd")
    (tmp_path / "functions.py").unlink()
    _, failures = reward.score([response("end"), response()])
    assert failures[1].reason.endswith("functions.py: there is no such file")


def test_what_a_function_draws_depends_on_the_streams_alone(named: Callable[..., FunctionReward]) -> None:
    """Not on what the process judged before: a resumed run starts a new one."""
    reward, other = named("drawn"), named("drawn")
    other.score([response()] * 3)
    found = []
    for each in (reward, other):
        random.seed(7)
        found.append(each.score([response()] * 4)[0].tolist())
    assert found[0] == found[1]
    assert len(set(found[0])) == 4


def test_a_function_may_start_processes_of_its_own(named: Callable[..., FunctionReward]) -> None:
    assert named("child").score([response()])[0].tolist() == [0]


@pytest.mark.full
def test_what_a_function_started_ends_with_its_time(named: Callable[..., FunctionReward], tmp_path: Path) -> None:
    reward = named("leaves", timeout_s=8.0)
    assert np.isnan(reward.score([response(str(tmp_path / "pids"))])[0]).all()
    until_gone(*map(int, (tmp_path / "pids").read_text().split()))


@pytest.mark.full
@pytest.mark.parametrize("size", [1, 1 << 22])
def test_a_process_that_hangs_before_it_reads_a_response_is_given_up(named: Callable[..., FunctionReward], size: int) -> None:
    """Also with one that does not fit into its pipe."""
    reward = named("odd", timeout_s=5.0)
    (stopped,) = pids_of(reward)
    os.kill(stopped, signal.SIGSTOP)
    values, failures = reward.score([response("a" * size)])
    assert np.isnan(values).all()
    check_message(failures[0].reason, "longer than 5 s")
    until_gone(stopped)
    assert np.isfinite(reward.score([response("a" * size)])[0]).all(), "the next response has a new process"


def test_a_function_sees_the_attributes_of_any_problem(named: Callable[..., FunctionReward]) -> None:
    """Those of a class, too, that only this program has."""

    @dataclass(frozen=True)
    class Own:
        prompt: str
        answer: int
        row: dict[str, int]

        @property
        def prompt_id(self) -> str:
            return "four"

    given: list[Any] = [Own("12345", 30, {"more": 200}), PROBLEM]
    values, failures = named("sees").score([Response(problem, "", 1000) for problem in given])
    np.testing.assert_equal(values, [1000 + 5 + 30 + 200 + 4, np.nan])
    what = "AttributeError: 'types.SimpleNamespace' object has no attribute 'row'"
    assert failures[0].reason.startswith(f"{what} (functions.py, line ")
    locked = type("Locked", (), {})()
    locked.lock = threading.Lock()
    _, failures = named("sees").score([Response(locked, "", truncated=True)])
    assert failures[0].reason == "TypeError: cannot pickle '_thread.lock' object"


@pytest.mark.parametrize(
    ("text", "load_s", "message"),
    [
        ("import sys; sys.exit(2)", 60.0, ("bad.py", "SystemExit")),
        ("import os; os._exit(2)", 60.0, ("bad.py",)),
        ("import time; time.sleep(600)", 3.0, ("bad.py",)),
    ],
)
def test_files_that_cannot_be_loaded_are_refused(
    tmp_path: Path, text: str, load_s: float, message: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOAD_S", load_s)
    (tmp_path / "bad.py").write_text(text)
    with refused(ValueError, *message):
        make_rewards([f"{tmp_path / 'bad.py'}:f"], ArithmeticTask(0, 1))


# --- how a process ends -----------------------------------------------------------------------------------------------


def test_an_interrupt_ends_the_process_and_the_next_batch_starts_another(
    named: Callable[..., FunctionReward], tmp_path: Path
) -> None:
    reward = named("odd")
    (first,), judges = pids_of(reward), tmp_path / "judges"

    def interrupt() -> None:
        until(judges.exists, "the process judges")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        reward.score([response(f"says {judges}")])
    until_gone(first)
    assert reward.score([response()])[0].tolist() == pids_of(reward)


def test_a_closed_trainer_has_no_process(named: Callable[..., FunctionReward], tmp_path: Path, untrained: Path) -> None:
    given = config(steps=1, rewards=[f"{tmp_path}/functions.py:length", f"{tmp_path}/functions.py:odd"])
    with Trainer(given, model=untrained, progress=False) as trainer:
        step = trainer.step()
        lengths, odd = (pids_of(reward) for reward, _ in trainer.rewards.parts if isinstance(reward, FunctionReward))
    assert min(odd) <= step.metrics["reward_odd"] <= max(odd)
    assert step.metrics["reward_length"] == pytest.approx(step.rollouts["response"].str.len().mean())
    until_gone(*lengths, *odd)


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from types import SimpleNamespace
from rlhfless.training.tasks.arithmetic import ArithmeticTask
from rlhfless.training.rewards import Response
from rlhfless.training.rewards.registry import make_rewards

rewards = make_rewards(["format:^(a+)+$"], ArithmeticTask(0, 1), timeout_s=600.0)  # no main guard
print(rewards.parts[0][0].function.pids[0], flush=True)
if {way!r} == "idle":
    sys.stdin.read()
if {way!r} != "end":
    rewards.score([Response(None, "a" * 60 + "b")])
"""


@pytest.mark.parametrize(
    ("way", "how"),
    [
        ("end", None),
        ("idle", signal.SIGKILL),
        ("judging", signal.SIGKILL),
        ("judging", signal.SIGTERM),
        ("judging", signal.SIGINT),
    ],
)
def test_no_process_outlives_the_program(tmp_path: Path, way: str, how: signal.Signals | None) -> None:
    """Which ends, is killed, or gets Ctrl-C as a terminal sends it; a process that judges does not hear of that."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).parents[3]), way=way))
    program = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        if how is not None:
            time.sleep(0.5)
            assert Path(f"/proc/{pid}").exists()
            os.killpg(program.pid, how)
        assert program.wait(300) == (0 if how is None else -how)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
    until_gone(pid)

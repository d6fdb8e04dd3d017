"""``rlhfless simulate`` is stopped, by Ctrl-C or at a time limit: it prints what is finished, and says that it is a part."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless

from rlhfless.simulate import Comparison
from rlhfless.simulate import run as simulating
from rlhfless.system.time_limits import interrupted_by_time_limits
from rlhfless.trace import Trace

ON = ["--gpus", "8", "--gpus-per-actor", "2", "--profile", "l40s-qwen2.5-3b-tp2", "--policies", "static,random,fold"]
STEPS = 4


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log in which every step has the same prompts, so that all steps but the first have a history."""
    rng = np.random.default_rng(0)
    rows = [
        {"step": step, "prompt_id": f"q{p}", "sample": s, "prompt_tokens": 30, "response_tokens": int(rng.integers(5, 300))}
        for step in range(STEPS)
        for p in range(4)
        for s in range(2)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    return tmp_path / "log.csv"


def press_in_execution(monkeypatch: pytest.MonkeyPatch, number: int, which: signal.Signals = signal.SIGINT) -> None:
    """Send the signal when the simulation executes a plan for the ``number``-th time; every step has three."""
    executed, usual = [], simulating.run_step

    def pressed(*given: object, **options: object) -> object:
        executed.append(1)
        if len(executed) == number:
            signal.raise_signal(which)
        return usual(*given, **options)

    monkeypatch.setattr(simulating, "run_step", pressed)


def policies_in(text: str) -> list[str]:
    """The first words of the rows of all tables that are printed."""
    return re.findall(r"^ *(static|random|fold) +[\d.,]+ ", text, flags=re.MULTILINE)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_the_tables_of_finished_steps_are_printed_as_a_part(
    which: signal.Signals, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    usual = signal.getsignal(which)
    press_in_execution(monkeypatch, 8, which)  # in the third step, under random
    done = run_rlhfless("simulate", log, *ON, "-o", out)
    assert signal.getsignal(which) is usual
    assert done.exit_code == 130
    assert done.stdout.splitlines()[0] == "PARTIAL: 2 of 4 steps finished under static, random, fold."
    assert "steps with history, sums over 1 step:" in done.stdout
    assert policies_in(done.stdout) == ["static", "random", "fold"] * 2
    assert not re.search(r"\bleast\b|\babove\b", done.stdout), "what would take seconds more is left out"
    assert not out.exists()
    line = done.stderr.splitlines()[-1]
    assert line.startswith("rlhfless: interrupted; 2 of 4 steps finished under static, random, fold; ")
    assert f"{out} is not written" in line
    monkeypatch.undo()
    again = run_rlhfless("simulate", log, *ON, "-o", out, *shlex.split(re.search(r"add (.*) for as many steps", line).group(1)))
    assert again.exit_code == 0, again.stderr
    assert "PARTIAL" not in again.stdout


def test_policies_that_finished_the_first_step_are_printed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    press_in_execution(monkeypatch, 3)
    done = run_rlhfless("simulate", log, *ON)
    assert done.exit_code == 130
    assert done.stdout.startswith("PARTIAL: 1 of 4 steps finished under static, random; fold had not finished it.\n")
    assert policies_in(done.stdout) == ["static", "random"]
    assert done.stderr.splitlines()[-1].endswith("so add --steps 1 for one step, or name fewer policies")


def test_where_nothing_is_finished_no_table_is_printed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    press_in_execution(monkeypatch, 1)
    done = run_rlhfless("simulate", log, *ON)
    assert (done.exit_code, done.stdout) == (130, "")
    assert "no policy has finished a step" in done.stderr
    assert "so add --steps 1 for the shortest simulation" in done.stderr


def test_json_is_whole_or_none(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    press_in_execution(monkeypatch, 8)
    done = run_rlhfless("simulate", log, *ON, "--format", "json")
    assert (done.exit_code, done.stdout) == (130, "")
    assert "2 of 4 steps finished" in done.stderr
    monkeypatch.undo()
    assert json.loads(run_rlhfless("simulate", log, *ON, "--format", "json").stdout)["schema"] == "rlhfless-simulation"


def test_ctrl_c_while_bounds_are_computed_prints_all_steps(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*given: object) -> pd.DataFrame:
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "least_objectives", pressed)
    done = run_rlhfless("simulate", log, *ON, "-o", tmp_path / "out")
    assert done.exit_code == 130
    assert "PARTIAL" not in done.stdout
    assert f"steps with history, sums over {STEPS - 1} steps:" in done.stdout
    assert "only the columns least and above are missing" in done.stderr
    assert {one.name for one in (tmp_path / "out").iterdir()} == {"static", "random", "fold"}


def test_a_stop_while_traces_are_written_prints_all_steps_and_leaves_no_trace(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the same line can be typed again."""
    saved, usual = [], Trace.save

    def pressed(trace: Trace, folder: Path) -> None:
        saved.append(usual(trace, folder))
        if len(saved) == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Trace, "save", pressed)
    out = tmp_path / "out"
    done = run_rlhfless("simulate", log, *ON, "-o", out)
    assert done.exit_code == 130
    assert f"steps with history, sums over {STEPS - 1} steps:" in done.stdout
    assert f"all steps are finished, but {out} is not written" in done.stderr
    monkeypatch.undo()
    again = run_rlhfless("simulate", log, *ON, "-o", out)
    assert again.exit_code == 0, again.stderr
    assert {one.name for one in out.iterdir()} == {"static", "random", "fold"}


def test_a_thread_leaves_signals_as_they_are() -> None:
    seen = []

    def run() -> None:
        with interrupted_by_time_limits():
            seen.append(signal.getsignal(signal.SIGTERM))

    usual = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [usual]


WAITS = """
import signal, sys, threading

from rlhfless.cli import main
from rlhfless.simulate import run as simulating

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell programs start with it ignored
executed, usual = [], simulating.run_step

def waits_in_the_third_step(*given, **options):
    executed.append(1)
    if len(executed) == 8:
        print("waiting", file=sys.stderr, flush=True)
        threading.Event().wait()
    return usual(*given, **options)

simulating.run_step = waits_in_the_third_step
main()
"""


@pytest.mark.full
def test_ctrl_c_of_a_terminal_prints_what_is_finished(log: Path) -> None:
    """The signal itself, to a process that waits in the third step until it comes; every step has three executions."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, "simulate", str(log), *ON], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        next(line for line in process.stderr if line == "waiting\n")
        process.send_signal(signal.SIGINT)
        shown, told = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert shown.startswith(f"PARTIAL: 2 of {STEPS} steps finished under static, random, fold.\n")
    assert "steps with history, sums over 1 step:" in shown
    assert policies_in(shown) == ["static", "random", "fold"] * 2
    assert "add --steps 2 for as many steps" in told.splitlines()[-1]

"""Copies of logs without texts: what limits the run is the same, and no text of the log is in any file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused

from rlhfless.diagnosis import diagnose
from rlhfless.trace import TraceError, open_log, read_log
from rlhfless.trace.importers.redact import write_redacted

GOLDEN = Path(__file__).parent / "golden"
SECRET = "patient Miller"


@pytest.mark.parametrize(
    "name", ["verl-console/console.log", "slime-console/console.log", "nemo-rl-console/async.log", "engine-vllm/engine.log"]
)
def test_a_copy_has_the_same_diagnosis(name: str, tmp_path: Path) -> None:
    log = read_log(GOLDEN / name)
    copy = read_log(write_redacted(log, tmp_path / "copy"))
    was, now = diagnose(log), diagnose(copy)
    assert now.to_frame().equals(was.to_frame())
    assert [one.sentence for one in now.findings] == [one.sentence for one in was.findings]


def test_runs_are_numbered_and_stay_apart(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    rows = pd.DataFrame({"run": [SECRET, SECRET, "b"], "step": [1, 2, 1], "seconds per step": [10.0, 12.0, 20.0]})
    rows.to_csv(table, index=False)
    copy = read_log(write_redacted(read_log(table), tmp_path / "copy"))
    assert [one.run for one in diagnose(copy).runs] == ["run-0", "run-1"]


def test_no_text_of_responses_is_left(tmp_path: Path) -> None:
    table = tmp_path / "log.csv"
    pd.DataFrame(
        {"step": 0, "prompt_id": [f"{SECRET} {k // 2}" for k in range(8)], "sample": [k % 2 for k in range(8)],
         "response_tokens": range(10, 18), "prompt": SECRET, "note": SECRET, "actor": SECRET, "reward": 1.0}
    ).to_csv(table, index=False)  # fmt: skip
    folder = tmp_path / "copy"
    done = run_rlhfless("report", str(table), "--redact", str(folder))
    assert done.exit_code == 0, done.output
    for file in folder.rglob("*"):
        assert not file.is_file() or b"Miller" not in file.read_bytes(), file
    copy = open_log(folder).trace.rollouts
    assert copy["response_tokens"].tolist() == list(range(10, 18))
    assert copy.groupby("prompt_id").size().tolist() == [2] * 4
    with refused(TraceError, "copy", "new folder"):
        write_redacted(read_log(table), folder)

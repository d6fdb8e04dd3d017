"""A folder that no framework wrote is read where one log is in it, and its logs are named where there are several."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import refused

from rlhfless.trace import TraceError, import_log
from rlhfless.trace.importers.folders import MOST_LOOKED_AT

LOGS = {
    "console.log": ("console", "step:1 - timing_s/gen:4.0 - timing_s/step:9.0\n"),
    "steps.csv": ("steps", "step,step_s,generate_s\n1,9.0,4.0\n"),
    "responses.csv": ("table", "step,prompt_id,response_tokens\n0,a,5\n0,b,7\n"),
    "run.jsonl": ("verl-scalars", '{"step": 1, "data": {"timing_s/gen": 4.0, "timing_s/step": 9.0}}\n'),
    "engine.txt": (
        "engine",
        "INFO 05-04 10:00:00 [loggers.py:116] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: "
        "50.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n",
    ),
}


def folder_of(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).write_text(LOGS[name][1], encoding="utf-8")
    return path


@pytest.mark.parametrize("name", LOGS)
def test_the_only_log_in_a_folder_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("python train.py --lr 3\n")
    (tmp_path / ".hidden.csv").write_text("a,b\n")
    (tmp_path / "plots").mkdir()
    (folder_of(tmp_path, name) / "curve.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    for framework in ("auto", LOGS[name][0]):
        log = import_log(tmp_path, framework=framework)
        assert (log.format.name, log.source.name) == (LOGS[name][0], name)


def test_several_logs_are_named_with_what_to_type(tmp_path: Path) -> None:
    folder_of(tmp_path, "console.log", "steps.csv")
    with refused(TraceError, "2 logs", "console.log, steps.csv", str(tmp_path / "console.log")):
        import_log(tmp_path)
    assert import_log(tmp_path, framework="console").source.name == "console.log"
    assert import_log(tmp_path, framework="steps").source.name == "steps.csv"


def test_two_logs_of_the_stated_format_are_named(tmp_path: Path) -> None:
    folder_of(tmp_path, "run.jsonl")
    (tmp_path / "second.jsonl").write_text(LOGS["run.jsonl"][1])
    with refused(TraceError, "2 logs", "run.jsonl, second.jsonl", "step, data"):
        import_log(tmp_path, framework="verl-scalars")


def test_a_folder_without_a_log_and_one_with_too_many_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Dear diary\n")
    with refused(TraceError, tmp_path.name, "folder without any log", "verl"):
        import_log(tmp_path)
    for number in range(MOST_LOOKED_AT):
        (tmp_path / f"{number}.txt").write_text("x")
    with refused(TraceError, tmp_path.name, f"{MOST_LOOKED_AT + 1} files"):
        import_log(tmp_path)


@pytest.mark.parametrize("name", ["a.log", "a.csv", "a.jsonl", "a.json", "a.parquet", "a"])
def test_what_is_empty_is_said_to_be_empty(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    for framework in ("auto", "console", "table", "verl"):
        with refused(TraceError, name, "is empty"):
            import_log(tmp_path / name, framework=framework)


def test_an_empty_folder_is_said_to_be_one(tmp_path: Path) -> None:
    with refused(TraceError, tmp_path.name, "empty folder"):
        import_log(tmp_path)

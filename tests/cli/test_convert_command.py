"""``rlhfless convert``: what it prints, what it refuses, and that a refused log leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from command_line import Result, run_rlhfless
from error_messages import check_message, refused_command

from rlhfless.trace import read_scalars, read_trace

GOLDEN = Path(__file__).parents[1] / "trace" / "importers" / "golden"


def run_convert(*words: object) -> Result:
    """``rlhfless convert`` with these words."""
    return run_rlhfless("convert", *map(str, words))


def test_a_log_is_imported_without_naming_its_format(tmp_path: Path) -> None:
    result = run_convert(GOLDEN / "nemo-rl", "-o", tmp_path / "t")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0].endswith("is read as NeMo-RL's training data (train_data_step{N}.jsonl)")
    assert "8 responses to 2 prompts in 2 steps and 2 epochs, truncation unknown" in result.stdout
    assert result.stderr == ""
    assert read_trace(tmp_path / "t").meta["framework"] == "nemo-rl"


def test_a_preview_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_convert(GOLDEN / "table" / "log.csv", "--preview")
    assert result.exit_code == 0, result.stderr
    assert "the first rows, as imported:" in result.stdout
    assert "wrote" not in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_scalars_alone_make_no_trace(tmp_path: Path) -> None:
    result = run_convert(GOLDEN / "openrlhf" / "console.log", "-o", tmp_path / "t")
    assert result.exit_code == 0, result.stderr
    assert "the log has no responses" in result.stdout
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["scalars.parquet"]
    assert len(read_scalars(tmp_path / "t")) == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([GOLDEN / "nemo-rl"], ["-o", "--preview"]),
        ([GOLDEN / "verl-v1", "-o", "OUT"], ["verl-v1", "--tokenizer"]),
        ([GOLDEN / "nemo-rl", "-o", "OUT", "--from", "hydra"], ["--from hydra", "nemo-rl"]),
        ([GOLDEN / "nemo-rl", "-o", "OUT", "--map", "step=x"], ["--map"]),
        ([Path(__file__).parent, "-o", "OUT"], [str(Path(__file__).parent)]),
        ([GOLDEN / "verl-v1", "-o", "OUT", "--from", "nemo-rl"], [str(GOLDEN / "verl-v1"), "NeMo-RL"]),
    ],
    ids=["no folder", "no tokenizer", "unknown format", "map of no table", "no log", "another format"],
)
def test_what_cannot_be_imported_is_one_line(words: list[object], named: list[str], tmp_path: Path) -> None:
    refused_command(run_convert(*(tmp_path / "out" if word == "OUT" else word for word in words)), *named)
    assert not (tmp_path / "out").exists()


def test_running_code_of_a_log_is_warned_of(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    result = run_convert(GOLDEN / "slime", "-o", tmp_path / "t", "--unsafe-pickle")
    assert result.exit_code == 0, result.output
    check_message(result.stderr.strip(), "--unsafe-pickle")


def test_extra_columns_that_no_file_can_hold_leave_no_folder(tmp_path: Path) -> None:
    rows = [{"step": 1, "prompt_id": "p", "sample": 0, "response_tokens": 3, "tag": "PLACE"}]
    pd.DataFrame(rows).to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    path = tmp_path / "log.jsonl"
    path.write_text(path.read_text().replace("PLACE", "\\ud800"))
    result = run_convert(path, "-o", tmp_path / "t")
    assert result.exit_code == 0, result.output
    assert read_trace(tmp_path / "t").rollouts["tag"].tolist() == ["?"]

"""Tables with one row per turn of a response."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from error_messages import refused

from rlhfless.trace import ImportOptions, TraceError, open_log

ROWS = pd.DataFrame(
    [
        (0, "a", 0, 0, 2.5, 30, "stop", None),
        (0, "b", 0, 1, 1.0, 5, "stop", None),
        (0, "a", 1, 0, None, 25, "stop", 0.0),
        (0, "a", 0, 1, None, 20, "length", 1.0),
        (0, "b", 0, 0, 1.5, 7, "stop", 0.25),
        (0, "b", 0, 2, 9.0, 9, "stop", 0.5),
    ],
    columns=["step", "prompt_id", "sample", "turn", "tool_wait_s", "response_tokens", "finish_reason", "reward"],
)


def opened(rows: pd.DataFrame, folder: Path, **mapping: str) -> pd.DataFrame:
    rows.to_csv(folder / "log.csv", index=False)
    return open_log(folder / "log.csv", ImportOptions(mapping=mapping)).trace.rollouts


def test_turns_are_joined_in_their_order(tmp_path: Path) -> None:
    rollouts = opened(ROWS, tmp_path)
    assert rollouts[["prompt_id", "sample", "response_tokens", "finish_reason", "reward"]].values.tolist() == [
        ["a", 0, 50, "length", 1.0], ["a", 1, 25, "stop", 0.0], ["b", 0, 21, "stop", 0.5]
    ]  # fmt: skip
    turns = [text and json.loads(text) for text in rollouts["turns"]]
    assert turns == [[[30, 2.5], [20, 0.0]], None, [[7, 1.5], [5, 1.0], [9, 9.0]]]
    assert "turn" not in rollouts
    assert "tool_wait_s" not in rollouts


def test_columns_of_turns_can_be_mapped(tmp_path: Path) -> None:
    other = ROWS.rename(columns={"turn": "call", "tool_wait_s": "env_s"})
    assert opened(other, tmp_path, turn="call", tool_wait_s="env_s").equals(opened(ROWS, tmp_path))


def test_a_response_that_was_logged_again_after_a_restart_counts_once(tmp_path: Path) -> None:
    later = ROWS.assign(step=1)
    rollouts = opened(pd.concat([ROWS, later, ROWS.assign(response_tokens=8), later, later.assign(step=2)]), tmp_path)
    assert len(rollouts) == 9
    assert rollouts[rollouts["step"] == 0]["response_tokens"].tolist() == [16, 8, 24]


def test_a_turn_alone_is_a_column_like_any_other(tmp_path: Path) -> None:
    rollouts = opened(ROWS.drop(columns="tool_wait_s").drop_duplicates(["prompt_id", "sample"]), tmp_path)
    assert "turns" not in rollouts
    assert rollouts["turn"].notna().all()


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (ROWS.drop(columns="sample"), "sample"),
        (ROWS.assign(turn=-1), "turn"),
        (ROWS.assign(tool_wait_s="soon"), "tool_wait_s"),
        (ROWS.assign(response_tokens=1.5), "response_tokens"),
    ],
    ids=["no samples", "negative turn", "text as seconds", "part of a token"],
)
def test_wrong_rows_of_turns_are_refused(tmp_path: Path, rows: pd.DataFrame, word: str) -> None:
    with refused(TraceError, word):
        opened(rows, tmp_path)

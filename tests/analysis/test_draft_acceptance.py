"""Acceptance of drafts on a log: counts that must add up, drafts that are always right or wrong, and the shipped run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.analysis.draft_acceptance import measure_drafts
from rlhfless.analysis.draft_groups import SOURCES, DraftSource, draft_groups
from rlhfless.analysis.draft_study import study_drafts
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.errors import InputError
from rlhfless.trace import read_trace

SHIPPED = Path(__file__).parents[2] / "data"


def log(*steps: list[str], finish: str | None = None) -> pd.DataFrame:
    """One prompt whose responses in each step are given."""
    rows: list[dict[str, Any]] = [
        {
            "step": step,
            "prompt_id": "p",
            "sample": sample,
            "response": text,
            "response_tokens": len(text),
            "finish_reason": finish,
        }
        for step, texts in enumerate(steps)
        for sample, text in enumerate(texts)
    ]
    return pd.DataFrame(rows)


def test_a_draft_that_is_always_right_saves_all_passes_that_it_can() -> None:
    text = "".join(map(chr, range(65, 65 + 40)))  # no symbol twice, so the last visit says everything
    for length in (1, 2, 4, 8):
        drafted = measure_drafts(log([text], [text]), str.encode, DraftSource("last", False), length, steps=[1], min_match=0)
        assert drafted.responses["passes"].tolist() == [math.ceil(len(text) / (length + 1))]


def test_a_draft_that_is_always_wrong_saves_nothing() -> None:
    drafted = measure_drafts(log(["abcdefgh"], ["ABCDEFGH"]), str.encode, DraftSource("last", False), 4, steps=[1])
    assert drafted.responses["passes"].tolist() == [8]
    assert drafted.tokens_per_pass == 1
    assert drafted.acceptance.survival.tolist() == [0, 0, 0, 0]


texts = st.lists(st.text("ab", max_size=12), min_size=1, max_size=3)


@given(st.lists(texts, min_size=1, max_size=3), st.sampled_from(SOURCES), st.integers(1, 5), st.sampled_from(["stop", ""]))
@settings(max_examples=150, deadline=None)
def test_passes_and_accepted_tokens_add_up(steps: list[list[str]], source: DraftSource, most: int, finish: str) -> None:
    drafted = measure_drafts(log(*steps, finish=finish), str.encode, source, most)
    rows = drafted.responses
    assert (rows["passes"] + rows["accepted_tokens"] == rows["tokens"]).all()
    assert (rows["accepted_tokens"] <= rows["drafted_tokens"]).all()
    assert (rows["passes"] >= np.ceil(rows["tokens"] / (most + 1))).all()
    ends = 1 if finish == "stop" else 0
    assert rows["tokens"].tolist() == [len(text) + ends for texts in steps for text in texts]
    assert drafted.accepted.sum() == rows["accepted_tokens"].sum()
    assert (np.diff(drafted.acceptance.survival) <= 0).all()


def test_siblings_help_a_response_that_is_behind_them() -> None:
    """Both begin with what the last visit has; the first goes on as drafted, and the second then repeats what the first did."""
    fast = "abcdefghijklmnop" + "XYZ" * 5
    slow = "a1b2c3d4e5f6g7h8" + "abcdefghijklmnop" + "XYZ" * 5
    rows = log(["abcdefghijklmnop"], [fast, slow])
    alone, together = (measure_drafts(rows, str.encode, DraftSource("last", s), 8, steps=[1]) for s in (False, True))
    assert together.responses["passes"].iloc[1] < alone.responses["passes"].iloc[1]


def test_the_shipped_run_repeats_itself() -> None:
    """Epoch 8 with drafts of four tokens; `rlhfless report data/traces/arithmetic-grpo --only drafts` shows the last step."""
    rollouts = read_trace(SHIPPED / "traces" / "arithmetic-grpo").rollouts
    epochs = rollouts[rollouts["epoch"].isin([7, 8])]
    steps = epochs.loc[epochs["epoch"] == 8, "step"].unique()
    drafted = measure_drafts(epochs, CharTokenizer().encode, DraftSource("last", True), 4, steps=steps)
    assert drafted.responses["tokens"].sum() == epochs.loc[epochs["epoch"] == 8, "response_tokens"].sum()
    assert drafted.tokens_per_pass == pytest.approx(3.4, abs=0.1)
    assert drafted.longest_speedup < drafted.tokens_per_pass, "responses that leave their draft end last"


def test_a_study_shows_what_the_log_can_show() -> None:
    once = study_drafts(log(["abcabc", "abcabd"]), str.encode, "bytes", max_draft_tokens=4)
    assert set(once.by_source["source"]) == {"own tokens", "siblings"}, "no prompt was visited before"
    assert once.by_source["draft_tokens"].unique().tolist() == [1, 2, 4]
    again = study_drafts(log(["abcabc"], ["abcabd"]), str.encode, max_draft_tokens=3)
    assert set(again.by_source["source"]) == {"own tokens", "last visit"}, "no prompt has siblings"
    assert again.by_step["step"].tolist() == [0, 1]
    assert again.by_source["tokens_per_pass"].max() == again.best.tokens_per_pass


@pytest.mark.parametrize("most", [0, 33, 2.5, True, "8"])
def test_a_wrong_draft_length_is_one_sentence(most: Any) -> None:
    with refused(InputError, "max_draft_tokens", repr(most)):
        measure_drafts(log(["a"]), str.encode, max_draft_tokens=most)


def test_a_log_without_texts_is_one_sentence() -> None:
    with refused(InputError, "response", "--map"):
        measure_drafts(log(["a"]).drop(columns="response"), str.encode)
    with refused(InputError, "history", "'first'"):
        DraftSource("first")


@given(st.lists(texts, min_size=1, max_size=3), st.sampled_from(["last", "all", "none"]), st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_runs_at_every_position_give_the_measured_passes(steps: list[list[str]], history: str, most: int) -> None:
    """Without siblings a draft depends on the response's own tokens only, however they were decoded."""
    source, rows = DraftSource(history, siblings=False), log(*steps, finish="stop")
    measured = {
        (r.step, r.sample): (r.passes, r.drafted_tokens)
        for r in measure_drafts(rows, str.encode, source, most).responses.itertuples()
    }
    for group in draft_groups(rows, str.encode, source):
        for sample, text, runs in zip(group.name.samples, group.texts, group.runs(most), strict=True):
            assert len(runs.available) == len(runs.accepted) == len(text)
            position = passes = drafted = 0
            while position < len(text):
                passes, drafted = passes + 1, drafted + int(runs.available[position])
                position += int(runs.accepted[position]) + 1
            assert (passes, drafted) == measured[group.name.step, sample]

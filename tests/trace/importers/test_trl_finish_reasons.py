"""Lengths and ends of TRL's responses: logs that TRL itself wrote, and where its scalars do not tell them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from importer_samples import GOLDEN, TOKENIZER

from rlhfless.trace import ImportedLog, ImportOptions, import_log
from rlhfless.trace.importers.trl_finish_reasons import ends_of_limit, ends_of_scalars

pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
PLAIN = ImportOptions(tokenizer=TOKENIZER)


def imported(path: Path, options: ImportOptions = PLAIN) -> tuple[ImportedLog, pd.DataFrame]:
    log = import_log(path, options)
    assert log.rollouts is not None
    return log, log.rollouts


@pytest.mark.parametrize("name", ["trl", "trl-special"])
@pytest.mark.parametrize("limit", [None, 24])
def test_trls_own_scalars_tell_which_responses_were_cut_and_how_long_all_are(name: str, limit: int | None) -> None:
    """Of ``trl-special`` two cut responses have 23 text tokens of 24: by their texts alone they would have stopped."""
    log, rollouts = imported(GOLDEN / name, ImportOptions(tokenizer=TOKENIZER, max_response_tokens=limit))
    generated = json.loads((GOLDEN / name / "lengths.json").read_text("utf-8"))
    assert (rollouts["finish_reason"] == "length").tolist() == [tokens == 24 for tokens in generated]
    assert np.abs(rollouts["response_tokens"] - generated).max() <= (0 if name == "trl" else 1)
    scalars = log.scalars.set_index("step").dropna(subset="truncation_rate")
    steps = rollouts.groupby("step")
    apart = (steps["response_tokens"].mean() - scalars["response_tokens_mean"]).abs()
    assert len(apart) == len(scalars)
    assert apart.max() <= 1
    assert (steps["finish_reason"].agg(lambda own: (own == "length").mean()) == scalars["truncation_rate"]).all()
    assert not [note for note in log.summary.notes if note.startswith("contradiction")]


def test_without_scalars_a_text_near_the_limit_is_of_an_unknown_end(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "trl-special" / "completions", tmp_path / "completions")
    log, rollouts = imported(tmp_path, ImportOptions(tokenizer=TOKENIZER, max_response_tokens=24))
    cut = np.array(json.loads((GOLDEN / "trl-special" / "lengths.json").read_text("utf-8"))) == 24
    known = rollouts["finish_reason"].notna().to_numpy()
    assert ((rollouts["finish_reason"] == "length").to_numpy() == cut)[known].all(), "what is said is true"
    assert 0 < (~known).sum() < len(known)
    assert "37.5% to 50.0% truncated (unknown for 3 responses)" in str(log.summary)
    assert (~known).sum() == 3
    alone, rollouts = imported(tmp_path)
    assert rollouts["finish_reason"].isna().all()
    assert "truncation unknown" in str(alone.summary)


def test_means_over_several_generations_are_compared_with_no_response() -> None:
    log, rollouts = imported(GOLDEN / "trl-averaged")
    assert rollouts["finish_reason"].isna().all()
    assert "truncation_rate" not in log.scalars.columns
    assert log.scalars["completions/clipped_ratio"].notna().any()
    assert (log.scalars["step_s"].dropna() > 0).all()
    said = str(log.summary)
    assert "in 2 steps TRL averages over more responses than it logged" in said
    assert "50.0% of all responses were cut" in said
    assert "contradiction" not in said


def test_a_mean_that_no_lengths_of_the_texts_meet_is_a_contradiction(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "trl", tmp_path / "run")
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text("utf-8"))
    state["log_history"][0]["completions/mean_length"] = 9.0
    (tmp_path / "run" / "trainer_state.json").write_text(json.dumps(state))
    log, rollouts = imported(tmp_path / "run")
    assert rollouts.loc[rollouts["step"] == 1, "finish_reason"].isna().all()
    assert rollouts.loc[rollouts["step"] == 3, "finish_reason"].notna().all()
    (said,) = (note for note in log.summary.notes if note.startswith("contradiction: mean response length"))
    assert "step 1: 9 tokens and " in said


SCALARS = {"response_tokens_mean": 58.0, "response_tokens_max": 100.0, "truncation_rate": 0.4}


def test_texts_about_the_border_are_of_unknown_ends() -> None:
    """Two of five were cut; their texts are up to six tokens too short, and the next one is only three shorter."""
    ends = ends_of_scalars(np.array([100, 94, 91, 5, 10]), {**SCALARS, "response_tokens_mean": 61.8})
    assert ends is not None
    assert ends.reasons == ["length", None, None, "stop", "stop"]
    clear = ends_of_scalars(np.array([100, 94, 71, 5, 10]), {**SCALARS, "response_tokens_mean": 59.0})
    assert clear is not None
    assert clear.reasons == ["length", "length", "stop", "stop", "stop"]
    assert clear.tokens.tolist() == [100, 100, 77, 6, 12], "end tokens alone do not meet the mean: stretched by 7 %"
    assert clear.tokens.mean() == 59.0


@pytest.mark.parametrize(
    "change",
    [
        {"truncation_rate": 0.5},  # of five: a mean over others
        {"truncation_rate": 1e300},
        {"truncation_rate": -0.2},
        {"response_tokens_mean": 30.0},
        {"response_tokens_mean": 90.0},
        {"response_tokens_mean": 1e308, "response_tokens_max": 1e308},
        {"response_tokens_max": -5.0, "response_tokens_mean": -5.0},
    ],
)
def test_scalars_of_other_responses_tell_nothing(change: dict[str, float]) -> None:
    assert ends_of_scalars(np.array([100, 94, 71, 5, 10]), {**SCALARS, **change}) is None
    assert ends_of_scalars(np.array([100, 94, 71, 5, 10]), {"truncation_rate": 0.4}) is None


@pytest.mark.parametrize(("rate", "mean", "reason"), [(0.0, 6.0, "stop"), (1.0, 9.0, "length")])
def test_all_or_none_cut(rate: float, mean: float, reason: str) -> None:
    ends = ends_of_scalars(
        np.array([5, 5]), {"truncation_rate": rate, "response_tokens_mean": mean, "response_tokens_max": 9.0}
    )
    assert ends is not None
    assert (ends.tokens.tolist(), ends.reasons) == ([mean, mean], [reason, reason])


def test_the_limit_alone_tells_what_is_far_from_it() -> None:
    ends = ends_of_limit(np.array([120, 100, 99, 90, 88, 0]), 100)
    assert ends.reasons == ["length", "length", None, None, "stop", "stop"]
    assert ends.tokens.tolist() == [100, 100, 100, 91, 89, 1]

"""Values that are not possible: each is named with its step, none is used, and nobody says that the log has none."""

from __future__ import annotations

import pandas as pd
import pytest

from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected

STEP = {"step": [3, 4], "step_s": [100.0, 110.0], "generate_s": [70.0, 80.0], "learn_s": [20.0, 20.0]}
NOWHERE = "neither finish reasons nor a clipped share"


def found_in(**columns: list[float]) -> Collected:
    """Return what is found in two steps of verl."""
    return collect(LoggedRun("log", "verl", pd.DataFrame({**STEP, **columns})))


@pytest.mark.parametrize("wrong", [1.02, 1.3, -0.1])
def test_a_share_of_cut_responses_that_is_no_share(wrong: float) -> None:
    found = found_in(truncation_rate=[wrong, 0.25])
    assert found.numbers["cut_share"].value == 0.25
    (note,) = [text for text in found.notes if "truncation_rate" in text]
    assert f"{wrong:.3f}" in note
    assert "step 3" in note
    both = found_in(truncation_rate=[wrong, wrong])
    assert "cut_share" not in both.numbers
    assert not any(NOWHERE in text for text in both.cannot_say), "it is logged"
    assert any(NOWHERE in text for text in found_in().cannot_say)


def test_a_share_of_groups_that_is_no_share() -> None:
    found = found_in(no_signal_rate=[0.5, 1.5])
    assert found.numbers["no_signal_share"].value == 0.5
    assert any("1.500" in text and "step 4" in text for text in found.notes)


def test_a_mean_above_the_longest_response_is_no_length() -> None:
    lengths = {"response_tokens_mean": [2000.0, 900.0], "response_tokens_max": [1000.0, 1000.0]}
    found = found_in(**lengths)
    assert found.numbers["response_tokens_mean"].value == 900
    assert found.numbers["mean_over_longest"].value == pytest.approx(0.9)
    assert found.numbers["ms_per_token"].value == pytest.approx(80), "of the other step"
    assert any("2,000" in text and "1,000" in text for text in found.notes)
    both = found_in(**{**lengths, "response_tokens_mean": [2000.0, 1001.5]})
    assert "response_tokens_mean" not in both.numbers
    assert not any("no longest response" in one.sentence for one in both.findings)
    rounded = found_in(**{**lengths, "response_tokens_mean": [1000.4, 900.0]})
    assert not any("1,000" in text for text in rounded.notes)

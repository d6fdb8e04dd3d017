"""Drafts of a log's own texts: nothing of the future, the order of the step's rows, and what to expect of a step."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from test_draft_acceptance import log

from rlhfless.analysis.draft_acceptance import measure_drafts
from rlhfless.analysis.draft_groups import DraftSource
from rlhfless.analysis.log_drafts import LogDrafts
from rlhfless.errors import InputError
from rlhfless.simulate import SimulatedDrafts

STEPS = (["abcdefgh", "abcd"], ["abcdefgh", "xyzw"], ["abcdxyzw", "xyzwabcd"])


@pytest.mark.parametrize("history", ["last", "all"])
def test_runs_are_those_of_the_step_in_the_order_of_its_rows(history: str) -> None:
    rows, source = log(*STEPS), DraftSource(history, siblings=False)
    drafts = LogDrafts(rows, str.encode, source, 4)
    assert isinstance(drafts, SimulatedDrafts)
    for step in range(3):
        own = rows[rows["step"] == step].iloc[::-1]
        runs, measured = drafts.runs(step, own), measure_drafts(rows, str.encode, source, 4, steps=[step]).responses
        for i, (sample, tokens) in enumerate(zip(own["sample"], own["response_tokens"], strict=True)):
            accepted = runs.of(i, int(tokens)).accepted
            position = passes = 0
            while position < tokens:
                position, passes = position + int(accepted[position]) + 1, passes + 1
            assert passes == measured.set_index("sample")["passes"][sample]


def test_what_comes_later_changes_nothing() -> None:
    rows = log(*STEPS)
    early = LogDrafts(rows[rows["step"] <= 1], str.encode).runs(1, rows[rows["step"] == 1])
    late = LogDrafts(rows, str.encode).runs(1, rows[rows["step"] == 1])
    for i in (0, 1):
        assert [run.tolist() for run in early.of(i, 8)] == [run.tolist() for run in late.of(i, 8)]


def test_a_step_is_expected_to_accept_what_the_one_before_did() -> None:
    rows = log(*STEPS)
    drafts = LogDrafts(rows, str.encode, max_draft_tokens=3)
    assert drafts.expected(0) is None
    expected = drafts.expected(2)
    assert expected is not None
    runs = drafts.runs(1, rows[rows["step"] == 1])
    accepted = np.concatenate([runs.of(0, 8).accepted, runs.of(1, 4).accepted])
    assert expected.survival == pytest.approx([(accepted >= n).mean() for n in (1, 2, 3)])


def test_a_log_without_texts_is_refused() -> None:
    rows = pd.DataFrame({"step": [0], "prompt_id": ["p"], "sample": [0], "response_tokens": [3]})
    drafts = LogDrafts(rows, str.encode)
    assert drafts.expected(0) is None
    with refused(InputError, "response"):
        drafts.runs(0, rows)

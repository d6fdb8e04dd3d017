"""history_quality, by hand and on a published log."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.predict import EwmaPredictor, PredictionError, history_quality
from rlhfless.trace import ImportOptions, import_log

LOG = Path(__file__).parents[2].parent / "shared" / "data" / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv"
lengths = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=2, max_size=20)


def test_quality_by_hand() -> None:
    quality = history_quality([10, 20, 30, 40], [10, 20, 330, 140])
    assert quality.mean_abs_error_tokens == 100
    assert quality.rank_correlation == pytest.approx(0.8)
    assert quality.share_within_100_tokens == 0.75


def test_equal_values_share_their_rank() -> None:
    assert history_quality([1, 1, 2], [5, 5, 9]).rank_correlation == pytest.approx(1)
    assert math.isnan(history_quality([1, 1], [5, 9]).rank_correlation)


@given(lengths)
def test_only_the_order_counts_for_the_rank_correlation(pairs: list) -> None:
    predicted, actual = np.array(pairs).T
    rank = history_quality(predicted, actual).rank_correlation
    same = history_quality(predicted**3, np.exp(actual / 100)).rank_correlation
    assert (math.isnan(rank) and math.isnan(same)) or rank == pytest.approx(same)
    assert math.isnan(rank) or -1 <= rank <= 1


@pytest.mark.parametrize(("predicted", "actual"), [([1, 2], [1]), ([], []), ([[1]], [[1]])])
def test_what_cannot_be_compared_is_refused(predicted: list, actual: list) -> None:
    with refused(PredictionError):
        history_quality(predicted, actual)


@pytest.mark.skipif(not LOG.exists(), reason=f"public data absent: {LOG.name}")
def test_the_last_visit_predicts_the_next_one_on_a_published_log() -> None:
    mapping = {"prompt_id": "prompt_index", "sample": "rollout", "step": "visit"}
    rollouts = import_log(LOG, ImportOptions(mapping=mapping, max_response_tokens=512)).trace().rollouts
    first, second = rollouts[rollouts["step"] == 0], rollouts[rollouts["step"] == 1]
    predicted = EwmaPredictor().fit(first).predict(second["prompt_id"].tolist(), max_response_tokens=512)
    quality = history_quality(predicted, second["response_tokens"])
    assert quality.mean_abs_error_tokens < 50
    assert quality.rank_correlation > 0.85
    assert quality.share_within_100_tokens > 0.9

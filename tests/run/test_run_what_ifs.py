"""``Run.what_ifs`` of a logged run, of an executed one, and of a log with texts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import rlhfless as rl
from rlhfless.plots import plot_what_ifs
from rlhfless.report.study import Assumptions

pytestmark = pytest.mark.full

GPUS = {"gpus": 4, "profile": "l40s-qwen2.5-3b-tp2", "verbose": False}


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    """Two steps of four prompts with two responses each."""
    rng = np.random.default_rng(0)
    rows = [(step, f"p{p}", s, 20, int(rng.integers(5, 200))) for step in range(2) for p in range(4) for s in range(2)]
    return pd.DataFrame(rows, columns=["step", "prompt_id", "sample", "prompt_tokens", "response_tokens"])


def test_responses_of_no_tokens_are_no_error(log: pd.DataFrame) -> None:
    compared = rl.load(log.assign(response_tokens=0), gpus=4, profile="cpu-tiny-qwen2", verbose=False).what_ifs()
    assert compared.to_frame()["time_saved"].notna().all()
    assert plot_what_ifs(compared).layout.title.text


def test_what_a_logged_run_states_is_part_of_every_way(log: pd.DataFrame) -> None:
    short, long = (
        rl.load(log, assumptions=Assumptions(learn_s=seconds), **GPUS).what_ifs().to_frame().set_index("way")
        for seconds in (1.0, 9.0)
    )
    for way in ("as logged", "deferred dispatch", "drafts", "folding, released"):
        assert long.loc[way, "time_s"] == pytest.approx(short.loc[way, "time_s"] + 2 * 8.0)
    assert "asynchronous" in short.index


def test_an_executed_run_is_compared_by_its_spans(log: pd.DataFrame) -> None:
    trace = rl.load(log, **GPUS).simulate(["static"]).traces["static"]
    executed = rl.load(trace, **GPUS).what_ifs()
    spans, starts = trace.spans, trace.allocations.groupby("step")["start_s"].min()
    took_s = float((spans.groupby("step")["end_s"].max() - starts).sum())
    assert executed.base.time_s == pytest.approx(took_s, rel=1e-3)
    assert any("executed plans" in sentence for sentence in executed.assumed)


def test_texts_of_the_log_say_what_drafts_accept(log: pd.DataFrame) -> None:
    texts = ["again and again and " * (1 + tokens // 20) for tokens in log["response_tokens"]]
    (drafts,) = (way for way in rl.load(log.assign(response=texts), **GPUS).what_ifs().ways if way.name == "drafts")
    assert "texts" in drafts.change
    assert drafts.parameters["saved"] > 0

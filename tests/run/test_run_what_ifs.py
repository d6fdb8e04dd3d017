"""``Run.what_ifs`` of a logged run, of an executed one, and of a log with texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rlhfless as rl
from rlhfless.analysis import Assumptions

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
    assert compared.means()["time_saved"].notna().all()
    assert compared.plot().layout.title.text


def test_what_a_logged_run_states_is_part_of_every_way(log: pd.DataFrame) -> None:
    short, long = (
        rl.load(log, assumptions=Assumptions(learn_s=seconds), **GPUS).what_ifs().means().set_index("way")
        for seconds in (1.0, 9.0)
    )
    for way in ("as logged", "deferred dispatch", "drafts", "consolidated, released"):
        assert long.loc[way, "time_s"] == pytest.approx(short.loc[way, "time_s"] + 8.0)
    assert "asynchronous" in short.index


def test_an_executed_run_is_compared_by_its_spans(log: pd.DataFrame) -> None:
    trace = rl.load(log, **GPUS).simulate(["static"]).traces["static"]
    executed = rl.load(trace, **GPUS).what_ifs()
    spans, starts = trace.spans, trace.allocations.groupby("step")["start_s"].min()
    took_s = float((spans.groupby("step")["end_s"].max() - starts).sum())
    own = executed.table[executed.table["way"] == "as executed"]
    assert own["time_s"].sum() == pytest.approx(took_s, rel=1e-3)
    assert any("GPUs are released" in sentence for sentence in executed.assumed)


LEARNED = Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo-drafts"
"""Six steps that planned themselves on 4 GPUs, gave GPUs back, and learned on one of them."""


def test_an_executed_run_is_compared_with_what_it_took_itself() -> None:
    run = rl.load(LEARNED, verbose=False)
    held = run.trace.allocations.assign(seconds=lambda of: of["end_s"] - of["start_s"], gpus=lambda of: of["gpu_ids"].map(len))
    of_steps = held.groupby("step")
    took_s = float((of_steps["end_s"].max() - of_steps["start_s"].min()).mean())
    gpu_s = float((held["seconds"] * held["gpus"]).sum()) / len(of_steps)
    found = run.what_ifs()
    means = found.means().set_index("way")
    assert "as logged" not in means.index
    own = means.iloc[0]
    assert own.name == "as executed"
    assert (own["time_s"], own["gpu_seconds"]) == pytest.approx((took_s, gpu_s))
    assert own["gpu_seconds"] < 0.5 * run.hardware.gpus * own["time_s"]  # as it gave GPUs back
    assert means["time_saved"].tolist() == pytest.approx((1 - means["time_s"] / took_s).tolist())
    assert means["cost_saved"].tolist() == pytest.approx((1 - means["gpu_seconds"] / gpu_s).tolist())
    assert means.loc["asynchronous", "cost_saved"] < 0
    partial = found.knobs[found.knobs["variant"] == "partial rollout"]
    assert partial["cost_saved"].tolist() == pytest.approx((1 - partial["gpu_seconds"] / gpu_s).tolist())
    assert found.plot().layout.title.text


def test_texts_of_the_log_say_what_drafts_accept(log: pd.DataFrame) -> None:
    texts = ["again and again and " * (1 + tokens // 20) for tokens in log["response_tokens"]]
    compared = rl.load(log.assign(response=texts), **GPUS).what_ifs()
    assert "texts" in compared.means().set_index("way").loc["drafts", "change"]
    assert compared.parameters["drafts"]["saved"] > 0


def test_the_one_dispatch_of_other_ways_is_named(log: pd.DataFrame) -> None:
    """They have no ranges over dispatches, which other parts of a report have."""
    for assumed in (None, Assumptions(dispatch="least-loaded")):
        said = " ".join(rl.load(log, assumptions=assumed, **GPUS).what_ifs().assumed)
        assert "ranges" not in said
        assert ("simulated as equal chunks" in said) == (assumed is None)

"""The shipped run with drafts: its counts are consistent, and its texts accept as much on paper as the engine accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless

import rlhfless as rl
from rlhfless.analysis.draft_acceptance import measure_drafts
from rlhfless.analysis.log_drafts import LogDrafts
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.simulate import logged_steps
from rlhfless.trace import Trace, read_trace
from solver import Cluster, PlanningProblem
from solver.model.drafting import Drafting
from solver.timing.build_plan import assemble

DATA = Path(__file__).parents[2] / "data"
RUN, MODEL = DATA / "traces" / "arithmetic-grpo-drafts", DATA / "models" / "arithmetic-grpo"
EPOCH_STEPS = 2
encode = CharTokenizer.load(MODEL / "char_tokenizer.json").encode


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(RUN)


def test_every_token_was_sampled_by_a_pass_or_accepted(trace: Trace) -> None:
    rows = trace.rollouts
    assert len(rows) == 6 * 16 * 8
    assert (rows["passes"] + rows["accepted_tokens"] == rows["response_tokens"]).all()
    assert ((rows["accepted_tokens"] >= 0) & (rows["accepted_tokens"] <= rows["drafted_tokens"])).all()
    assert (rows["drafted_tokens"] <= 8 * rows["passes"]).all()
    decoded = trace.spans[trace.spans["phase"] == "decode"]
    assert decoded["tokens"].sum() == rows["response_tokens"].sum(), "spans count committed tokens"
    assert (DATA / "traces" / "arithmetic-grpo" / "rollouts.parquet").exists()
    assert "passes" not in read_trace(DATA / "traces" / "arithmetic-grpo").rollouts, "the run without drafts is as it was"


def test_drafts_of_the_last_visit_are_accepted_more_often(trace: Trace) -> None:
    by_epoch = trace.rollouts.groupby("epoch")[["response_tokens", "passes", "drafted_tokens", "accepted_tokens"]].sum()
    tokens_per_pass = by_epoch["response_tokens"] / by_epoch["passes"]
    assert tokens_per_pass[0] < 1.2, "siblings only"
    assert tokens_per_pass[1:].min() > 1.5


def test_texts_accept_the_same_share_on_paper(trace: Trace) -> None:
    """Drafts of the engine were 4 to 8 tokens long where it drafted much, so its share lies between those of these lengths."""
    later = trace.rollouts[trace.rollouts["step"] >= EPOCH_STEPS]
    recorded = later["accepted_tokens"].sum() / later["drafted_tokens"].sum()
    steps = sorted(later["step"].unique())
    shares = []
    for length in (2, 8):
        measured = measure_drafts(trace.rollouts, encode, max_draft_tokens=length, steps=steps, min_match=2).responses
        assert measured["tokens"].sum() == later["response_tokens"].sum(), "the same tokens, the end of text included"
        shares.append(measured["accepted_tokens"].sum() / measured["drafted_tokens"].sum())
    assert shares[1] < recorded < shares[0]


@pytest.mark.full
def test_a_simulated_engine_accepts_the_same_share_of_these_drafts(trace: Trace) -> None:
    """Same actors and lengths, drafts replayed from the texts. Siblings are in step on paper, and a match may be shorter."""
    latency, cluster = load_profile(trace.meta["profile"]), Cluster(1, 4, 1)
    drafts = LogDrafts(trace.rollouts, encode)
    drafted = accepted = 0
    for logged in logged_steps(trace.rollouts, max_response_tokens=320):
        actor = logged.rows["actor"].to_numpy()
        groups = [np.flatnonzero(actor == name) for name in pd.unique(actor)]
        plan = replace(assemble("as recorded", groups, PlanningProblem(logged.truth, cluster, latency)), drafting=Drafting())
        engines = DraftedEngineFactory(Drafting(), drafts.runs(logged.step, logged.rows))
        done = run_step(plan, logged.requests(), engines, latency, cluster).completions
        passes = [done[i].passes for i in range(len(logged.rows))]
        assert np.corrcoef(passes, logged.rows["passes"])[0, 1] > 0.8
        drafted += sum(one.drafted_tokens or 0 for one in done.values())
        accepted += sum(one.accepted_tokens or 0 for one in done.values())
    recorded = trace.rollouts["accepted_tokens"].sum() / trace.rollouts["drafted_tokens"].sum()
    assert accepted / drafted == pytest.approx(recorded, abs=0.04)


def test_the_command_measures_it() -> None:
    shown = run_rlhfless("report", RUN, "--only", "drafts", "--tokenizer", MODEL)
    assert shown.exit_code == 0, shown.output
    assert "last visit + siblings" in shown.output


def test_it_loads(trace: Trace) -> None:
    run = rl.load(RUN, verbose=False)
    assert run.steps == trace.steps == list(range(6))


@pytest.mark.full
def test_it_is_reported(tmp_path: Path) -> None:
    shown = run_rlhfless("report", str(RUN), "--steps", "1", "-o", str(tmp_path / "page.html"))
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "page.html").stat().st_size > 10_000

"""What preparation and learning on waiting GPUs would have saved: by hand, within bounds, and on logs of frameworks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.analysis import PhaseSeconds, RunSetup, run_setup
from rlhfless.analysis.phase_savings import PhaseSavings, phase_savings
from rlhfless.latency import load_profile
from rlhfless.simulate import SimulationConfig
from solver.model.cluster import Cluster

SETTING = SimulationConfig(
    Cluster(1, 4, 2, kind="l40s"), replace(load_profile("l40s-qwen2.5-3b-tp2"), sync_s=0.0), bound_work=0
)
COLOCATED = run_setup("trl", dispatch="static")


def run(*actors: dict[str, list[tuple[int, float]]], step: int = 0, start_s: float = 7.0) -> pd.DataFrame:
    """Rollouts of a step: for each actor the (tokens, seconds until complete) of every prompt's responses."""
    rows = [
        (step, prompt, sample, f"actor-{number}", 50, tokens, start_s, start_s + end_s)
        for number, prompts in enumerate(actors)
        for prompt, responses in prompts.items()
        for sample, (tokens, end_s) in enumerate(responses)
    ]
    columns = ["step", "prompt_id", "sample", "actor", "prompt_tokens", "response_tokens", "start_s", "end_s"]
    return pd.DataFrame(rows, columns=columns)


TWO_ACTORS = run({"short": [(100, 1.0), (100, 1.0)]}, {"long": [(950, 10.0), (950, 10.0)]})


def saved(
    phases: PhaseSeconds, setup: RunSetup = COLOCATED, setting: SimulationConfig = SETTING, rollouts: pd.DataFrame = TWO_ACTORS
) -> tuple[PhaseSavings, ...]:
    return phase_savings([rollouts], setup, phases, setting)


def test_two_replicas_by_hand() -> None:
    """The waiting replica prepares and learns from the two short responses, 300 of 2,300 tokens."""
    stage_fusion, streaming = saved(PhaseSeconds(2.0, 4.0, 1.0, "stated"))
    short = 300 / 2300
    assert stage_fusion.mean == pytest.approx(short * 2.0 / 17.0)
    assert streaming.mean == pytest.approx(short * 6.0 / 17.0)
    assert (stage_fusion.learns, streaming.learns) == (False, True)
    assert streaming.low == streaming.mean == streaming.high  # one step, one dispatch, nothing to load


def test_work_that_has_begun_counts_as_far_as_it_got() -> None:
    """The short group takes 2 x 300 / 2,300 of 460 seconds on one replica, which has 9 seconds for it."""
    (streaming,) = saved(PhaseSeconds(0.0, 460.0, 0.0, "stated"))
    assert streaming.mean == pytest.approx(9.0 / 2 / 470.0)


def test_a_learner_of_its_own_waits_from_the_start() -> None:
    own = run_setup("trl", dispatch="static", learner_gpus=2)
    (streaming,) = saved(PhaseSeconds(0.0, 2.3, 0.0, "stated"), own)
    assert streaming.mean == pytest.approx(0.3 / 12.3)


def test_loading_takes_from_the_saving_and_widens_its_range() -> None:
    slow = replace(SETTING, latency=replace(SETTING.latency, sync_s=1.0))
    (loads,) = saved(PhaseSeconds(0.0, 460.0, 0.0, "stated"), setting=slow)
    assert (loads.low, loads.mean) == pytest.approx((8.0 / 2 / 470, 9.0 / 2 / 470))


def test_unknown_prompt_lengths_count_as_none() -> None:
    (learns,) = saved(PhaseSeconds(0.0, 4.0, 0.0, "stated"), rollouts=TWO_ACTORS.assign(prompt_tokens=pd.NA))
    assert learns.mean == pytest.approx(200 / 2100 * 4.0 / 14.0)


def test_every_dispatch_counts() -> None:
    level = run({"short": [(100, 9.0), (100, 9.0)]}, {"long": [(950, 10.0), (950, 10.0)]})
    (one,) = phase_savings([TWO_ACTORS, level], COLOCATED, PhaseSeconds(0.0, 460.0, 0.0, "stated"), SETTING)
    assert (one.low, one.high) == pytest.approx((1.0 / 2 / 470, 9.0 / 2 / 470))


def test_nothing_is_said_where_phases_are_unknown_or_overlap_already() -> None:
    assert saved(PhaseSeconds()) == ()
    assert saved(PhaseSeconds(1.0, 1.0, 0.0, "stated"), run_setup("areal", dispatch="static")) == ()
    assert [one.learns for one in saved(PhaseSeconds(0.0, 1.0, 0.0, "stated"))] == [True]
    assert [one.learns for one in saved(PhaseSeconds(1.0, 0.0, 0.0, "stated"))] == [False]


def waiting_share(steps: list[pd.DataFrame], work_s: float, phases_s: float, own_learner: bool) -> float:
    """The share of these steps that is saved if every waiting replica works from its last response on."""
    saved_s = logged_s = 0.0
    for rows in steps:
        last = rows.groupby("actor")["end_s"].max() - rows["start_s"].min()
        replicas = 1 if own_learner else SETTING.cluster.max_actors
        waits_s = last.max() if own_learner else replicas * last.max() - last.sum()
        saved_s += min(work_s, waits_s / replicas)
        logged_s += last.max() + phases_s
    return saved_s / logged_s


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**16), st.floats(0.01, 30), st.floats(0.01, 60), st.integers(0, 3))
def test_savings_are_below_what_waiting_gpus_could_do(seed: int, prepare_s: float, learn_s: float, gpus: int) -> None:
    rng = np.random.default_rng(seed)
    steps = [
        run(*({f"p{p}": [(int(rng.integers(1, 900)), float(rng.lognormal(1, 1))) for _ in range(3)] for p in (a, a + 9)}
              for a in range(rng.integers(1, 3))), step=step)
        for step in range(2)
    ]  # fmt: skip
    setup = run_setup("trl", dispatch="static", learner_gpus=gpus)
    stage_fusion, streaming = saved(PhaseSeconds(prepare_s, learn_s, 0.0, "stated"), setup, rollouts=pd.concat(steps))
    for one, work_s in ((stage_fusion, prepare_s), (streaming, prepare_s + learn_s)):
        assert 0 <= one.low <= one.mean + 1e-12
        assert one.mean <= waiting_share(steps, work_s, prepare_s + learn_s, gpus > 0) + 1e-12
        assert one.mean <= one.high < 1
    assert streaming.mean >= stage_fusion.mean - 1e-12

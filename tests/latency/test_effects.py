"""What happens to actors is nothing when it is off, never makes them faster, and is worse where it is more severe."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.latency import load_profile
from rlhfless.latency.effects import Effects, Outages, StartDelays, Stragglers
from rlhfless.latency.scaling import RUNNING, scaled
from solver import LatencyModel, PlanningError

AFFINE = LatencyModel(
    "small", 2, 5e-3, 1e-4, 1e-6, prefill_base_s=2e-3, prefill_per_token_s=1e-5, join_s=1e-3, sync_s=0.5,
    transfer_base_s=1e-3, transfer_per_kv_token_s=1e-6,
)  # fmt: skip
MODELS = (AFFINE, load_profile("l40s-qwen2.5-3b-tp2"))
SEVERITY = st.floats(0, 5, allow_nan=False)
SEEDS = st.integers(0, 1000)


@pytest.mark.parametrize("latency", MODELS)
def test_effects_of_no_severity_give_back_the_same_model(latency):
    draw = np.random.default_rng(0)
    assert Stragglers(0.0, 3.0).applied(latency, draw) is latency
    assert Stragglers(1.0, 0.0).applied(latency, draw) is latency
    assert scaled(latency, 1.0, RUNNING) is latency
    assert StartDelays(0.0, 2.0).delay_s(draw) == 0
    assert Outages(0.0, 60.0).up_s(2, draw) == math.inf


@given(st.sampled_from(MODELS), SEVERITY, SEVERITY, st.integers(1, 64), st.integers(0, 50_000))
def test_slower_actors_take_longer_for_everything_that_decodes(latency, less, more, batch, kv_tokens):
    less, more = sorted((less, more))
    fast, slow = scaled(latency, 1 + less, RUNNING), scaled(latency, 1 + more, RUNNING)
    assert slow.iteration_s(batch, kv_tokens) >= fast.iteration_s(batch, kv_tokens) >= latency.iteration_s(batch, kv_tokens)
    assert slow.prefill_s(kv_tokens) >= fast.prefill_s(kv_tokens) >= latency.prefill_s(kv_tokens)
    assert slow.one_iteration_s(batch, kv_tokens) == slow.iteration_s(batch, kv_tokens)
    assert (slow.start_s, slow.sync_s, slow.kv_capacity_tokens) == (latency.start_s, latency.sync_s, latency.kv_capacity_tokens)


@given(SEEDS, st.floats(0, 1), st.floats(0, 1), SEVERITY, SEVERITY)
def test_a_larger_share_or_slowdown_makes_no_actor_faster(seed, share, other_share, slowdown, other_slowdown):
    (share, other_share), (slowdown, other_slowdown) = sorted((share, other_share)), sorted((slowdown, other_slowdown))
    for actor in range(5):
        less = Stragglers(share, slowdown).applied(AFFINE, Effects(seed=seed).draws(actor)[0])
        more = Stragglers(other_share, other_slowdown).applied(AFFINE, Effects(seed=seed).draws(actor)[0])
        assert more.base_s >= less.base_s >= AFFINE.base_s


@given(SEEDS, SEVERITY, SEVERITY)
def test_starts_with_a_longer_median_are_never_earlier(seed, median_s, other_s):
    median_s, other_s = sorted((median_s, other_s))
    for actor in range(5):
        first, second = (StartDelays(s, 0.7).delay_s(Effects(seed=seed).draws(actor)[1]) for s in (median_s, other_s))
        assert 0 <= first <= second


def test_the_share_the_median_and_the_rate_are_those_that_were_asked_for():
    draws = [Effects(seed=7).draws(actor) for actor in range(4000)]
    slow = [Stragglers(0.2, 1.0).applied(AFFINE, own[0]) is not AFFINE for own in draws]
    assert np.mean(slow) == pytest.approx(0.2, abs=0.02)
    assert np.median([StartDelays(30.0, 0.5).delay_s(own[1]) for own in draws]) == pytest.approx(30, rel=0.05)
    up_s = [Outages(0.5, 10.0).up_s(4, own[2]) for own in draws]  # 2 an hour for four GPUs
    assert np.mean(up_s) == pytest.approx(1800, rel=0.05)


def test_draws_are_those_of_the_seed_and_stragglers_stay_so():
    one, same, later = Effects(seed=3), Effects(seed=3), Effects(seed=3, step=1)
    assert [d.random() for d in one.draws(2)] == [d.random() for d in same.draws(2)]
    first, second = [d.random() for d in one.draws(2)], [d.random() for d in later.draws(2)]
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert first[2] != second[2]
    assert [d.random() for d in one.draws(1)] != first


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Stragglers(1.5), "share is 1.5; a probability of at most 1 is needed"),
        (lambda: Stragglers(0.5, math.nan), "slowdown is nan; a share of 0 or more is needed"),
        (lambda: StartDelays(-1), "median_s is -1; a number of seconds of 0 or more is needed"),
        (lambda: Outages(1.0, -5), "down_s is -5; a number of seconds of 0 or more is needed"),
        (lambda: Effects(stragglers="x"), "stragglers is 'x'; Stragglers(...) or None is needed"),
        (
            lambda: Effects(StartDelays()),
            "stragglers is StartDelays(median_s=0.0, spread=0.5); Stragglers(...) or None is needed",
        ),
        (lambda: Effects(seed=-1), "seed is -1; a whole number of 0 or more is needed"),
        (lambda: Effects(seed=1.5), "seed is 1.5; a whole number of 0 or more is needed"),
        (lambda: Effects(seed=2.0), "seed is 2.0; a whole number of 0 or more is needed"),
        (lambda: replace(Effects(), step=-1), "step is -1; a whole number of 0 or more is needed"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(PlanningError) as refused:
        make()
    assert str(refused.value) == sentence

"""Dynamic sampling: what is learned from and dropped, and rounds that take as long as the same rounds one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from what_if_loops import Loop, Steps, generate
from what_if_runs import TWO_STEPS, rollouts_of, small_run, small_steps

from rlhfless.analysis.what_ifs import as_logged, dynamic_sampling
from rlhfless.analysis.what_ifs.dynamic_sampling import MOST_ROUNDS, SampledGroup, round_size, sampled
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.errors import InputError
from rlhfless.simulate import logged_steps


def rewarded_run(steps: Steps, rewards: list[float], actors: int = 2) -> RunToChange:
    """The run with these rewards of its responses, one after another, and from the beginning where they are too few."""
    rows = rollouts_of(steps)
    return replace(small_run(steps, actors), logged=list(logged_steps(rows.assign(reward=np.resize(rewards, len(rows))))))


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 12), st.integers(0, 99))
def test_rounds_are_generated_until_the_batch_is_full(useful: list[bool], size: int, seed: int) -> None:
    own = [SampledGroup(np.array([at]), of) for at, of in enumerate(useful)]
    size = max(size, len(own))
    others = [*own, SampledGroup(np.array([99]), True)]
    rounds = sampled(own, others, size, np.random.default_rng(seed))
    every = [group for groups in rounds.rounds for group in groups]
    assert [len(groups) for groups in rounds.rounds] == [size] * len(rounds.rounds)
    assert every[: len(own)] == own
    assert rounds.learned == tuple([group for group in every if group.useful][: len(own)])
    assert len(rounds.learned) == len(own)
    before = [group for groups in rounds.rounds[:-1] for group in groups]
    assert sum(group.useful for group in before) < len(own)  # the last round was needed


@settings(max_examples=4)
@given(small_steps(2), st.integers(1, 3), st.booleans())
def test_without_useless_groups_nothing_changes(steps: Steps, actors: int, at_once: bool) -> None:
    steps = [[(prompt, [*lengths, 3]) for prompt, lengths in step] for step in steps]
    numbers = list(np.arange(200.0))  # all rewards differ
    run = rewarded_run(steps, numbers, actors)
    outcome, base = dynamic_sampling.way(run, at_once), as_logged.way(run)
    assert outcome.data == base.data
    assert (outcome.time_s, outcome.least_time_s) == pytest.approx((base.time_s, base.least_time_s))
    assert outcome.parameters == {"useless_share": 0.0, "rounds_per_step": 1.0}


@pytest.mark.parametrize("at_once", [False, True])
def test_rounds_take_as_long_as_one_after_another(at_once: bool) -> None:
    """Every group is alike but for its rewards, so all rounds of a size take equally long, whatever is drawn."""
    steps: Steps = [[(4, [3, 9])] * 4] * 3
    run = rewarded_run(steps, [0.0, 1.0, 1.0, 1.0])  # every second group is useless
    outcome = dynamic_sampling.way(run, at_once)
    size = round_size(4, 0.5) if at_once else 4
    rounds = outcome.parameters["rounds_per_step"] * 3
    one_round_s = generate(Loop([[(4, [3, 9])] * size], 2, 0, 0).groups[0], 2, 0, lambda _: False)
    assert outcome.time_s == pytest.approx(rounds * one_round_s + 3 * 8.5)
    data = outcome.data
    assert (data.learned_responses, data.learned_tokens) == (24, 144)
    assert data.dropped_responses == rounds * size * 2 - 24
    assert data.dropped_tokens == (rounds * size - 12) * 12
    assert data.on_policy
    assert outcome.least_time_s <= outcome.time_s
    assert outcome.parameters["useless_share"] == 0.5
    assert rounds >= 3 * (1 if at_once else 2)


@settings(max_examples=4)
@given(small_steps(2), st.floats(0.0, 0.9), st.integers(0, 5), st.booleans())
def test_a_stated_share_of_useless_groups_loses_no_response(steps: Steps, share: float, seed: int, at_once: bool) -> None:
    run = small_run(steps)
    try:
        outcome = dynamic_sampling.way(run, at_once, share, seed)
    except InputError:
        return  # by chance no group, or too few, were useful
    groups = sum(map(len, steps))
    assert outcome.steps == len(steps)
    assert outcome.data.learned_responses >= groups
    assert outcome.least_time_s <= outcome.time_s * (1 + 1e-9)
    if share == 0:
        assert outcome.data.dropped_responses == 0


@given(st.integers(1, 300), st.floats(0.05, 1.0))
def test_the_size_of_a_round_is_the_smallest_that_is_usually_enough(groups: int, useful_share: float) -> None:
    size = round_size(groups, useful_share)

    def low(count: int) -> float:
        return count * useful_share - 1.645 * (count * useful_share * (1 - useful_share)) ** 0.5

    assert size >= groups
    assert low(size) >= groups - 1e-6
    assert size == groups or low(size - 1) < groups + 1e-6


def test_wrong_arguments_are_refused() -> None:
    run = small_run(TWO_STEPS)
    for share in (-0.1, 0.95, "many", float("nan"), True):
        with refused(InputError, "useless_share"):
            dynamic_sampling.way(run, useless_share=share)  # type: ignore[arg-type]
    with refused(InputError, "seed"):
        dynamic_sampling.way(run, seed=-1)
    with refused(InputError, "rewards"):
        dynamic_sampling.way(rewarded_run(TWO_STEPS, [1.0, 2.0]), useless_share=0.2)
    with refused(InputError, "rewards"):
        dynamic_sampling.way(rewarded_run(TWO_STEPS, [1.0]))
    own = [SampledGroup(np.array([0]), False)] * 3
    with refused(InputError, f"{MOST_ROUNDS} rounds"):
        sampled(own, own, 3, np.random.default_rng(0))


@pytest.mark.parametrize("simulate", [dynamic_sampling.way, dynamic_sampling.with_range], ids=["way", "range"])
@pytest.mark.parametrize("at_once", [False, True], ids=["rounds", "at once"])
def test_a_log_of_nearly_only_useless_groups_is_refused_as_such(simulate: Callable[..., object], at_once: bool) -> None:
    """The share is the log's own: the sentence names its groups, and no argument that nobody gave."""
    run = replace(small_run(TWO_STEPS), useless_share=0.95)
    with refused(InputError, "95%", "groups are equal", "10 times its prompts", "at most 90%") as refusal:
        simulate(run, at_once)
    assert "useless_share" not in str(refusal.value)


def test_a_stated_share_takes_the_place_of_the_logs() -> None:
    run = replace(small_run(TWO_STEPS), useless_share=0.95)
    assert dynamic_sampling.way(run, useless_share=0.0).parameters["useless_share"] == 0.0


def test_a_missing_reward_makes_all_unknown() -> None:
    rows = rollouts_of(TWO_STEPS)
    rows["reward"] = pd.Series([None, *np.arange(float(len(rows) - 1))], dtype=float)
    run = replace(small_run(), logged=list(logged_steps(rows)))
    assert dynamic_sampling.way(run, useless_share=0.0).parameters["useless_share"] == 0.0

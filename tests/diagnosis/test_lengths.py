"""Lengths of a log: which responses a limit cut, by the response and by the context, and what lengths bound."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.diagnosis import Stated, diagnose
from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.lengths import cut_responses, lengths
from rlhfless.diagnosis.levers import with_lines
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected
from rlhfless.trace import Trace


def rollouts(tokens: list[int], prompts: list[int] | None = None, **columns: object) -> pd.DataFrame:
    """Return the rollouts of one step, validated as a log's are."""
    count = len(tokens)
    frame = pd.DataFrame({"step": 0, "prompt_id": range(count), "sample": 0, "response_tokens": tokens, **columns})
    return Trace(frame if prompts is None else frame.assign(prompt_tokens=prompts)).rollouts


def test_a_limit_on_the_context_is_found_although_the_longest_response_is_below_the_limit_of_responses() -> None:
    """Cut rows have one sum of prompt and response; no two of them need have the same response."""
    prompts = [400, 900, 1500, 2600, 400, 900, 1500, 2600]
    tokens = [3696, 3196, 2596, 1496, 500, 800, 700, 600]
    log = rollouts(tokens, prompts)
    cut = cut_responses(log)
    assert cut is not None
    assert cut.rows.tolist() == [True] * 4 + [False] * 4
    said = diagnose(log, Stated(max_response_tokens=4096))
    assert said.numbers["cut_share"].value == pytest.approx(0.5)
    assert said.findings[0].kind == "limit"
    assert "4,096" in said.findings[0].sentence


def test_finish_reasons_that_do_not_know_the_context_limit_do_not_hide_it() -> None:
    log = rollouts([3696, 3196, 2596, 1496, 500, 800], [400, 900, 1500, 2600, 400, 900], finish_reason="stop")
    assert diagnose(log).numbers["cut_responses"].value == 4


def test_logged_finish_reasons_are_counted() -> None:
    log = rollouts([10, 20, 30, 40], finish_reason=["stop", "length", "stop", "stop"])
    found = diagnose(log).numbers["cut_share"]
    assert (found.value, found.evidence) == (0.25, "counted")


def test_without_reasons_and_shared_longest_length_the_cut_share_is_unknown_and_not_zero() -> None:
    said = diagnose(rollouts([10, 20, 30, 41]))
    assert "cut_share" not in said.numbers
    assert any("limit cut" in text for text in said.cannot_say)
    assert "0.0%" not in str(said)


@given(st.lists(st.integers(1, 5000), min_size=2, max_size=60))
def test_slots_are_idle_at_most_for_the_share_that_equal_lengths_would_fill(tokens: list[int]) -> None:
    """All responses begin at once and one token takes one second: what a schedule of slots of this step could win at most."""
    found = diagnose(rollouts(tokens)).numbers["slot_idle_share_at_most"].value
    busy = sum(tokens)
    held = max(tokens) * len(tokens)
    assert found == pytest.approx(1 - busy / held)


@given(st.integers(3, 40), st.integers(0, 40), st.integers(100, 200))
def test_responses_at_a_limit_are_all_found_and_no_other(cut: int, others: int, limit: int) -> None:
    tokens = [limit] * cut + [limit - 1 - k % 50 for k in range(others)]
    found = cut_responses(rollouts(tokens))
    assert found is not None
    assert int(found.rows.sum()) == cut


def test_scalars_of_steps_give_logged_means() -> None:
    steps = pd.DataFrame(
        {"step": [0, 1], "response_tokens_mean": [100.0, 300.0], "response_tokens_max": [400.0, np.nan],
         "truncation_rate": [0.0, 0.2], "prompt_tokens_mean": 100.0}
    )  # fmt: skip
    numbers = collect(LoggedRun("log", "verl", steps)).numbers
    assert numbers["response_tokens_mean"].value == 200
    assert numbers["mean_over_longest"].value == 0.25, "of the steps that have both"
    assert numbers["cut_share"].value == pytest.approx(0.1)
    assert numbers["prompt_token_share"].value == pytest.approx(1 / 3)


def test_a_limit_costs_data_and_shorter_responses_save_at_most_what_the_cut_ones_take() -> None:
    log = rollouts([1000] * 4 + [100, 200, 300, 400], finish_reason=["length"] * 4 + ["stop"] * 4)
    said = diagnose(log)
    assert said.numbers["without_cut_saves_at_most_share"].value == pytest.approx(0.8), "4,000 of 5,000 tokens are of cut ones"
    (lever,) = [one for one in said.levers if one.kind == "limit"]
    assert (lever.at_most, lever.of) == (pytest.approx(0.8), "time of generation")
    assert "takes more time" in lever.price
    assert "more time" in next(one.sentence for one in said.findings if one.kind == "limit")


@pytest.mark.parametrize(
    ("framework", "limit", "mask", "line"),
    [("trl", "max_completion_length", "mask_truncated_completions=True", "get_soft_overlong_punishment"),
     ("slime", "--rollout-max-response-len", "", "--custom-rm-path"),
     ("verl", "data.max_response_length", "", "overlong_buffer_cfg.enable=True"),
     ("nemo-rl", "policy.generation.max_new_tokens", "grpo.overlong_filtering=true", "grpo.reward_shaping")],
)  # fmt: skip
def test_the_limit_of_each_framework(framework: str, limit: str, mask: str, line: str) -> None:
    steps = pd.DataFrame(
        {"step": [0], "step_s": 100.0, "generate_s": 80.0, "response_tokens_mean": 700.0, "response_tokens_max": 1000.0,
         "truncation_rate": 0.4}
    )  # fmt: skip
    found = collect(LoggedRun("log", framework, steps))
    (lever,) = with_lines([one for one in found.levers if one.kind == "limit"], framework)
    assert limit in lever.price
    assert mask in lever.price
    assert (line in lever.line) if line else lever.line == ""
    others = (700 - 0.4 * 1000) / 0.6
    assert lever.at_most == pytest.approx(0.8 * max(1 - others / 1000, 0.4 * 1000 / 700))
    assert lever.of == "time"


def test_a_limit_is_named_where_the_longest_response_is_always_the_same() -> None:
    steps = {"step": [0, 1], "response_tokens_mean": 300.0, "truncation_rate": 0.3}
    sentences = []
    for longest in ([512.0, 512.0], [512.0, 500.0]):
        found = collect(LoggedRun("log", "trl", pd.DataFrame({**steps, "response_tokens_max": longest})))
        sentences += [one.sentence for one in found.findings if one.kind == "limit"]
    named, unknown = sentences
    assert "512 tokens" in named
    assert "512" not in unknown


def test_a_limit_that_cuts_few_has_no_lever() -> None:
    steps = pd.DataFrame({"step": [0], "response_tokens_mean": 300.0, "response_tokens_max": 1000.0, "truncation_rate": 0.01})
    assert "limit" not in [one.kind for one in collect(LoggedRun("log", "verl", steps)).levers]


def test_a_tail_of_cut_lengths_says_so() -> None:
    log = rollouts([1000] * 4 + [100] * 96, finish_reason=["length"] * 8 + ["stop"] * 92)
    (tail,) = [one for one in diagnose(log).findings if one.kind == "tail"]
    assert "limit cut" in tail.sentence


def test_where_all_responses_are_cut_nothing_is_known_of_shorter_ones() -> None:
    said = diagnose(rollouts([512] * 8, finish_reason="length"))
    assert said.numbers["cut_share"].value == 1
    assert "limit" not in [one.kind for one in said.levers]


@pytest.mark.parametrize(
    ("framework", "metric"),
    [
        ("verl", "response_length/clip_ratio"), ("trl", "completions/clipped_ratio"), ("slime", "rollout/truncated_ratio"),
        ("openrlhf", "rollout/truncated_rate"), ("nemo-rl", "train/truncation_rate"), ("prime-rl", "Truncation"),
        ("skyrl", "finish reasons"), ("", "finish reasons"),
    ],
)  # fmt: skip
def test_what_would_tell_whether_a_limit_cuts_is_named(framework: str, metric: str) -> None:
    run = LoggedRun("log", framework, pd.DataFrame({"step": [1], "response_tokens_mean": [400.0]}))
    (unknown,) = lengths(run, Collected()).cannot_say
    assert metric in unknown


def test_sequences_without_an_end_are_no_truncated_share() -> None:
    """AReaL's no_eos_ratios is the share of sequences as long as the padded batch, in which one always is."""
    steps = pd.DataFrame({"step": [0], "step_s": 10.0, "response_tokens_mean": 70.0, "ppo_actor/no_eos_ratios/avg": 0.03})
    found = collect(LoggedRun("log", "areal", steps))
    (said,) = [text for text in found.cannot_say if "whether a limit cut" in text]
    assert "ppo_actor/no_eos_ratios/avg is not used, because" in said
    assert "cut_share" not in found.numbers

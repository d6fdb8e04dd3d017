"""Rewards: the rules as published, sums, and what becomes of a function that fails."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from error_messages import refused, warned
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.training.rewards import FunctionReward, Response, Rewards, RewardWarning
from rlhfless.training.rewards.combine import MAX_LOST
from rlhfless.training.rewards.registry import make_rewards
from rlhfless.training.rewards.rules import contains_answer, exact_answer, gsm8k_answer, length_limit, matches
from rlhfless.training.tasks.arithmetic import ArithmeticTask

GSM8K = Path(__file__).parents[3].parent / "shared" / "data" / "gsm8k"


def response(text: str = "", answer: str = "18", tokens: int = 0) -> Response:
    return Response(SimpleNamespace(prompt="?", answer=answer), text, tokens)


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so 9*2=18\n#### 18", "18"),
        ("#### 1,234,567 dollars", "1234567"),
        ("#### -3.5", "-3.5"),
        ("#### 18.", "18."),  # the published rule compares text
        ("#### 7\n#### 8", "7"),
        ("####18", None),
        ("#### $18", None),
        ("18", None),
    ],
)
def test_the_extraction_is_that_of_the_authors(text: str, found: str | None) -> None:
    assert gsm8k_answer(text) == found


@given(st.integers(-(10**9), 10**9))
def test_a_number_is_found_with_and_without_commas(number: int) -> None:
    assert exact_answer(response(f"it is\n#### {number:,}", str(number))) == 1
    assert exact_answer(response(f"it is\n#### {number}", f"work\n#### {number:,}")) == 1
    assert exact_answer(response(f"#### {number + 1}", str(number))) == 0


@pytest.mark.skipif(not GSM8K.is_dir(), reason="GSM8K is not beside the project (../shared/data/gsm8k)")
def test_the_rule_agrees_with_the_published_judgements() -> None:
    """Every solution that GSM8K's authors published was judged by them; they wrote ``A: `` for ``#### ``."""
    judged = 0
    with open(GSM8K / "example_model_solutions.jsonl", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            answer = row["ground_truth"].replace("\nA: ", "\n#### ")
            for value in row.values():
                if isinstance(value, dict):
                    text = value["solution"].replace("\nA: ", "\n#### ")
                    assert exact_answer(response(text, answer)) == value["is_correct"]
                    judged += 1
    assert judged == 4 * 1319


def test_rules_of_form_and_content() -> None:
    thought = matches(r"^<think>.*</think>\s*#### ")
    assert thought(response("<think>a\nb</think>\n#### 3")) == 1
    assert thought(response("#### 3")) == 0
    assert contains_answer(response("it is 18.")) == 1
    assert contains_answer(response("it is 180")) == 0
    assert contains_answer(response("C++ it is", "C++")) == 1
    with refused(ValueError):
        matches("(")


def test_long_responses_are_punished_as_in_dapo() -> None:
    rule = length_limit(100, 20)
    assert [rule(response(tokens=n)) for n in (1, 80, 85, 100, 120)] == [0, 0, -0.25, -1, -1]
    with refused(ValueError):
        length_limit(10, 20)


# --- sums and failures ------------------------------------------------------------------------------------------------


def test_rewards_are_summed_with_their_weights() -> None:
    rewards = Rewards([(FunctionReward("exact", exact_answer), 1.0), (FunctionReward("length", length_limit(10, 5)), 0.5)])
    scores = rewards.score([response("#### 18", tokens=4), response("#### 18", tokens=10), response("", tokens=10)])
    assert scores.values.tolist() == [1.0, 0.5, -0.5]
    assert scores.parts["exact"].tolist() == [1, 1, 0]
    assert scores.metrics() == {
        "reward_exact": pytest.approx(2 / 3),
        "reward_length": pytest.approx(-2 / 3),
        "reward_failures": 0,
    }
    assert not scores.failures


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("high", "ValueError: returned 'high', which is not a number"),
        (-math.inf, "ValueError: returned -inf, which is not finite"),
        (KeyError("answer"), "KeyError: 'answer'"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_a_failure_is_one_responses_and_is_reported(value: Any, reason: str, timeout_s: float | None) -> None:
    def judge(r: Response) -> Any:
        if r.text != "bad":
            return 1.0
        if isinstance(value, BaseException):
            raise value
        return value

    rewards = Rewards([(FunctionReward("judge", judge, timeout_s), 1.0), (FunctionReward("exact", exact_answer), 1.0)])
    with warned(RewardWarning, "'judge'", "response 1") as told:
        scores = rewards.score([response("#### 18"), response("bad"), response("#### 19")])
    np.testing.assert_equal(scores.values, [2.0, math.nan, 1.0])
    assert [(f.response, f.reward, f.reason) for f in scores.failures] == [(1, "judge", reason)]
    assert reason in str(told[0].message)
    assert scores.metrics()["reward_failures"] == pytest.approx(1 / 3)


@pytest.mark.full
def test_a_function_that_does_not_return_is_ended_and_soon_not_asked() -> None:
    asked = []

    def stuck(r: Response) -> float:
        asked.append(r)
        while r.text == "stuck":
            time.sleep(0.001)
        return 1.0

    reward = FunctionReward("stuck", stuck, timeout_s=1.5)
    values, failures = reward.score([response("stuck")] * (MAX_LOST + 3) + [response()])
    assert np.isnan(values).all()
    assert len(asked) == MAX_LOST
    assert "took longer than 1.5 s" in failures[0].reason
    assert failures[-1].reason == f"skipped after its process timed out or ended {MAX_LOST} times in this batch"
    for thread in threading.enumerate():
        if thread.name == "reward stuck":
            thread.join(300)
            assert not thread.is_alive()
    assert reward.score([response()])[0].tolist() == [1.0], "the next batch starts anew"


def test_a_function_that_keeps_pythons_lock_for_too_long_has_timed_out() -> None:
    """Nobody can see that its time is over before it returns; what it returns then does not count."""
    backtracks = matches("^(a+)+$")
    reward = FunctionReward("late", backtracks, timeout_s=0.5)
    values, failures = reward.score([response("a" * 25 + "b"), response("aa")])
    np.testing.assert_equal(values, [math.nan, 1.0])
    assert [f.response for f in failures] == [0]
    assert failures[0].reason.startswith("TimedOut: took longer than 0.5 s")


def test_an_interrupt_is_no_failure_of_a_function() -> None:
    def interrupted(r: Response) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FunctionReward("interrupted", interrupted).score([response()])
    _, failures = FunctionReward("interrupted", interrupted, timeout_s=60.0).score([response()])
    assert failures[0].reason == "KeyboardInterrupt: ", "its own, as Ctrl-C comes to the main thread"


def test_wrong_sums_are_refused() -> None:
    one = FunctionReward("exact", exact_answer)
    with refused(ValueError):
        Rewards([])
    with refused(ValueError):
        Rewards([(one, 1.0), (one, 2.0)])
    with refused(ValueError, "'exact'"):
        Rewards([(one, math.nan)])
    with refused(ValueError, "timeout_s", "'x'"):
        FunctionReward("x", exact_answer, timeout_s=0)


# --- by name ----------------------------------------------------------------------------------------------------------


def test_rewards_by_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def brevity(response):\n    return -len(response.text)\nconstant = 3\n")
    task = ArithmeticTask(0, 4)
    problem = task.problems[0]
    good = Response(problem, f"#{problem.answer}.", tokens=9)
    names = ["task", "0.1*format:^#", "length:10,5", f"-2*{tmp_path / 'mine.py'}:brevity"]
    scores = make_rewards(names, task).score([good])
    assert scores.values.tolist() == pytest.approx([1 + 0.1 - 0.8 + 2 * len(good.text)])
    assert list(scores.parts) == ["task", "format", "length", "brevity"]


def test_several_rewards_of_one_kind_have_names_of_their_own(tmp_path: Path) -> None:
    for file, factor in (("one.py", 1), ("two.py", 10)):
        (tmp_path / file).write_text(f"def tokens(response):\n    return {factor} * response.tokens\n")
    one, two = (f"{tmp_path / file}:tokens" for file in ("one.py", "two.py"))
    names = ["format:^a", "0.5*format:b$", "format:c.py:d", "length:10,5", "length:8,4", one, f"2*{two}"]
    task = ArithmeticTask(0, 1)
    scores = make_rewards(names, task).score([Response(task.problems[0], "ab", tokens=8)])
    given = {"format": 1, "format:b$": 1, "format:c.py:d": 0, "length": -0.6, "length:8,4": -1, "tokens": 8, two: 80}
    assert {name: values.tolist() for name, values in scores.parts.items()} == {name: [x] for name, x in given.items()}
    assert scores.values.tolist() == pytest.approx([1 + 0.5 - 0.6 - 1 + 8 + 160])
    with refused(ValueError):
        make_rewards(["format:^a", "format:b$", "2*format:b$"], task)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("beauty", ("'beauty'",)),
        ("length:10", ("length:LIMIT,SOFT", "length:30,10")),
        ("format:", ("format:REGEX",)),
        ("model", ("model:FOLDER",)),
        ("mine.py:f", ("mine.py",)),
        ("model:nowhere", ("config.json",)),
    ],
)
def test_unknown_names_are_refused(name: str, message: tuple[str, ...]) -> None:
    with refused(ValueError, *message):
        make_rewards([name], ArithmeticTask(0, 1))


def test_the_tasks_own_rule_needs_a_task_and_others_need_none() -> None:
    with refused(ValueError, "'task'", "make_rewards(names, task)"):
        make_rewards(["task"], None)
    make_rewards(["exact"], None).close()


def test_files_without_the_function_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("constant = 3\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with refused(ValueError, "mine.py", "'constant'"):
        make_rewards([f"{tmp_path / 'mine.py'}:constant"], ArithmeticTask(0, 1))
    with refused(ValueError, "broken.py", "ZeroDivisionError"):
        make_rewards([f"{tmp_path / 'broken.py'}:f"], ArithmeticTask(0, 1))

"""Training beside generation: what a wait says and what it does not, and steps that are no steady state."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.diagnosis.asynchronous import asynchronous
from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.logged_run import LoggedRun, Stated
from rlhfless.diagnosis.numbers import Collected
from rlhfless.diagnosis.phases import phases


def run_of(rows: list[dict[str, Any]], framework: str = "", **stated: Any) -> LoggedRun:
    """Return a run with these steps."""
    return LoggedRun(
        "log", framework, pd.DataFrame([{"step": at, **row} for at, row in enumerate(rows)]), stated=Stated(**stated)
    )


def found_in(run: LoggedRun) -> Collected:
    """Return what phases and waits say."""
    found = Collected()
    for section in (phases, asynchronous):
        found.add(section(run, found))
    for finding in found.findings:
        assert set(finding.proof) <= set(found.numbers)
    return found


def said(found: Collected) -> str:
    """Return everything that is said in words."""
    sentences = [one.sentence for one in found.findings] + [one.name for one in found.levers]
    return " ".join([*sentences, *found.cannot_say, *found.notes])


def test_a_wait_is_said_where_it_is_unknown_whether_the_two_sides_overlap() -> None:
    """slime's trainer logs it in both cases."""
    found = found_in(run_of([{"wait_s": 12.0, "learn_s": 3.0, "step_s": 15.0}] * 3, "slime"))
    (waiting,) = [one for one in found.findings if one.kind == "waiting"]
    assert waiting.at_stake == pytest.approx(0.8)
    assert "80%" in waiting.sentence
    assert "at most 20%" in waiting.sentence
    assert any("take turns or overlap" in one for one in found.cannot_say)


def test_sending_weights_counts_also_where_training_waits() -> None:
    found = found_in(run_of([{"wait_s": 2.0, "learn_s": 18.0, "sync_s": 60.0, "step_s": 82.0}] * 3, "verl"))
    assert [(one.kind, one.proof) for one in found.findings] == [("beside the step", ("sync_s", "step_s"))]
    assert found.findings[0].at_stake == pytest.approx(60 / 82)


def test_the_logged_pauses_of_generation_are_noted() -> None:
    found = found_in(run_of([{"wait_s": 0.0, "learn_s": 18.0, "step_s": 18.5, "generators_idle_rate": 0.25}] * 3, "verl"))
    assert "25.0%" in said(found)
    for share, words in ((0.0, "never paused"), (0.0002, "less than 0.1%")):
        steps = [{"wait_s": 0.0, "learn_s": 18.0, "step_s": 18.5, "generators_idle_rate": share}] * 3
        assert words in said(found_in(run_of(steps, "verl")))


def test_exposed_generation_is_what_training_waits_for_and_not_all_of_generation() -> None:
    found = found_in(
        run_of([{"step_s": 60.0, "wait_s": 24.0, "learn_s": 30.0, "prepare_s": 5.0}], gpus_generate=8, gpus_train=8)
    )
    numbers = found.numbers
    assert numbers.value("hidden_s") == pytest.approx(36)
    assert numbers.value("generation_rate_to_hide") == pytest.approx(60 / 36)
    assert numbers.value("loop_speedup_at_most") == pytest.approx(60 / 36)
    assert numbers.value("gpus_generate_to_hide") == 14, "8 times 1.67, rounded up"
    assert "generate_s" not in numbers
    assert "generate_share" not in numbers
    (waiting,) = [one for one in found.findings if one.kind == "waiting"]
    assert waiting.at_stake == pytest.approx(0.4)
    assert "1.67 times" in waiting.sentence
    assert not [one for one in found.findings if one.kind == "learner"], "a faster learner only waits longer"


def test_what_even_work_of_the_engines_gives_is_said_beside_what_is_needed() -> None:
    """Two workers with 11,000 and 9,000 tokens: their mean is 1/11 below the most."""
    step = {"step": 1, "step_s": 12.75, "wait_s": 6.5, "performance/average_token_imbalance": 1 / 11}
    found = found_in(run_of([step], "nemo-rl"))
    assert found.numbers["engine_tokens_apart_share"].value == pytest.approx(1 / 11)
    assert "Even work of all engines gives at most 1.10 times the throughput" in said(found)
    without = found_in(run_of([{**step, "performance/average_token_imbalance": float("nan")}], "nemo-rl"))
    assert "Even work" not in said(without)


def test_without_a_mean_length_no_schedule_can_be_simulated_and_what_would_tell_is_said() -> None:
    step = {"step": 1, "step_s": 12.75, "wait_s": 6.5}
    (unknown,) = [text for text in collect(run_of([step], "nemo-rl")).cannot_say if "schedules" in text]
    assert "train/mean_gen_tokens_per_sample of NeMo-RL" in unknown
    known = collect(run_of([{**step, "response_tokens_mean": 300.0}], "nemo-rl"))
    assert not [text for text in known.cannot_say if "schedules" in text]


def test_nearly_all_of_a_step_is_waiting() -> None:
    found = found_in(run_of([{"step_s": 200.0, "wait_s": 188.0}]))
    assert found.numbers.value("wait_share") == pytest.approx(0.94)
    assert found.numbers.value("generation_rate_to_hide") == pytest.approx(200 / 12)
    whole = found_in(run_of([{"step_s": 200.0, "wait_s": 200.0}]))
    assert "generation_rate_to_hide" not in whole.numbers, "there is nothing that generation could hide behind"
    assert whole.findings[0].kind == "waiting"


def test_no_wait_says_the_sign_of_the_surplus_only() -> None:
    rows = [{"step_s": 3000.0, "wait_s": 0.0, "learn_s": 2100.0, "prepare_s": 450.0, "sync_s": 300.0}]
    found = found_in(run_of(rows, gpus_generate=32, gpus_train=32))
    assert found.numbers.value("learner_share") == pytest.approx(0.85)
    assert found.numbers.value("moving_gpus_at_most_share") == pytest.approx(0.425)
    levers = {one.name: one.at_most for one in found.levers}
    assert levers["faster generation (GPUs, schedule, drafts)"] == 0
    assert levers["GPUs of generation to training"] == pytest.approx(0.425)
    assert "next GPU belongs to training" in said(found)
    assert any("surplus" in line for line in found.cannot_say)
    assert not {"tail", "engine"} & {one.kind for one in found.findings}


@pytest.mark.parametrize(("wait_s", "no_wait"), [(0.0004, True), (20.0, False)])
def test_a_wait_without_the_time_of_the_step(wait_s: float, no_wait: bool) -> None:
    found = found_in(run_of([{"wait_s": wait_s}]))
    assert ("next GPU belongs to training" in said(found)) is no_wait
    assert ("not logged" in said(found)) is not no_wait
    assert [(one.kind, one.at_stake) for one in found.findings] == ([("waiting", 0.0)] if no_wait else [])


def test_where_the_two_take_turns_there_is_no_wait_to_hide() -> None:
    found = found_in(run_of([{"step_s": 460.0, "wait_s": 375.0, "generate_s": 371.0, "learn_s": 85.0}], "slime"))
    assert "generation_rate_to_hide" not in found.numbers
    assert not [one for one in found.findings if one.kind == "waiting"]
    unknown = found_in(run_of([{"step_s": 460.0, "wait_s": 375.0, "learn_s": 85.0}], "slime"))
    assert "generation_rate_to_hide" not in unknown.numbers
    assert any("rollout_time" in line for line in unknown.cannot_say)


def test_steps_that_become_faster_while_responses_become_later_are_no_steady_state() -> None:
    rows = [{"step_s": step_s, "off_policy_steps": level} for level, step_s in enumerate((40.0, 30.0, 16.0))]
    found = found_in(run_of(rows))
    assert found.numbers.value("speedup_over_synchronous") == pytest.approx(120 / 86)
    assert "1.40 times" in said(found)
    assert "no steady state" in said(found)
    assert "steady_speedup" not in found.numbers, "the log ends before"
    later = found_in(run_of([*rows, *({"step_s": 25.0, "off_policy_steps": 2} for _ in range(4))]))
    assert later.numbers.value("steady_speedup") == pytest.approx(1.6)
    assert "1.60 times" in said(later)


def test_levels_that_do_not_rise_or_do_not_start_at_zero() -> None:
    same = found_in(run_of([{"step_s": 40.0, "off_policy_steps": 1}] * 4))
    assert "speedup_over_synchronous" not in same.numbers
    late = found_in(run_of([{"step_s": 40.0 - 9 * level, "off_policy_steps": level} for level in (1, 2, 3)]))
    assert "speedup_over_synchronous" not in late.numbers, "no step was synchronous"
    assert any("no steady state" in note for note in late.notes)


def test_a_first_step_whose_responses_were_there() -> None:
    rows = [{"step_s": 10.0, "wait_s": 0.0}, *({"step_s": 60.0, "wait_s": 45.0} for _ in range(6))]
    found = found_in(run_of(rows))
    assert any("in the queue" in note for note in found.notes)
    assert found.numbers.value("generation_rate_to_hide") == pytest.approx(4), "the first step is not in the means"
    assert not any("in the queue" in note for note in found_in(run_of([{"step_s": row["step_s"]} for row in rows])).notes)


def test_a_synchronous_log_says_nothing_here() -> None:
    run = run_of([{"step_s": 100.0, "generate_s": 60.0, "learn_s": 35.0}] * 3)
    assert not asynchronous(run, Collected()).numbers
    assert not asynchronous(run, Collected()).notes


MAYBE = st.one_of(st.floats(-1, 1e4), st.sampled_from([math.nan, math.inf, 0.0, 1e308]))
ROW = st.fixed_dictionaries({"step_s": MAYBE, "wait_s": MAYBE, "off_policy_steps": MAYBE, "learn_s": MAYBE})


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({"step_s": MAYBE, "wait_s": MAYBE, "off_policy_steps": MAYBE, "learn_s": MAYBE}), max_size=8
    ),
    st.one_of(st.none(), st.integers(1, 64)),
)
def test_whatever_is_logged_the_loop_is_no_faster_than_without_the_wait(rows: list[dict[str, float]], gpus: int | None) -> None:
    found = found_in(run_of(rows or [{}], gpus_generate=gpus, gpus_train=gpus))
    limit, share = found.numbers.value("loop_speedup_at_most"), found.numbers.value("wait_share")
    if limit is not None and share is not None:
        assert limit == pytest.approx(1 / (1 - share), rel=1e-6) or share > 1 - 1e-9
    assert all(0 <= one.at_most <= 1 for one in found.levers)
    assert all(0 <= one.at_stake <= 1 for one in found.findings)


def test_a_step_that_is_faster_by_weights_alone_did_not_drain_the_queue() -> None:
    def drained(sync: list[float], more: list[float]) -> list[str]:
        columns = {"step_s": [200.0 + a + b for a, b in zip(sync, more, strict=True)], "wait_s": 20.0, "sync_s": sync}
        steps = pd.DataFrame({"step": range(1, 5), **columns})
        return [note for note in asynchronous(LoggedRun("log", "verl", steps), Collected()).notes if "queue" in note]

    assert not drained([5.0, 200.0, 600.0, 1200.0], [0.0] * 4)
    assert drained([5.0, 200.0, 600.0, 1200.0], [0.0, 300.0, 320.0, 310.0])


def test_the_start_of_an_asynchronous_run_is_not_in_the_means_where_later_steps_are_logged() -> None:
    def step_s(seconds: list[float], levels: list[float]) -> float | None:
        steps = pd.DataFrame({"step": range(len(seconds)), "step_s": seconds, "off_policy_steps": levels})
        return collect(LoggedRun("log", "prime-rl", steps)).numbers.value("step_s")

    assert step_s([130.0, 50.0, 70.0, 74.0], [0.0, 1.0, 1.0, 1.0]) == pytest.approx(72.0)
    assert step_s([130.0, 50.0], [0.0, 1.0]) == pytest.approx(90.0)
    assert step_s([70.0, 72.0, 74.0], [1.0, 1.0, 1.0]) == pytest.approx(72.0)

"""Where the seconds of a step go: shares, what nobody named, Amdahl's limits, steps that differ, and impossible values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.diagnosis.diagnose import collect, ranked
from rlhfless.diagnosis.levers import with_lines
from rlhfless.diagnosis.logged_run import LoggedRun, Stated
from rlhfless.diagnosis.numbers import BOUND, Collected, Finding, Part
from rlhfless.diagnosis.phases import phases, step_bar, synchronous
from rlhfless.trace.importers import names


def run_of(columns: dict[str, Any], framework: str = "", **more: Any) -> LoggedRun:
    """Return a run whose steps have these columns; one number is the same in all of them."""
    return LoggedRun("log", framework, pd.DataFrame({"step": range(1, _length(columns) + 1)} | columns), **more)


def _length(columns: dict[str, Any]) -> int:
    return max((len(values) for values in columns.values() if hasattr(values, "__len__")), default=1)


def found_in(run: LoggedRun) -> tuple[dict[str, float], Part]:
    """Return the numbers of the section by key, and the part."""
    part = phases(run, Collected())
    return {one.key: one.value for one in part.numbers}, part


def of_kind(part: Part, kind: str) -> list[Finding]:
    """Return the findings of a kind, the most at stake first."""
    return sorted((one for one in part.findings if one.kind == kind), key=lambda one: -one.at_stake)


def test_shares_of_a_step_the_part_without_a_name_and_amdahls_limits() -> None:
    run = run_of({"step_s": [100.0, 100.0], "generate_s": [50.0, 54.0], "prepare_s": [8.0, 12.0], "learn_s": [30.0, 20.0]})
    numbers, part = found_in(run)
    assert numbers["step_s"] == 100
    assert numbers["generate_share"] == pytest.approx(0.52)
    assert (numbers["generate_least_share"], numbers["generate_most_share"]) == pytest.approx((0.5, 0.54))
    assert numbers["learner_share"] == pytest.approx(0.35)
    assert numbers["without_learner_speedup"] == pytest.approx(1 / 0.65)
    assert numbers["without_generate_speedup"] == pytest.approx(1 / 0.48)
    assert numbers["unnamed_s"] == pytest.approx(13)
    assert {one.key: one.evidence for one in part.numbers}["without_learner_speedup"] == BOUND
    (learner,) = of_kind(part, "learner")
    assert learner.at_stake == pytest.approx(0.35)
    assert len(learner.proof) == 2
    assert "1.54 times" in learner.sentence
    (unnamed,) = of_kind(part, "beside the step")
    assert unnamed.at_stake == pytest.approx(0.13)


def test_one_step_as_a_bar_has_the_frameworks_names_and_the_rest() -> None:
    own = {"timing_s/gen": 60.0, "timing_s/step": 100.0, "timing_s/old_log_prob": 5.0, "timing_s/ref": 4.0,
           "timing_s/update_actor": 20.0, "timing_s/dump": 2.0, "timing_s/generate_sequences": 55.0}  # fmt: skip
    standard = {"step_s": 100.0, "generate_s": 60.0, "prepare_s": 9.0, "learn_s": 20.0}
    bar = step_bar(run_of({**own, **standard, "x": [1.0]}, "verl"))
    seconds = dict(zip(bar["phase"], bar["seconds"], strict=True))
    assert seconds == pytest.approx({
        "timing_s/gen": 60, "timing_s/old_log_prob": 5, "timing_s/ref": 4, "timing_s/update_actor": 20, "timing_s/dump": 2,
        "not named": 9,
    })  # fmt: skip
    assert bar["share"].sum() == pytest.approx(1)
    numbers, _ = found_in(run_of({**own, **standard, "x": [1.0]}, "verl"))
    assert (numbers["named_s"], numbers["unnamed_s"]) == (91, 9)
    plain = step_bar(run_of(standard))
    assert dict(zip(plain["phase"], plain["seconds"], strict=True)) == pytest.approx(
        {"generation": 60, "rewards and log probabilities": 9, "learning": 20, "not named": 11}
    )
    without = run_of({"timing_s/gen": 3.0, "generate_s": 3.0, "x": [1]}, "verl")
    assert step_bar(without).empty, "without the time of the step its bar is unknown"
    assert "timing_s/step" in found_in(without)[1].cannot_say[0]


def test_several_runs_have_no_step_in_common() -> None:
    two = {"run": ["a", "b"], "step_s": [100.0, 300.0], "generate_s": [50.0, 100.0]}
    assert step_bar(run_of(two)).empty
    assert len(step_bar(run_of({**two, "run": ["a", "a"]}))) == 2


def test_a_phase_that_some_steps_lack_is_unknown_there() -> None:
    run = run_of({"step_s": [100.0] * 4, "generate_s": [60.0, 60.0, math.nan, math.nan], "learn_s": [30.0] * 3 + [math.nan]})
    numbers, part = found_in(run)
    assert numbers["unnamed_s"] == 10, "what is unknown is no part without a name"
    assert of_kind(part, "learner")[0].at_stake == pytest.approx(0.3)
    assert of_kind(part, "beside the step")[0].at_stake == pytest.approx(0.1)
    assert dict(zip(*(step_bar(run)[name] for name in ("phase", "seconds")), strict=True)) == pytest.approx(
        {"generation": 60, "learning": 30, "not named": 10}
    )


def test_a_large_part_that_only_the_framework_names() -> None:
    own = {"timing/train/total_step_time": 100.0, "timing/train/generation": 50.0, "timing/train/data_processing": 30.0}
    run = run_of({**own, "step_s": 100.0, "generate_s": 50.0, "perf/wait_time_ratio": 0.5, "x": [1]}, "nemo-rl")
    numbers, part = found_in(run)
    assert numbers["unnamed_s"] == 20
    assert [one.at_stake for one in of_kind(part, "beside the step")] == pytest.approx([0.3, 0.2])
    assert "data_processing" in of_kind(part, "beside the step")[0].sentence


def test_a_step_every_ten_is_slower_and_named() -> None:
    step_s = np.array([160.0 if step % 10 == 0 else 100.0 + step % 3 for step in range(1, 41)])
    numbers, part = found_in(run_of({"step_s": step_s, "generate_s": 60.0, "learn_s": 38.0}))
    assert numbers["step_s"] < 103, "four slow steps do not spoil the mean"
    assert numbers["step_most_s"] == 160
    assert any("every 10th step (10, 20, 30, 40)" in note.lower() for note in part.notes)
    slow = of_kind(part, "beside the step")[0]
    assert "every 10th step" in slow.sentence.lower()
    assert slow.at_stake == pytest.approx(4 * 58 / step_s.sum(), abs=0.01)


def test_a_first_step_that_compiles() -> None:
    numbers, part = found_in(
        run_of({"step_s": [400.0, *[100.0] * 9], "generate_s": [50.0] * 10, "learn_s": [350.0, *[50.0] * 9]})
    )
    assert numbers["step_s"] == 100
    assert any("Step 1" in note for note in part.notes)
    slow = [one for one in of_kind(part, "learner") if "Step 1" in one.sentence]
    assert [one.at_stake for one in slow] == [pytest.approx(300 / 1300)]


def test_of_few_steps_only_the_first_can_differ() -> None:
    assert found_in(run_of({"step_s": [300.0, 100.0, 101.0]}))[0]["step_s"] == pytest.approx(100.5)
    assert found_in(run_of({"step_s": [100.0, 300.0, 101.0]}))[0]["step_s"] == pytest.approx(167)
    assert found_in(run_of({"step_s": [300.0, 100.0]}))[0]["step_s"] == pytest.approx(200)


def test_validation_and_checkpoints_within_or_beside_the_step() -> None:
    step_s = [100.0, 100.0, 100.0, 100.0, 150.0] * 4
    testing = [math.nan] * 4 + [50.0]
    _, within = found_in(
        run_of({"step_s": step_s, "generate_s": 70.0, "learn_s": 29.0, "timing_s/testing": testing * 4}, "verl")
    )
    sentence = of_kind(within, "beside the step")[0].sentence
    assert "Validation takes" in sentence
    assert "200.0 s" in sentence
    outside = run_of(
        {"step_s": [100.0] * 20, "generate_s": 70.0, "learn_s": 29.0, "timing_s/save_checkpoint": [math.nan, 25.0] * 10}, "verl"
    )
    numbers, part = found_in(outside)
    assert (numbers["checkpoints_s"], numbers["checkpoints_total_s"], numbers["checkpoints_steps"]) == (25, 250, 10)
    assert numbers["all_steps_s"] == pytest.approx(112.5), "what is paid for a step, on average"
    assert "every 2nd step" in of_kind(part, "beside the step")[0].sentence
    (checkpoints,) = of_kind(part, "beside the step")
    assert checkpoints.at_stake == pytest.approx(250 / 2250)
    assert numbers["unnamed_s"] == pytest.approx(1), "what is beside the step is no part of it"


@pytest.mark.parametrize(("every", "named"), [(2, "2nd"), (3, "3rd"), (5, "5th"), (10, "10th")])
def test_the_step_is_an_ordinary_one_however_often_the_run_validates(every: int, named: str) -> None:
    """A mean over both kinds of steps is the time of none of them."""
    steps = np.arange(1, 41)
    validates = steps % every == 0
    run = run_of(
        {"step_s": np.where(validates, 150.0, 100.0), "generate_s": 70.0, "learn_s": 30.0,
         "timing_s/testing": np.where(validates, 50.0, np.nan)}, "verl"
    )  # fmt: skip
    numbers, part = found_in(run)
    assert numbers["step_s"] == 100
    assert numbers["generate_share"] == pytest.approx(0.7)
    assert (numbers["validation_s"], numbers["validation_total_s"]) == (50, 50 * validates.sum())
    assert numbers["all_steps_s"] == pytest.approx(100 + 50 * validates.mean())
    assert any(f"every {named} step" in note.lower() and "50.0 s are validation" in note for note in part.notes)
    (beside, *_) = of_kind(part, "beside the step")
    assert f"every {named} step" in beside.sentence
    assert beside.at_stake == pytest.approx(validates.sum() * 50 / (4000 + validates.sum() * 50))
    bar = step_bar(run)
    assert "validation" not in bar["phase"].tolist()
    assert bar["seconds"].sum() == pytest.approx(100)


def test_what_most_steps_have_is_a_part_of_an_ordinary_step() -> None:
    run = run_of({"step_s": 130.0, "generate_s": 70.0, "timing_s/save_checkpoint": [math.nan, *[30.0] * 9]}, "verl")
    numbers, _ = found_in(run)
    assert numbers["step_s"] == 130
    assert "checkpoints" in step_bar(run)["phase"].tolist()


def test_short_seconds_have_two_digits() -> None:
    _, part = found_in(run_of({"step_s": 0.2048, "generate_s": 0.15, "timing_s/update_actor": 0.0448}, "verl"))
    (unnamed,) = [one for one in of_kind(part, "beside the step") if "does not name" in one.sentence]
    assert "0.055 of 0.20 s" in unnamed.sentence


def test_every_second_step_is_slower_and_nothing_says_why() -> None:
    numbers, part = found_in(run_of({"step_s": [100.0, 160.0, 102.0, 158.0] * 4}))
    assert numbers["step_s"] == pytest.approx(101)
    (slow,) = of_kind(part, "beside the step")
    assert "Every 2nd step" in slow.sentence
    assert "that the log does not name" in slow.sentence
    assert slow.at_stake == pytest.approx(8 * 58 / (8 * 101 + 8 * 159))
    longer = {"step_s": [100.0, 160.0] * 8, "generate_s": [60.0, 120.0] * 8}
    assert found_in(run_of(longer))[0]["step_s"] == pytest.approx(130), "responses that are longer are no other kind of step"


def test_a_first_step_that_compiles_and_a_last_one_that_saves_beside_validation() -> None:
    step_s, testing = [100.0] * 20, [math.nan] * 20
    for at in range(4, 20, 5):
        step_s[at], testing[at] = 140.0, 40.0
    step_s[0], step_s[-1] = 400.0, 200.0
    numbers, part = found_in(run_of({"step_s": step_s, "generate_s": 60.0, "timing_s/testing": testing}, "verl"))
    assert numbers["step_s"] == 100
    assert any("every 5th step" in note.lower() and "40.0 s are validation" in note for note in part.notes)
    assert any(note.startswith("Step 1 takes 400.0 s") for note in part.notes)


def test_the_first_steps_of_an_asynchronous_run_do_not_compile() -> None:
    run = run_of({"step_s": [42.0, 16.0, 15.0, 15.5], "off_policy_steps": [0.0, 1.0, 2.0, 2.0]}, "prime-rl")
    assert not [one for one in found_in(run)[1].findings if "ompil" in one.sentence]


def test_phases_that_overlap_have_no_limits_and_no_bar() -> None:
    run = run_of({"step_s": [100.0] * 3, "generate_s": 80.0, "learn_s": 60.0})
    numbers, part = found_in(run)
    assert not part.findings
    assert "without_learn_speedup" not in numbers
    assert "unnamed_s" not in numbers
    assert max(value for key, value in numbers.items() if key.endswith("_share")) <= 1
    assert any("overlap" in note and "140.0 s" in note for note in part.notes)
    assert step_bar(run).empty


@pytest.mark.parametrize("impossible", [-5.0, math.inf, -math.inf])
def test_impossible_seconds_are_named_and_not_used(impossible: float) -> None:
    numbers, part = found_in(run_of({"step_s": [100.0, 100.0], "generate_s": [impossible, 60.0], "learn_s": [30.0, 30.0]}))
    assert numbers["generate_s"] == 60
    assert any("generate_s" in note and "step 1" in note and "not used" in note for note in part.notes)


def test_an_efficiency_above_one_and_a_phase_longer_than_the_step() -> None:
    _, part = found_in(run_of({"perf/mfu/actor": [0.4, 1.018]}))
    assert [note for note in part.notes if "perf/mfu/actor" in note and "step 2" in note]
    numbers, part = found_in(run_of({"step_s": [100.0], "learn_s": [130.0]}))
    assert not [key for key in numbers if key.startswith("learn")]
    assert any("longer than the whole step" in note for note in part.notes)


def test_where_training_waits_for_generation_a_faster_learner_wins_nothing() -> None:
    _, waits = found_in(run_of({"step_s": 100.0, "wait_s": 50.0, "learn_s": 45.0, "sync_s": 4.0, "x": [1]}))
    assert [one.proof for one in waits.findings] == [("sync_s", "step_s")], "while weights are sent, neither side works"
    _, none = found_in(run_of({"step_s": 100.0, "wait_s": 0.0, "learn_s": 95.0, "x": [1]}))
    assert of_kind(none, "learner")[0].at_stake == pytest.approx(0.95)


def test_without_the_seconds_of_a_step_the_largest_phase_is_said_and_what_is_missing() -> None:
    numbers, part = found_in(run_of({"generate_s": 30.0, "prepare_s": 10.0, "x": [1]}, "verl"))
    (finding,) = part.findings
    assert (finding.kind, finding.at_stake, finding.proof) == ("cannot say", 0.0, ("generate_s", "named_s"))
    assert numbers["named_s"] == pytest.approx(40)
    assert "40.0 s, 75% of them generation" in finding.sentence
    assert "timing_s/step" in finding.sentence
    _, alone = found_in(run_of({"prepare_s": 10752.0, "x": [1]}, "verl"))
    assert "10,752.0 s of rewards and log probabilities" in alone.findings[0].sentence


def test_taking_turns_is_generation_and_no_waiting() -> None:
    run = run_of({"step_s": 110.0, "wait_s": 82.0, "generate_s": 80.0, "learn_s": 28.0, "x": [1]}, "slime")
    assert synchronous(run)
    numbers, part = found_in(run)
    assert numbers["generate_share"] == pytest.approx(80 / 110)
    assert "wait_share" not in numbers
    assert numbers["unnamed_s"] == pytest.approx(2)
    assert of_kind(part, "learner")[0].at_stake == pytest.approx(28 / 110)


def test_weights_that_are_sent_while_training_waits() -> None:
    run = run_of({"step_s": 100.0, "wait_s": 40.0, "sync_s": 10.0, "learn_s": 60.0, "x": [1]}, "nemo-rl")
    bar = step_bar(run)
    assert dict(zip(bar["phase"], bar["seconds"], strict=True)) == pytest.approx(
        {"waiting for generation": 30, "sending weights": 10, "learning": 60, "not named": 0}
    )


def test_medians_do_not_add_up_so_nothing_is_left_over() -> None:
    run = run_of({"step_s": 100.0, "generate_s": 50.0, "median generation (s)": 50.0, "x": [1]})
    assert "not named" not in step_bar(run)["phase"].tolist()
    lengths = run_of({"step_s": 100.0, "generate_s": 50.0, "rollout/response_len/median": 50.0, "x": [1]})
    assert "not named" in step_bar(lengths)["phase"].tolist(), "a median of lengths is no median of seconds"
    numbers, part = found_in(run)
    assert not of_kind(part, "beside the step")
    assert "unnamed_s" not in numbers


def test_a_log_without_times_says_nothing() -> None:
    for run in (run_of({"reward_mean": [0.5]}), LoggedRun("log", "", pd.DataFrame({"step": []}), stated=Stated(gpus=8))):
        assert found_in(run) == ({}, Part())
        assert step_bar(run).empty


SECONDS = st.one_of(st.floats(-10, 1e5), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e308]))
NAMES = ["step_s", "generate_s", "wait_s", "prepare_s", "learn_s", "sync_s", "timing_s/testing", "perf/mfu"]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda n: st.dictionaries(
            st.sampled_from(
                ["step_s", "generate_s", "wait_s", "prepare_s", "learn_s", "sync_s", "timing_s/testing", "perf/mfu"]
            ),
            st.lists(SECONDS, min_size=n, max_size=n),
            min_size=1,
        )
    )
)
def test_whatever_is_logged_no_share_is_above_one_and_every_finding_has_its_proof(columns: dict[str, list[float]]) -> None:
    run = run_of(columns)
    numbers, part = found_in(run)
    assert all(0 <= value <= 1 + 1e-9 for key, value in numbers.items() if key.endswith("_share"))
    assert all(value >= 0 for value in numbers.values())
    for one in part.findings:
        assert 0 <= one.at_stake <= 1
        assert len(set(one.proof)) == 2
        assert set(one.proof) <= set(numbers)
    bar = step_bar(run)
    assert (bar["share"] >= 0).all()
    assert bar["share"].sum() <= 1.02


def test_the_learner_beside_generation_wins_no_more_than_generation_allows() -> None:
    run = run_of({"step_s": 152.0, "wait_s": 1.0, "generate_s": 90.0, "learn_s": 150.0, "x": [1]}, "slime")
    assert synchronous(run) is False
    (learner,) = of_kind(found_in(run)[1], "learner")
    assert learner.at_stake == pytest.approx(1 - 90 / 152), "generation takes 90 s whatever the learner does"
    assert "1.69 times" in learner.sentence
    assert "follows generation" not in learner.sentence, "it goes on beside it"


def test_a_phase_is_a_share_of_the_run_that_validation_is_a_part_of() -> None:
    testing = [math.nan, 100.0] * 6
    run = run_of({"step_s": [100.0, 200.0] * 6, "generate_s": 40.0, "learn_s": 60.0, "timing_s/testing": testing}, "verl")
    numbers, part = found_in(run)
    assert numbers["ordinary_steps_share"] == pytest.approx(1200 / 1800)
    (learner,) = of_kind(part, "learner")
    assert learner.at_stake == pytest.approx(12 * 60 / 1800)
    assert "60% of a step, 60.0 of 100.0 s" in learner.sentence
    assert sum(one.at_stake for one in part.findings) == pytest.approx(0.4 + 600 / 1800)


def test_a_step_that_saves_is_not_slow_for_another_reason() -> None:
    saves = [math.nan] * 11 + [50.0]
    run = run_of({"step_s": [180.0, *[100.0] * 10, 150.0], "generate_s": 50.0, "learn_s": [130.0, *[50.0] * 11],
                  "timing_s/save_checkpoint": saves}, "verl")  # fmt: skip
    slow = [one for one in found_in(run)[1].findings if "longer than the others" in one.sentence]
    assert [one.sentence.split(" takes")[0] for one in slow] == ["Step 1"]


def test_a_validation_before_the_first_step_is_a_part_of_the_run() -> None:
    run = run_of({"step_s": [math.nan, *[100.0] * 4], "generate_s": [math.nan, *[90.0] * 4],
                  "timing_s/testing": [80.0, *[math.nan] * 4]}, "verl")  # fmt: skip
    numbers, part = found_in(run)
    assert (numbers["step_s"], numbers["validation_s"]) == (100, 80)
    (validation,) = [one for one in part.findings if "Validation" in one.sentence]
    assert validation.at_stake == pytest.approx(80 / 480)


def test_a_learner_that_is_the_whole_step_beside_generation_is_bound_by_it() -> None:
    run = run_of({"step_s": [120.0, 130.0], "wait_s": 0.0, "generate_s": 100.0, "learn_s": [120.0, 130.0]}, "slime")
    (learner,) = of_kind(found_in(run)[1], "learner")
    assert learner.at_stake == pytest.approx(1 - 100 / 125)
    assert "1.25 times" in learner.sentence


def test_steps_without_any_named_part_are_not_said_to_lack_names() -> None:
    run = run_of({"step_s": [80.0, 81.0, 79.0], "wait_s": 0.0})
    said = ranked(collect(run).findings)
    assert said[0].kind == "waiting"
    assert not any("not name" in one.sentence for one in said)
    assert step_bar(run).empty
    some = run_of({"step_s": [80.0, 81.0, 79.0], "generate_s": 20.0})
    assert any("not name" in one.sentence for one in found_in(some)[1].findings)


def test_a_phase_that_grows_or_shrinks_with_every_step_is_said_with_its_ends() -> None:
    def said(**columns: Any) -> list[str]:
        return [note for note in found_in(run_of(columns))[1].notes if "every logged step" in note]

    (note,) = said(step_s=[300.0, 450.0, 900.0], generate_s=[240.0, 390.0, 840.0], learn_s=[50.0, 51.0, 49.0])
    assert "generation grows" in note.lower()
    assert "240.0 to 840.0 s" in note
    assert "learning" not in note
    (note,) = said(generate_s=[900.0, 400.0, 200.0])  # without the step, too
    assert "shrinks" in note
    assert not said(step_s=[300.0, 900.0, 450.0], generate_s=[240.0, 840.0, 390.0])
    assert not said(step_s=[300.0, 450.0], generate_s=[100.0, 390.0])
    assert not said(step_s=[300.0, 300.0, 300.0], generate_s=[200.0, 200.0, 200.0], sync_s=[0.1, 0.2, 0.3])


def verl(**own: float) -> LoggedRun:
    """Return one step as verl logs it, with its own names and the standard columns that they are read as."""
    values = {f"timing_s/{name}": seconds for name, seconds in own.items()}
    return run_of({**names.NAMES["verl"].standard(values), **values}, "verl")


def test_rewards_that_are_most_of_what_follows_generation_have_their_own_name_and_lever() -> None:
    found = collect(verl(gen=100.0, ref=20.0, adv=500.0, update_actor=80.0, step=710.0))
    (learner,) = [one for one in found.findings if one.kind == "learner"]
    assert "adv (500.0 s)" in learner.sentence
    assert found.numbers.value("rewards_share") == pytest.approx(500 / 710)
    levers = with_lines(found.levers, "verl")
    (rewards,), (rest,) = ([one for one in levers if one.kind == kind] for kind in ("rewards", "learner"))
    assert "reward" in rewards.name
    assert "launch_reward_fn_async" in rewards.line
    assert (rewards.at_most, rest.at_most) == pytest.approx((500 / 710, 100 / 710))


def test_log_probabilities_that_are_most_of_it_are_named_and_keep_the_lever_of_learning() -> None:
    found = collect(verl(gen=100.0, old_log_prob=300.0, adv=5.0, update_actor=80.0, step=500.0))
    (learner,) = [one for one in found.findings if one.kind == "learner"]
    assert "old_log_prob (300.0 s)" in learner.sentence
    assert "rewards_share" not in found.numbers
    (lever,) = [one for one in found.levers if one.kind == "learner"]
    assert lever.at_most == pytest.approx(learner.at_stake)


def test_where_learning_is_most_of_it_both_parts_are_said() -> None:
    found = collect(verl(gen=100.0, old_log_prob=40.0, adv=5.0, update_actor=300.0, step=500.0))
    (learner,) = [one for one in found.findings if one.kind == "learner"]
    assert "learning 300.0 s" in learner.sentence


def test_a_phase_under_a_name_that_nobody_knows_is_named_by_it() -> None:
    run = run_of({"step_s": [100.0, 110.0], "learn_s": 10.0, "juggle_things (s)": [80.0, 100.2], "elapsed (s)": [3.0, 4.0]})
    found = phases(run, Collected()).findings
    assert any("juggle_things takes 86% of a step" in one.sentence for one in found)
    assert not any("elapsed" in one.sentence for one in found)
    assert "juggle_things" in set(step_bar(run)["phase"])
    too_long = run_of({"step_s": [100.0, 110.0], "learn_s": 10.0, "whatever (s)": [80.0, 200.0]})
    assert not any("whatever" in one.sentence for one in phases(too_long, Collected()).findings)


def test_validation_beside_a_single_step_is_no_share_of_the_run() -> None:
    own = {"timing/step": [200.0], "timing/eval": [300.0], "timing/generate": [120.0], "timing/policy_train": [60.0]}
    columns = {"step_s": [200.0], "generate_s": [120.0], "learn_s": [60.0], **own}
    numbers, part = found_in(run_of(columns, "skyrl"))
    assert not any("alidation" in one.sentence for one in part.findings)
    assert any("300.0 s" in note for note in part.notes)
    assert numbers["validation_s"] == 300
    (learner,) = of_kind(part, "learner")
    assert learner.at_stake == pytest.approx(0.3)
    twice = run_of({name: [*values, *values] for name, values in columns.items()}, "skyrl")
    assert any("Validation takes 60% of the run's time" in one.sentence for one in phases(twice, Collected()).findings)

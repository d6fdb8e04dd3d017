"""A diagnosis as text, JSON and frame: what is unknown is absent, texts are escaped, groups without signal are counted."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from rlhfless.diagnosis import EVIDENCE, Diagnosis, Finding, Number, Stated, diagnose
from rlhfless.diagnosis.diagnose import collect, ranked
from rlhfless.diagnosis.levers import with_lines
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import RESPONSES, SHARES_OF, Numbers, number
from rlhfless.diagnosis.phases import step_bar
from rlhfless.trace import read_trace


def log(**columns: object) -> pd.DataFrame:
    """Return two prompts of two responses each."""
    return pd.DataFrame(
        {"step": 0, "prompt_id": ["a", "a", "b", "b"], "sample": [0, 1, 0, 1], "response_tokens": [9, 10, 11, 100], **columns}
    )


def test_json_has_a_version_and_units_and_the_evidence_of_each_number() -> None:
    said = json.loads(diagnose(log()).to_json())
    assert (said["schema"], said["version"]) == ("rlhfless-diagnosis", 3)
    assert said["numbers"]["response_tokens_mean"]["low"] == 32.5
    assert {one["evidence"] for one in said["numbers"].values()} <= set(EVIDENCE)
    assert all({"kind", "at_stake_share", "at_stake_of", "sentence", "proof"} == set(one) for one in said["findings"])
    assert all(key in said["numbers"] for one in said["findings"] for key in one["proof"])
    assert "cut_share" not in said["numbers"], "unknown is absent, never 0 or null"


def test_a_mean_over_steps_is_derived_and_a_single_value_is_logged() -> None:
    steps = pd.DataFrame(
        {"step": [1, 2, 3], "step_s": [10.0, 12.0, 11.0], "generate_s": [5.0, float("nan"), float("nan")],
         "response_tokens_mean": [100.0, 110.0, 120.0], "truncation_rate": [0.1, 0.2, 0.3], "tokens_per_gpu_s": 50.0}
    )  # fmt: skip
    numbers = collect(LoggedRun("log", "", steps)).numbers
    assert (numbers["step_s"].value, numbers["step_s"].evidence) == (11, "derived")
    assert numbers["step_most_s"].evidence == "logged"
    assert numbers["generate_s"].evidence == "logged", "one step has it"
    for key in ("response_tokens_mean", "cut_share", "tokens_per_gpu_s"):
        assert numbers[key].evidence == "derived"
        assert "3 steps" in numbers[key].how


def test_every_share_says_what_it_is_a_share_of() -> None:
    alone, timed = log(), log(reward=[1.0, 1.0, 0.0, 0.0], finish_reason=["stop", "length"] * 2)
    for said in (diagnose(alone).to_dict(), diagnose(timed).to_dict()):
        assert said["findings"]
        assert said["levers"]
        assert all(one["at_stake_of"] in SHARES_OF for one in said["findings"])
        assert all(one["at_most_of"] in SHARES_OF for one in said["levers"])
        assert all(one["unit"] for one in said["numbers"].values())
    of = {one["kind"]: one["at_stake_of"] for one in diagnose(timed).to_dict()["findings"]}
    assert (of["limit"], of["groups"]) == ("responses", "responses")
    assert of["tail"] == "time of generation", "what share of the run generation is, nobody says"
    with pytest.raises(ValueError, match="shares are of"):
        Finding("tail", 0.5, "A sentence.", (), of="money")


def test_a_slow_engine_is_said_before_the_tail_and_a_limit_that_is_at_most_what_it_costs() -> None:
    tail, limit = Finding("tail", 0.6, "Tail.", ()), Finding("limit", 0.1, "Limit.", ())
    slow, memory = Finding("engine", 0.3, "Slow.", ()), Finding("memory", 0.2, "Memory.", ())
    learner = Finding("learner", 0.7, "Learner.", ())
    assert ranked([tail, limit, memory, slow, learner]) == (learner, slow, limit, tail, memory)


def test_each_lever_is_there_once_with_the_line_of_the_framework() -> None:
    steps = pd.DataFrame(
        {"step": range(1, 13), "step_s": [200.0, *[100.0] * 10, 160.0], "generate_s": 40.0, "sync_s": 10.0,
         "learn_s": [150.0, *[50.0] * 11], "timing_s/testing": [float("nan")] * 11 + [60.0]}
    )  # fmt: skip
    levers = with_lines(collect(LoggedRun("log", "verl", steps)).levers, "verl")
    assert len({lever.name for lever in levers}) == len(levers)
    lines = {lever.name: lever.line for lever in levers}
    assert lines["validate less often"] == "trainer.test_freq"
    assert [lever.kind for lever in levers].count("learner") == 1, "a first step that compiles is no slow learner"


@pytest.mark.parametrize(
    ("framework", "line"),
    [
        ("verl", "use_dynamic_bsz=True"), ("slime", "--max-tokens-per-gpu"), ("areal", "max_tokens_per_mb"),
        ("trl", "per_device_train_batch_size"), ("roll", "use_dynamic_batching_in_train"), ("table", ""), ("", ""),
    ],
)  # fmt: skip
def test_levers_have_the_line_of_each_framework(framework: str, line: str) -> None:
    steps = pd.DataFrame({"step": [1, 2], "step_s": 100.0, "generate_s": 40.0, "prepare_s": 30.0, "learn_s": 30.0})
    found = collect(LoggedRun("log", framework, steps)).levers
    lines = {lever.name.partition(" (")[0]: lever.line for lever in with_lines(found, framework)}
    said = lines["make learning and log probabilities faster"]
    assert (line in said) if line else said == ""


def test_a_missing_line_is_words_in_the_text_and_absent_in_the_json() -> None:
    steps = pd.DataFrame({"step": [1, 2], "step_s": 100.0, "generate_s": 40.0, "learn_s": 60.0})
    said = replace(diagnose(log()), framework="prime-rl", levers=tuple(collect(LoggedRun("log", "prime-rl", steps)).levers))
    assert "[we know no setting of prime-rl for this]" in str(said)
    assert all("line" not in one for one in said.to_dict()["levers"])
    assert "we know no setting" not in str(replace(said, framework="")), "nobody knows its settings"


def test_the_lever_of_packing_says_what_its_most_assumes() -> None:
    steps = pd.DataFrame({"step": [0], "response_tokens_mean": 830.0, "response_tokens_max": 1000.0})
    (lever,) = [
        one for one in collect(LoggedRun("log", "trl", steps, stated=Stated(gpus=8))).levers if one.kind == "assignment"
    ]
    assert lever.at_most == 0.875
    assert lever.price.endswith("it saves the most only if 1 replica generated all responses as fast as the 8 do now")


def test_a_share_of_responses_is_ranked_by_the_time_that_it_costs() -> None:
    groups = Finding("groups", 0.81, "Groups.", (), RESPONSES, time_share=0.15)
    engine, learner = Finding("engine", 0.56, "Slow.", ()), Finding("learner", 0.19, "Learner.", ())
    unknown = Finding("groups", 0.9, "Groups whose learning nobody timed.", (), RESPONSES)
    assert ranked([groups, unknown, learner, engine]) == (engine, learner, groups, unknown)
    said = replace(diagnose(log()), findings=(learner, groups))
    assert [one.kind for one in said.verdict] == ["learner", "groups"], "15 % of the time is nearly 19 %"
    assert [one.kind for one in replace(said, findings=(engine, groups)).verdict] == ["engine"]


def test_what_the_log_cannot_say_is_shown_and_is_no_verdict() -> None:
    alone = Finding("cannot say", 0.0, "A step takes 5 s.", ())
    said = replace(diagnose(log()), findings=(alone,))
    assert (said.verdict, said.to_dict()["verdict"]) == ((), [])
    assert str(said).startswith("What limits this run: A step takes 5 s.")


def test_the_kinds_of_a_step_are_those_of_the_keys_of_its_numbers() -> None:
    steps = pd.DataFrame({"step": [1, 2], "step_s": 100.0, "generate_s": 40.0, "prepare_s": 10.0, "learn_s": 45.0})
    run = LoggedRun("log", "", steps)
    said = replace(diagnose(log()), step=step_bar(run)).to_dict()["step"]
    assert [one.get("kind") for one in said] == ["generate", "prepare", "learn", None], "what the log does not name has none"
    assert all(f"{one['kind']}_s" in collect(run).numbers for one in said if "kind" in one)


def test_phases_that_overlap_already_are_not_advised_to() -> None:
    steps = pd.DataFrame({"step": [1, 2], "step_s": 50.0, "generate_s": 45.0, "learn_s": 40.0})
    assert "asynchrony" not in [one.kind for one in collect(LoggedRun("log", "", steps)).levers]


def test_what_is_at_stake_is_absent_where_nobody_can_say(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    table.write_text("step,timing/wait_for_generation_buffer\n1,0.0\n2,0.001\n")
    (waiting,) = diagnose(table).to_dict()["findings"]
    assert waiting["kind"] == "waiting"
    assert not {"at_stake_share", "at_stake_of"} & set(waiting)


def test_groups_of_equal_rewards_are_counted() -> None:
    said = diagnose(log(reward=[1.0, 1.0, 0.0, 1.0]))
    assert said.numbers["no_signal_share"].value == 0.5
    assert "groups" in [one.kind for one in said.findings]


def test_rounds_of_generation_are_no_slow_engine(tmp_path: Path) -> None:
    """verl's DAPO generates until enough prompts have a signal, and logs the seconds of all rounds as one sum."""
    of_step = {
        "critic/score/mean": 0.2, "response_length/mean": 2000.0, "response_length/max": 10_000.0, "timing_s/gen": 900.0,
        "timing_s/update_actor": 250.0, "timing_s/step": 1200.0,
    }  # fmt: skip
    path = tmp_path / "run.log"

    def said_of(scalars: dict[str, float]) -> Diagnosis:
        path.write_text("step:3 - " + " - ".join(f"{name}:{value}" for name, value in scalars.items()) + "\n")
        return diagnose(path, Stated(gpus=8, responses_per_step=128))

    assert "engine" in [one.kind for one in said_of(of_step).findings]
    said = said_of({**of_step, "train/num_gen_batches": 5.0})
    assert said.numbers["ms_per_token"].value == pytest.approx(18)
    assert said.numbers["generation_round_s"].value == 180
    (rounds,) = [one for one in said.findings if one.kind == "groups"]
    assert rounds.at_stake == pytest.approx(4 / 5 * 900 / 1200)
    assert "5.0" in rounds.sentence
    assert not [one for one in said.levers if one.kind == "groups"], "they are filtered already"
    once = said_of({**of_step, "train/num_gen_batches": 1.0})
    assert "engine" in [one.kind for one in once.findings]
    assert "groups" not in [one.kind for one in once.findings]


def test_levers_take_expected_savings_by_kind_and_small_ones_are_one_row() -> None:
    said = diagnose(log())
    expected = said.with_expected({said.levers[0].kind: (0.05, 0.1)})
    assert expected.levers[0].expected == (0.05, 0.1)
    assert "5% to 10% expected (simulated)" in str(expected)
    assert "expected" not in str(said)


def test_nothing_but_equal_lengths_is_a_log_that_cannot_say() -> None:
    said = diagnose(pd.DataFrame({"step": 0, "prompt_id": [0, 1], "sample": 0, "response_tokens": [5, 5]}))
    assert said.verdict == ()
    assert "cannot say what limits the run" in str(said)


def test_names_from_logs_are_escaped_in_a_notebook() -> None:
    frame = log().assign(run="<script>alert(1)</script>")
    both = pd.concat([frame, log().assign(run="b")], ignore_index=True)
    said = diagnose(both)
    assert len(said.runs) == 2
    assert "<script>" not in said._repr_html_()
    assert "&lt;script&gt;" in said._repr_html_()


@pytest.mark.parametrize(("low", "high"), [(float("nan"), 1.0), (0.0, float("inf")), (2.0, 1.0)])
def test_numbers_are_finite_and_in_order(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="ascending order"):
        Number("share", low, high, "logged", "the log")


def test_a_number_is_there_once() -> None:
    numbers = Numbers([number("step_s", 1.0, "logged", "the log")])
    with pytest.raises(ValueError, match="step_s"):
        numbers.add([number("step_s", 2.0, "logged", "the log")])


def test_a_step_of_less_than_a_second_is_no_tail_of_0_s() -> None:
    trace = read_trace(Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo")
    generated = replace(trace, allocations=trace.allocations.iloc[:0], spans=trace.spans.iloc[:0])
    sentence = next(one.sentence for one in diagnose(generated).findings if one.kind == "tail")
    tail_s, generation_s = map(float, re.findall(r"(\d\.\d\d)", sentence)[:2])
    assert 0 < tail_s < generation_s < 1

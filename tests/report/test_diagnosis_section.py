"""The first section of a page: the verdict, levers with what they are expected to save, and nothing of assumed GPUs."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused_command
from report_setting import sixteen_l40s

from rlhfless.analysis import Assumptions, PhaseSeconds
from rlhfless.analysis.assumptions import PROFILE
from rlhfless.diagnosis import Diagnosis, Stated, diagnose
from rlhfless.diagnosis.numbers import GENERATION_TIME, TIME, Lever
from rlhfless.latency.held_out_errors import HeldOut
from rlhfless.report.expected import expected_in_words, with_expected, with_simulated
from rlhfless.report.study import Findings, study
from rlhfless.report.write import make_report
from rlhfless.simulate import simulate
from rlhfless.trace import OpenedLog, Trace


def log(steps: int = 3) -> Trace:
    """Return steps of 64 responses with one long one each, without times."""
    tokens = [100 + prompt for prompt in range(63)] + [1500]
    rows = [{"step": step, "prompt_id": prompt, "sample": 0, "response_tokens": tokens[prompt], "prompt_tokens": 20}
            for step in range(steps) for prompt in range(64)]  # fmt: skip
    return Trace(pd.DataFrame(rows))


def words(page: str) -> str:
    body = page[page.index("<body>") : page.index("<script>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def titles(page: str) -> list[str]:
    return re.findall(r"<h2 id=\"[^\"]+\">(.*?)</h2>", page)


def test_without_gpus_the_page_is_the_diagnosis_and_says_what_simulates_more() -> None:
    page = make_report(log()).html
    assert titles(page) == ["What limits this run", "Other schedules and settings", "Assumptions and method"]
    assert "--gpus" in words(page)
    assert "L40S" not in words(page), "no GPUs are assumed"
    assert "The long tail" in words(page)
    assert "steps 1 (step 0)" in words(make_report(log(1)).html)
    assert "expected (simulated)" not in words(page)


def test_a_page_says_first_whose_gpus_it_has_and_leaves_names_of_the_log_as_they_are(tmp_path: Path) -> None:
    console = tmp_path / "console.log"
    console.write_text(VERL.replace("timing_s/gen", "perf/mfu/actor:1.2 - timing_s/gen") + SLIME)
    done = run_rlhfless("report", str(console), "--gpus", "8", "-o", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    first, *lines = done.stdout.splitlines()
    assert first.startswith("Read: frameworks: read as the console of verl; lines of slime are left out"), "before all else"
    assert sum("lines of slime" in line for line in lines) == 0
    assert "GPUs: 8, as you stated, not in the log" in lines
    text = words((tmp_path / "page.html").read_text())
    assert text.index("lines of slime are left out") < text.index("GPUs: 8, as you stated, not in the log.")
    limit = next(line for line in lines if line.startswith("What limits this run: ")).partition(": ")[2]
    assert text.index("GPUs: 8, as you stated") < text.index(limit[:30])
    assert " perf/mfu/actor is 1.2" in text, "a name of the log is no sentence to be capitalised"


def test_scalars_are_not_simulated_unless_asked(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    pd.DataFrame(
        {"step": [0, 1], "seconds per step": [100.0, 110.0], "response_length/mean": 200.0, "response_length/max": 900.0}
    ).to_csv(table, index=False)
    out = tmp_path / "page.html"
    done = run_rlhfless("report", str(table), "-o", str(out), "--gpus", "8")
    assert done.exit_code == 0, done.output
    assert "What limits this run" in done.stdout
    assert "Simulated: The log has no responses, so no schedule is simulated. With --simulate" in done.stdout
    assert titles(out.read_text())[:2] == ["What limits this run", "Other schedules and settings"]
    refused_command(run_rlhfless("report", str(table), "-o", str(out), "--simulate"), "--responses-per-step")


VERL = (
    "(TaskRunner pid=1) step:1 - global_seqlen/mean:6400.0 - response_length/mean:150.0 - response_length/max:600.0 - "
    "response_length/min:9.0 - response_length/clip_ratio:0.0 - prompt_length/mean:50.0 - timing_s/gen:12.0 - "
    "timing_s/update_actor:10.0 - timing_s/step:22.0\n"
)
"""A line of verl's console, without the tokens of all GPUs together."""
SLIME = "(RolloutManager pid=2) [2026-04-01 10:00:00] rollout.py:10 - perf 1: {'perf/rollout_time': 371.0}\n"


def test_gpus_tell_the_responses_of_a_step_and_draws_use_them(tmp_path: Path) -> None:
    console = tmp_path / "console.log"
    console.write_text(VERL)
    assert "--responses-per-step or --gpus would tell" in run_rlhfless("report", str(console)).stdout
    out = tmp_path / "page.html"
    done = run_rlhfless("report", str(console), "--gpus", "2", "--simulate", "--steps", "1", "-o", str(out))
    assert done.exit_code == 0, done.output
    assert "Simulated: With drawn lengths, schedules on the same GPUs save " in done.stdout
    page = words(out.read_text())
    assert "a step has 64 responses, which the diagnosis derived: responses per GPU on 2 GPUs" in page
    assert "stands in for your model and GPUs" in page
    assert "RLHFless report: " + f"{tmp_path.name}/console.log (verl)" in page
    assert "before scaling by " in page, "the times of the report are those of the log"
    assert "contradiction" not in page
    assert "Stragglers" not in page, "nobody knows which prompt had a drawn length"
    assert "From the log response lengths" not in page


def test_a_kind_of_gpu_without_a_model_is_not_ignored_silently(tmp_path: Path) -> None:
    console = tmp_path / "console.log"
    console.write_text(VERL)
    done = run_rlhfless("report", str(console), "--gpus", "2", "--gpu", "h100")
    assert done.exit_code == 0, done.output
    assert "--gpu h100 has no effect; it needs --model" in done.stderr
    assert "--gpu" not in run_rlhfless("report", str(console), "--gpus", "2").stderr


def test_a_page_of_scalars_says_which_options_draw_lengths(tmp_path: Path) -> None:
    table, out = tmp_path / "steps.csv", tmp_path / "page.html"
    pd.DataFrame({"step": [0, 1], "seconds per step": 100.0, "response_length/mean": 200.0}).to_csv(table, index=False)
    assert run_rlhfless("report", str(table), "-o", str(out), "--gpus", "8").exit_code == 0
    assert (
        "With --simulate, --gpus, --max-response-tokens and --responses-per-step (--samples-per-prompt, too, where you know "
        "it), lengths are drawn"
    ) in words(out.read_text())
    refused_command(
        run_rlhfless("report", str(table), "-o", str(out), "--gpus", "8", "--simulate"),
        "--max-response-tokens N and the responses of a step with --responses-per-step N",
    )


@pytest.fixture(scope="module")
def timed() -> OpenedLog:
    """A log whose steps took what a profile says of them, twice as long, so that the profile beats a constant."""
    trace = log()
    setting = replace(sixteen_l40s(), bound_work=0)
    rows = trace.rollouts.assign(response_tokens=lambda t: (t["response_tokens"] * (1 + t["step"])).astype(int))
    took = simulate(rows, setting, ["static"]).table
    scalars = pd.DataFrame({"step": took["step"], "generate_s": 2 * took["time_s"], "step_s": 4 * took["time_s"].to_numpy()})
    return OpenedLog(Trace(rows), scalars, "")


@pytest.fixture(scope="module")
def findings(timed: OpenedLog) -> Findings:
    setting = replace(sixteen_l40s(), bound_work=0)
    return study(timed, setting, Assumptions(dispatch="static"), 3)


def checked(findings: Findings, errors: list[float], constant: list[float]) -> Findings:
    """The findings as if the profile had been checked with these errors on held-out steps."""
    seconds = np.full(len(errors), 100.0)
    held = HeldOut(
        np.arange(len(errors)), seconds, seconds * (1 + np.array(errors)), seconds * (1 + np.array(constant)), "each"
    )
    return replace(
        findings, times=replace(findings.times, calibrated=replace(findings.times.calibrated, steps=len(errors), checked=held))
    )


def expected(said: Diagnosis) -> dict[str, tuple[float, float]]:
    return {one.kind: one.expected for one in said.levers if one.expected is not None}


def test_savings_are_expected_only_of_a_profile_that_beats_a_constant(timed: OpenedLog, findings: Findings) -> None:
    said = diagnose(timed)
    assert {"partial rollout", "assignment", "release"} <= set(expected(with_expected(said, findings)))
    assert expected_in_words(with_expected(said, findings), findings).endswith("are simulated.")
    unchecked = replace(
        findings, times=replace(findings.times, calibrated=replace(findings.times.calibrated, steps=0, checked=None))
    )
    assert expected(with_expected(said, unchecked)) == {}
    for why, other in (
        ("none of its steps", unchecked), ("a constant", checked(findings, [0.2, 0.2], [0.01, 0.01])),
        ("1 step alone", checked(findings, [0.01], [0.2])), ("drawn", replace(findings, drawn="Lengths are drawn.")),
    ):  # fmt: skip
        assert why in expected_in_words(with_expected(said, other), other)
    assert expected(with_expected(said, checked(findings, [0.2, 0.2], [0.01, 0.01]))) == {}
    assert expected(with_expected(said, checked(findings, [0.01], [0.2]))) == {}, "one step was held out of nothing"
    assert expected(with_expected(said, replace(findings, drawn="Lengths are drawn."))) == {}


def test_what_was_simulated_stands_beside_the_arithmetic(timed: OpenedLog, findings: Findings) -> None:
    order = Lever(
        "assignment", "start long responses first", 0.9, "none", TIME if findings.times.whole_steps else GENERATION_TIME
    )
    learn = Lever("learner", "learn faster", 0.9, "none")
    said = with_simulated(replace(diagnose(timed), levers=(order, learn)), findings)
    most = float(findings.reserved["time most"].max())
    assert [one.kind for one in said.levers] == ["learner", "assignment"], "they are sorted by the tighter bound"
    assert [one.simulated_most for one in said.levers] == [None, most], "schedules do not make learning faster"
    assert f": at most {most:.0%} of the {order.of} at simulated times (90% by arithmetic)" in str(said)
    assert said.to_dict()["levers"][1]["simulated_at_most_share"] == most
    sentence = dict(said.lines())["Simulated"]
    assert sentence.startswith("Schedules on the same GPUs save ")
    assert "(profile " in sentence, "a profile that was named is no stand-in"
    drawn = with_simulated(diagnose(timed), replace(findings, drawn="Drawn.", not_stated={PROFILE: "the speed of another"}))
    assert drawn.simulated.startswith("With drawn lengths, schedules ")
    assert "stand-in profile" in drawn.simulated
    loose = with_simulated(replace(diagnose(timed), levers=(replace(order, at_most=most / 2),)), findings)
    assert loose.levers[0].simulated_most is None, "arithmetic allows less"
    assert with_simulated(said, replace(findings, reserved=findings.reserved.iloc[:0])) is said


def test_a_better_order_of_a_queue_saves_what_simulation_allows(timed: OpenedLog, findings: Findings, tmp_path: Path) -> None:
    """The headline and the first row have the tighter bound, and name the one of arithmetic beside it."""
    console = tmp_path / "console.log"
    console.write_text(VERL.replace("global_seqlen/mean:6400.0", "global_seqlen/mean:200000.0"))
    said = diagnose(console, Stated(gpus=2))
    least_s = said.numbers.value("step_ordered_least_s")
    assert least_s is not None
    by_arithmetic = f"{1 - least_s / 22.0:.0%}"
    assert f"a better order saves 0 to {by_arithmetic} (a step of {least_s:,.1f} s at least)" in said.findings[0].sentence
    whole = replace(findings, times=replace(findings.times, phases=PhaseSeconds(0.0, 10.0, 0.0, "logged")))

    def simulated(most: float) -> Diagnosis:
        return with_simulated(said, replace(whole, reserved=findings.reserved.assign(**{"time most": most})))

    first = simulated(0.1).findings[0].sentence
    assert (
        f"a better order saves 0 to 10% (a step of 19.8 s at least) at simulated times, and no more than {by_arithmetic}"
        in first
    )
    assert [one.kind for one in simulated(0.1).levers][-1] == "assignment", "the others save more"
    assert simulated(0.9).findings[0].sentence == said.findings[0].sentence, "arithmetic allows less"


def test_the_page_says_what_was_simulated_on_top(timed: OpenedLog, findings: Findings) -> None:
    page = words(make_report(timed, replace(sixteen_l40s(), bound_work=0), Assumptions(dispatch="static"), max_steps=1).html)
    assert page.index("Simulated: Schedules on the same GPUs save ") < page.index("What you could change")


def test_ranges_include_the_error_of_the_profile(timed: OpenedLog, findings: Findings) -> None:
    said = diagnose(timed)
    narrow = expected(with_expected(said, checked(findings, [0.0, 0.0], [0.3, 0.3])))
    wide = expected(with_expected(said, checked(findings, [0.0, 0.1], [0.3, 0.3])))
    assert narrow
    for kind, (low, high) in narrow.items():
        assert wide[kind][0] <= low <= high <= wide[kind][1] <= 1.0
    assert findings.ways is not None
    lever = next(one for one in said.levers if one.kind == "partial rollout")
    assert lever.value is not None
    (saved,) = findings.ways.knobs.set_index(["variant", "knob", "value"]).loc[
        [("partial rollout", lever.knob, lever.value)], "time_saved"
    ]
    assert narrow["partial rollout"] == pytest.approx((min(saved, lever.at_most),) * 2)


def test_an_error_of_the_profile_is_one_of_generation_alone(timed: OpenedLog, findings: Findings) -> None:
    """Half of a step is measured, so that a saving may be off by the profile's error in at most the other half."""
    assert findings.took["generation_s"].sum() == pytest.approx(findings.took["time_s"].sum())
    whole = timed.scalars.assign(learn_s=timed.scalars["generate_s"].mean())
    log = replace(timed, scalars=whole)
    found = study(log, replace(sixteen_l40s(), bound_work=0), Assumptions(dispatch="static"), 3)
    sums = found.took.sum()
    of_time, of_gpu_s = 1 - sums["fixed_s"] / sums["time_s"], 1 - sums["fixed_gpu_s"] / sums["gpu_s"]
    assert 0.3 < of_time < 0.7
    said = diagnose(log)
    levers = {one.kind: one for one in said.levers}
    wide = expected(with_expected(said, checked(found, [0.0, 0.1], [0.3, 0.3])))
    late = levers["partial rollout"]
    assert late.of == "time"
    assert found.ways is not None
    (saved,) = found.ways.knobs.set_index(["variant", "knob", "value"]).loc[
        [("partial rollout", late.knob, late.value)], "time_saved"
    ]
    assert wide["partial rollout"][0] == pytest.approx(min(saved - 0.1 * (of_time - saved), late.at_most))
    low = found.given_back.set_index("policy").loc["solver", "GPU-seconds low"]
    assert wide["assignment"][0] == pytest.approx(min(low - 0.1 * (of_gpu_s - low), levers["assignment"].at_most))
    noted, exact = (with_expected(said, one).notes for one in (checked(found, [0.0, 0.1], [0.3, 0.3]), found))
    assert any("10.0% of the seconds of generation" in note for note in noted)
    assert len(exact) == len(noted)


def test_no_saving_is_expected_above_what_arithmetic_allows(timed: OpenedLog, findings: Findings) -> None:
    said = with_expected(diagnose(timed), checked(findings, [0.0, 0.25], [0.6, 0.6]))
    told = [one for one in said.levers if one.expected is not None]
    assert told
    assert all(one.expected[0] <= one.expected[1] <= one.at_most for one in told)  # type: ignore[index]


def test_levers_are_sorted_and_drafts_need_texts(timed: OpenedLog, findings: Findings) -> None:
    said = with_expected(diagnose(timed), findings)
    at_most = [one.at_most for one in said.levers]
    assert at_most == sorted(at_most, reverse=True)
    assert "drafts" not in {one.kind for one in said.levers}


def test_where_the_engine_is_slow_nothing_is_simulated(timed: OpenedLog) -> None:
    slow = replace(timed, scalars=timed.scalars.assign(generate_s=5000.0, step_s=6000.0))
    page = make_report(slow, sixteen_l40s(), max_steps=1).html
    assert "The engine is slow" in words(page)
    assert titles(page) == ["What limits this run", "Other schedules and settings", "Assumptions and method"]
    assert "expected (simulated)" not in words(page)
    assert "No schedule makes a slow engine fast" in words(page)


@pytest.mark.full
def test_what_a_page_simulates_of_levers_is_in_the_json_beside_it(timed: OpenedLog, tmp_path: Path) -> None:
    spans = timed.scalars.set_index("step")["generate_s"]
    rows = timed.trace.rollouts
    tokens = rows.groupby("step")["response_tokens"].transform("max")
    start = 10_000.0 * rows["step"]
    rows.assign(start_s=start, end_s=start + rows["step"].map(spans) * rows["response_tokens"] / tokens).to_csv(
        tmp_path / "log.csv", index=False
    )
    command = ["report", str(tmp_path / "log.csv"), "--gpus", "16", "--format", "json"]
    plain = run_rlhfless(*command)
    simulated = run_rlhfless(*command, "--dispatch", "static", "--steps", "1", "-o", str(tmp_path / "page.html"))
    assert (plain.exit_code, simulated.exit_code) == (0, 0), simulated.output
    levers = [json.loads(done.stdout)["levers"] for done in (plain, simulated)]
    assert not any("expected_low_share" in one for one in levers[0])
    assert any("expected_low_share" in one for one in levers[1])
    assert [one["kind"] for one in levers[0]] == [
        one["kind"] for one in levers[1] if one["kind"] in {x["kind"] for x in levers[0]}
    ]

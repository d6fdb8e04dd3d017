"""The report page: what it says of hand-made traces, that it needs no network, and that no text of a log becomes markup."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from page_figures import figures_json
from report_setting import sixteen_l40s

from rlhfless.analysis import account, evenly
from rlhfless.plots.export.html_page import Page
from rlhfless.predict import EwmaPredictor
from rlhfless.report.schedules import SHOWN, simulate_schedules
from rlhfless.report.simulated import own_timelines, what_to_do
from rlhfless.report.where_time_went import time_section
from rlhfless.report.write import make_report, write_report
from rlhfless.scheduling import POLICY_TABLE
from rlhfless.simulate import logged_steps
from rlhfless.trace import Trace, TraceError

EVIL = "</script><script>alert('x')</script>"


def rollouts(steps: int = 2, prompts: int = 4, **same: Any) -> list[dict[str, Any]]:
    """The same prompts in every step, two responses each, of lengths that differ from prompt to prompt."""
    rng = np.random.default_rng(0)
    return [
        {
            "run": "run", "step": step, "prompt_id": f"p{prompt}", "sample": sample, "prompt_tokens": 5,
            "response_tokens": 20 * (prompt + 1) + int(rng.integers(0, 9)), "finish_reason": "stop", **same,
        }
        for step in range(steps) for prompt in range(prompts) for sample in range(2)
    ]  # fmt: skip


def executed(second_ends_s: float = 4.0, **changed: Any) -> Trace:
    """One step of two actors with 2 GPUs each: 8 GPU-seconds and twice ``second_ends_s``."""
    same = {"run": "run", "step": 0, "role": "decode", "kind": "l40s", "usd_per_gpu_s": 0.01, "start_s": 0.0}
    held = [
        {"holder": "actor-0", "gpu_ids": [0, 1], "end_s": 4.0, **same},
        {"holder": "actor-1", "gpu_ids": [2, 3], "end_s": second_ends_s, **same},
    ]
    spans = [{"run": "run", "step": 0, "holder": f"actor-{i}", "phase": "decode", "start_s": 0.0, "end_s": 3.0} for i in (0, 1)]
    tables = {"rollouts": rollouts(1), "allocations": held, "spans": spans}
    return Trace(**{**tables, "meta": {"clock": "wall", "device": "a device"}, **changed})


def without_library(page: str) -> str:
    """The page without plotly.js."""
    return page[: page.index("<script>")] + page[page.rindex("<script>") :]


def cards(page: str) -> dict[str, str]:
    """The numbers that stand out, by their name."""
    return {name: value for value, name in re.findall(r'<div class="card"><b>(.*?)</b><span>(.*?)</span>', page)}


@pytest.fixture(scope="module")
def page() -> str:
    return make_report(executed(), sixteen_l40s()).html


@pytest.mark.full
def test_numbers_are_those_of_the_trace(page):
    assert cards(page) == {
        "time, all steps": "4.0000 s", "GPU-seconds, all steps": "16.000",
        "idle GPU-seconds": "4.0000 (25.0%)", "cost": "0.160 USD",
    }  # fmt: skip


def executed_part(second_ends_s: float = 4.0, **changed: Any) -> str:
    """The part of the page that says what was executed."""
    page = Page("", "")
    trace = executed(second_ends_s, **changed)
    time_section(page, trace, account(trace), None)
    own_timelines(page, executed(second_ends_s, **changed))
    return page.render("")


def test_a_trace_that_is_edited_by_one_second_changes_the_report(page):
    edited = executed_part(5.0)
    assert cards(edited) == {
        "time, all steps": "5.0000 s", "GPU-seconds, all steps": "18.000",
        "idle GPU-seconds": "6.0000 (33.3%)", "cost": "0.180 USD",
    }  # fmt: skip
    assert "2 actors, 4.00 s, 16.0 GPU-seconds, 0.160 USD; 4.00 GPU-seconds idle (25.0%)" in figures_json(page)
    assert "2 actors, 5.00 s, 18.0 GPU-seconds, 0.180 USD; 6.00 GPU-seconds idle (33.3%)" in figures_json(edited)


def test_the_page_says_what_was_measured_and_what_is_modelled(page):
    assert "<b>Measured:</b> all times, on a device." in page
    assert "with latency profile l40s-qwen2.5-3b-tp2 (modelled from operator times measured on l40s" in page
    modelled = executed_part(meta={"clock": "virtual", "charging": "profile", "profile": "mine", "engine": "simulated"})
    assert "<b>Modelled:</b> all times, from latency profile mine, on a virtual clock; no model was run." in modelled
    assert "does not say which clock" in executed_part(meta={})


@pytest.mark.full
def test_what_an_executed_run_could_have_saved_is_said_with_what_no_schedule_changes(page):
    assert "The last response of each step, and how much of the generation" in page
    assert "What schedules would save of whole steps" in page
    assert page.index("What each policy does") < page.index("What schedules would save of whole steps")
    assert page.index("What schedules would save of whole steps") < page.index("so their percentages differ from these")
    assert "most of any schedule that takes as long" in page
    assert "take 1.00 s of a step (25% of its time) and 0% of the billed GPU-seconds." in page  # spans end at 3 of 4 s
    assert "Not calibrated" in page  # one step proves nothing
    assert "Other GPUs" not in page
    held = executed().allocations.assign(kind=["l40s", "h100"])
    other = make_report(executed(allocations=held, meta={"cluster": {"nodes": 1, "gpus_per_node": 4}}), sixteen_l40s()).html
    assert "<b>Other GPUs:</b>" in other
    assert "the run had 4 GPUs of kind h100 and l40s;" in other


def test_a_report_is_json_with_the_diagnosis_and_what_was_simulated(tmp_path: Path) -> None:
    said = json.loads(write_report(executed(), tmp_path / "report.json", sixteen_l40s()).read_text("utf-8"))
    assert said["schema"] == "rlhfless-diagnosis"
    assert (said["simulated"]["schema"], said["simulated"]["times_of"]) == ("rlhfless-findings", "execution")
    alone = json.loads(write_report(executed(), tmp_path / "alone.json").read_text("utf-8"))
    assert "simulated" not in alone


def test_the_page_loads_nothing(page):
    ours = without_library(page)
    assert page.count("Plotly.newPlot(div") == 1
    assert page.count("<script>") == page.count("</script>") == 1
    assert not re.search(r"https?://", ours)
    tags = re.findall(r"<[a-z]+[^>]*\s(?:src|href)=[\"']?([^\"' >]+)", ours)
    assert all(target.startswith("#") for target in tags)
    assert not re.search(r"<(?:link|img|iframe)\b|@import|url\(", ours)


def test_every_section_has_its_figures(page):
    titles = re.findall(r"<h2 id=\"[^\"]+\">(.*?)</h2>", page)
    assert titles == [
        "What limits this run", "Where the time went", "Other schedules and settings", "Timelines", "Assumptions and method",
    ]  # fmt: skip
    figures = figures_json(page)
    for title in (
        "GPU timeline of step 0",
        "Cost, time and actors",
        "Time and cost",
        "What each idea contributes",
        "time weight (1: time only, 0: cost only)",
    ):
        assert title in figures
    ids = re.findall(r'<div id="(figure-\d+)"></div>', page)
    assert all(f'"{name}":[{{"data":' in figures for name in ids)


def test_text_of_logs_never_becomes_markup():
    same = {"step": 0, "holder": EVIL, "run": EVIL}
    trace = Trace(
        rollouts(1, prompt_id=EVIL, run=EVIL)[:1],
        allocations=[
            {**same, "role": "decode", "gpu_ids": [0], "kind": EVIL, "usd_per_gpu_s": 1.0, "start_s": 0.0, "end_s": 1.0}
        ],
        spans=[{**same, "phase": "decode", "start_s": 0.0, "end_s": 1.0}],
        events=[{**same, "time_s": 0.5, "name": EVIL}],
        meta={"policy": EVIL, "device": EVIL, "clock": "wall", "cluster": {EVIL: EVIL}},
        source=EVIL,
    )
    text = make_report(trace, sixteen_l40s()).html
    assert text.count("<script>") == text.count("</script>") == 1
    assert "alert('x')</script>" not in text
    assert EVIL not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


@pytest.mark.full
def test_a_log_of_lengths_alone_is_simulated(tmp_path: Path):
    log = tmp_path / "log.csv"
    pd.DataFrame(rollouts(3)).to_csv(log, index=False)
    out = write_report(log, tmp_path / "report.html", sixteen_l40s())
    text = out.read_text("utf-8")
    assert "by simulation of the run&#39;s own schedule" in text
    assert f"RLHFless report: {tmp_path.name}/log.csv" in text
    assert "sums over steps with repeated prompts (lengths predicted from earlier responses): 2 steps" in text
    assert "sums over steps with new prompts (lengths are guesses): 1 step" in text
    named = {name for cell in re.findall(r'<td class="text(?: long| short)?">(.*?)</td>', text) for name in cell.split(", ")}
    assert set(SHOWN) <= named
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "report.html"]


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(Trace([{"step": 0, "prompt_id": 1, "sample": 0, "response_tokens": 7}]), id="one bare response"),
        pytest.param(executed(rollouts=rollouts(1)[:1], spans=[]), id="no spans", marks=pytest.mark.full),
        pytest.param(executed(allocations=[], spans=[]), id="nothing recorded", marks=pytest.mark.full),
    ],
)
def test_degenerate_traces_have_a_report(trace):
    assert "Other schedules and settings" in make_report(trace, sixteen_l40s()).html


def test_what_cannot_be_planned_is_reported_and_the_rest_is_shown():
    setting = sixteen_l40s()
    too_long = rollouts(1, response_tokens=10_000_000)
    text = make_report(executed(rollouts=too_long), setting).html
    assert "Where the time went" in text
    assert "No plan is possible on 16 GPUs with profile l40s-qwen2.5-3b-tp2: " in text
    with refused(ValueError, "10000005"):
        make_report(Trace(too_long), setting)


def test_bad_input_is_one_sentence(tmp_path: Path):
    with refused(TraceError):
        write_report(tmp_path / "nothing.csv", tmp_path / "out.html")
    with refused(TraceError):
        make_report(Trace(rollouts(1) + rollouts(1, run="other")))
    with refused(TraceError):
        write_report(executed(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_chosen_steps_are_predicted_from_all_earlier_ones():
    trace, setting = Trace(rollouts(9)), sixteen_l40s()
    schedules = simulate_schedules(trace, setting, 3)
    assert [one.step for one in schedules.logged] == [0, 4, 8]
    assert [one.has_history for one in schedules.logged] == [False, True, True]
    assert schedules.all_steps == 9
    limit = int(trace.rollouts["response_tokens"].max())
    whole = {one.step: one for one in logged_steps(trace.rollouts, EwmaPredictor(), limit)}
    for one in schedules.logged:
        assert one.predicted.response_tokens.tolist() == whole[one.step].predicted.response_tokens.tolist()
    ran = schedules.traces["solver"].rollouts
    assert ran[ran["step"] == 4]["predicted_tokens"].tolist() == whole[4].predicted.response_tokens.tolist()
    assert schedules.results(schedules.ladder)["step"].unique().tolist() == [4, 8]


def test_no_policy_is_below_the_bound_of_its_step():
    schedules = simulate_schedules(Trace(rollouts(3)), sixteen_l40s(), 3)
    for one in schedules.logged:
        bound = schedules.bound_of(one)
        for row in schedules.results(list(SHOWN), one.step).itertuples():
            assert row.gpu_seconds >= bound(row.time_s) - 1e-9


def test_big_steps_are_simulated_in_smaller_number():
    schedules = simulate_schedules(Trace(rollouts(9)), sixteen_l40s(), 5, max_responses=16)
    assert [one.step for one in schedules.logged] == [0, 8]
    assert [one.step for one in simulate_schedules(Trace(rollouts(4)), sixteen_l40s(), 5, max_responses=1).logged] == [3]


@pytest.mark.parametrize(("count", "most", "chosen"), [(3, 5, [0, 1, 2]), (9, 3, [0, 4, 8]), (9, 1, [8]), (100, 2, [0, 99])])
def test_steps_are_evenly_chosen(count, most, chosen):
    assert evenly(range(count), most) == chosen


def test_the_page_escapes_what_it_is_given():
    page = Page("<b>", "<i>")
    page.section("<u>")
    page.text("<p>")
    page.table("<c>", ["<h>"], [["<d>"]])
    page.facts([("<k>", "<v>")])
    page.basis([("<m>", "<n>")])
    text = without_library(page.render("<f>"))
    assert all(f"&lt;{mark}&gt;" in text for mark in "biupchdkvmnf")
    assert not any(f"><{mark}></" in text for mark in "biupchdkvmnf")


def test_what_a_policy_takes_is_that_of_the_table() -> None:
    """Each policy that can be run, with what a user does for it; policies that know true lengths cannot be run."""
    told = {name: to_do for names, to_do in what_to_do(SHOWN) for name in names.split(", ")}
    assert told == {name: POLICY_TABLE[name].to_do for name in SHOWN if not name.startswith("oracle")}
    assert len(what_to_do(SHOWN)) == len(set(told.values()))

"""The report of a logged run: its answer in sentences, and what it assumes."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused
from page_figures import figures_json

from rlhfless.analysis import Assumptions, PhaseSeconds, stated_phases
from rlhfless.latency import load_profile
from rlhfless.latency.profile import DEFAULT_PROFILE
from rlhfless.plots.export.html_page import Page
from rlhfless.report.log_checks import contradicted
from rlhfless.report.not_stated import profile_assumed
from rlhfless.report.schedules import refuse_requests_without_steps, simulate_schedules
from rlhfless.report.settings import settings_part
from rlhfless.report.simulated import schedules_section, true_front
from rlhfless.report.study import Findings, study
from rlhfless.report.where_time_went import time_section
from rlhfless.report.words import SIMULATED
from rlhfless.report.write import make_report
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import ImportOptions, OpenedLog, Recorder, Trace, TraceError, open_log, validate
from solver.model.cluster import Cluster
from solver.model.objective import NonGenerationPhases

GOLDEN = Path(__file__).parents[1] / "trace" / "importers" / "golden"
EVIL = "</script><script>alert('x')</script>"
SETTING = SimulationConfig(Cluster(1, 8, 2, kind="l40s", usd_per_gpu_hour=3.6), load_profile("l40s-qwen2.5-3b-tp2"))


def log_file(folder: Path, steps: int = 3, prompts: int = 16, **same: Any) -> Path:
    rng = np.random.default_rng(3)
    rows = [
        {"step": s, "prompt_id": f"p{p}", "sample": k, "prompt_tokens": 40,
         "response_tokens": int(np.clip(rng.lognormal(5 + 0.05 * p, 0.5), 1, 900)), "finish_reason": "stop", **same}
        for s in range(steps) for p in range(prompts) for k in range(4)
    ]  # fmt: skip
    folder.mkdir(exist_ok=True)
    path = folder / "log.parquet"
    pd.DataFrame(rows).to_parquet(path)
    return path


def text_of(page: str) -> str:
    """The page's words without plotly.js, tags and numbers' markup."""
    ours = page[: page.index("<script>")]
    return html.unescape(re.sub(r"<[^>]+>", " ", ours))


def of_page(page: Page) -> str:
    return " ".join(text_of(page.render("")).split())


def time_of(findings: Findings) -> str:
    """The words of the section on where the time of a logged run went."""
    page = Page("", "")
    time_section(page, findings.traces[0], findings.account, findings)
    return of_page(page)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> OpenedLog:
    return open_log(log_file(tmp_path_factory.mktemp("log")))


@pytest.fixture(scope="module")
def page(log: OpenedLog) -> str:
    return make_report(log, SETTING, Assumptions(prices={"spot": 1.5}), max_steps=2).html


@pytest.mark.full
def test_only_the_diagnosis_is_open_and_a_page_is_small(page: str) -> None:
    assert page.count("<details>") == 4
    assert len(page.encode()) < 2_000_000


def test_the_answer_comes_first(page: str) -> None:
    titles = re.findall(r"<h2 id=\"[^\"]+\">(.*?)</h2>", page)
    assert [html.unescape(title) for title in titles] == [
        "What limits this run", "Where the time went, by simulation of the run's own schedule", "Other schedules and settings",
        "Timelines", "Assumptions and method",
    ]  # fmt: skip
    words = text_of(page)
    assert re.search(
        r"On 8 L40S GPUs \(room for 4 actors of 2 GPUs\), [\d.% to]+ of the GPU-seconds of generation alone are idle: ", words
    )
    assert "The log has no times of preparation and learning" in words
    assert "the framework is unknown; it is taken to cut the batch into equal chunks" in words
    assert "Preparation and learning also take longer on fewer GPUs" in words
    assert "The framework of the log is unknown, so there are no lines of its configuration." in words
    assert "was not compared with the run" in words, "the log has no times"
    assert "expected (simulated)" not in words


@pytest.mark.full
def test_other_prices_are_of_the_run_where_its_cost_is_known(log: OpenedLog, page: str) -> None:
    assert "The simulated generation" in page[page.index("at other prices") - 80 :], (
        "no time was logged: nobody knows what the run cost"
    )
    own = simulate(log.trace.rollouts, SETTING, ["static"]).table
    scalars = pd.DataFrame({"step": own["step"], "generate_s": own["time_s"], "step_s": 2 * own["time_s"]})
    timed = OpenedLog(log.trace, scalars, log.framework, log.summary)
    words = " ".join(text_of(make_report(timed, SETTING, Assumptions(prices={"spot": 1.5}), max_steps=1).html).split())
    assert re.search(r"The run's [\d.]+ GPU-hours at other prices of L40S GPUs", words)
    assert "on-demand 3.77 USD" in words
    assert "spot 1.50 USD" in words
    assert "can be preempted during a step" in words
    assert "no spot price" not in words


@pytest.mark.full
def test_what_no_schedule_changes_is_said_and_counted(log: OpenedLog) -> None:
    stated = Assumptions(prepare_s=5.0, learn_s=25.0, learner_gpus=0, dispatch="static")
    found = study(log, SETTING, stated, 1)
    assert "The other phases take 30.0 s (stated); scheduling generation does not change them." in time_of(found)
    alone = study(log, SETTING, Assumptions(learner_gpus=0, dispatch="static"), 1)
    assert found.reserved["time most"].max() < 0.5 * alone.reserved["time most"].max()


@pytest.mark.full
def test_times_of_the_log_correct_the_profile(log: OpenedLog) -> None:
    rollouts = log.trace.rollouts
    own = simulate(rollouts, SETTING, ["static"]).table
    scalars = pd.DataFrame({"step": own["step"], "generate_s": 2.5 * own["time_s"], "learn_s": 7.0})
    timed = OpenedLog(log.trace, scalars, log.framework, log.summary)
    found = study(timed, SETTING, Assumptions(dispatch="static"), 1)
    assert found.times.calibrated.factor == pytest.approx(2.5)
    assert found.times.phases == PhaseSeconds(0.0, 7.0, 0.0, "logged")
    plain = study(log, SETTING, Assumptions(dispatch="static"), 1)
    assert found.account.steps["generation_s"].to_numpy() == pytest.approx(2.5 * plain.account.steps["generation_s"].to_numpy())
    assert study(timed, SETTING, Assumptions(dispatch="static", calibrate=False), 1).times.calibrated.factor == 1.0


@pytest.mark.full
def test_the_time_of_a_single_step_is_met_and_the_scaling_or_a_contradiction_is_the_first_paragraph(log: OpenedLog) -> None:
    own = simulate(log.trace.rollouts, SETTING, ["static"], steps=[1]).table
    scalars = pd.DataFrame({"step": [1], "generate_s": 0.25 * own["time_s"].to_numpy()})
    timed = OpenedLog(log.trace, scalars, log.framework, log.summary)
    found = study(timed, SETTING, Assumptions(dispatch="static"), 1)
    assert (found.times.calibrated.factor, found.times.calibrated.steps) == (pytest.approx(0.25), 1)
    (check,) = found.times.checks
    assert (check.column, check.logged, check.contradicts) == ("generate_s", pytest.approx(scalars["generate_s"][0]), True)
    first = contradicted(found.times.checks, found.times.calibrated, SIMULATED)
    assert re.match(r"Generation of a step took [\d.]+ s in the log and [\d.]+ s simulated by profile ", first)
    assert first.endswith("so simulated times are multiplied by 0.250.")
    assert "contradict" not in first, "the times of this report are those of the log"
    apart = study(timed, SETTING, Assumptions(dispatch="static", calibrate=False), 1)
    first = contradicted(apart.times.checks, apart.times.calibrated, SIMULATED)
    assert "The log contradicts numbers of this report. Generation of a step: " in first
    assert "(+300.0%)" in first
    assert "Simulated times come from the profile, without a correction by the log." in first


@pytest.mark.full
def test_whatever_the_log_measured_stands_beside_what_is_reckoned(log: OpenedLog) -> None:
    own = simulate(log.trace.rollouts, SETTING, ["static"]).table
    lengths = log.trace.rollouts.groupby("step")["response_tokens"]
    scalars = pd.DataFrame(
        {"step": own["step"], "step_s": 0.5 * own["time_s"], "responses": 64, "response_tokens_mean": lengths.mean().to_numpy(),
         "response_tokens_max": lengths.max().to_numpy() + 9, "truncation_rate": 0.04, "learn_s": 2.0}
    )  # fmt: skip
    timed = OpenedLog(log.trace, scalars, log.framework, log.summary)
    findings = study(timed, SETTING, Assumptions(dispatch="static", learn_s=9.0), 1)
    checks = {check.column: check for check in findings.times.checks}
    assert {name for name, check in checks.items() if check.contradicts} == {
        "step_s", "response_tokens_max", "truncation_rate", "learn_s"
    }  # fmt: skip
    assert not checks["responses"].contradicts
    assert not checks["response_tokens_mean"].contradicts
    first = contradicted(findings.times.checks, findings.times.calibrated, SIMULATED)
    assert "Responses cut off by the limit: 4.0% in the log, 0.0% counted from the responses (\N{MINUS SIGN}4.0 points" in first
    assert "lists 1 further contradiction." in first
    words = time_of(findings)
    assert re.search(r"mean response length counted from the responses 3 .* 1 token agrees", words)
    assert "responses cut off by the limit counted from the responses 3 4.0% 0.0% -4.0 points" in words


def recording(folder: Path) -> Path:
    """Two steps of which decoding takes 20 s, preparation 3 s and learning 7 s."""
    with Recorder(folder) as recorder:
        for step in range(2):
            for phase, begin, end in (("decode", 0, 20), ("prepare", 20, 23), ("learn", 23, 30)):
                recorder.append_span(step=step, holder="t", phase=phase, start_s=30.0 * step + begin, end_s=30.0 * step + end)
            for i in range(16):
                recorder.append(step=step, prompt_id=i // 4, sample=i % 4, prompt_tokens=10, response_tokens=100 + 9 * i)
    return folder


@pytest.mark.full
def test_spans_of_a_recording_say_what_its_steps_took(tmp_path: Path) -> None:
    found = study(open_log(recording(tmp_path / "run")), SETTING, Assumptions(), 2)
    assert found.times.calibrated.steps == 2
    assert found.account.steps["generation_s"].to_numpy() == pytest.approx(20.0, rel=0.01)
    assert found.times.phases == PhaseSeconds(3.0, 7.0, 0.0, "logged")
    words = time_of(found)
    assert "The other phases take 10.0 s (logged)" in words
    assert "The log has no times of" not in words


def with_times(folder: Path, apart_s: float) -> Path:
    """Three steps of two actors, of 16 s each, that begin so far apart."""
    path = log_file(folder)
    table = pd.read_parquet(path)
    begin = apart_s * table["step"]
    last = table.groupby("step").cumcount(ascending=False) == 0
    table = table.assign(actor=np.where(table["sample"] < 2, "a", "b"), start_s=begin, end_s=begin + np.where(last, 16.0, 9.0))
    table.to_parquet(path)
    return path


@pytest.mark.full
def test_times_of_responses_correct_the_profile_and_actors_that_are_not_used_are_named(tmp_path: Path) -> None:
    found = study(open_log(with_times(tmp_path, 20.0)), SETTING, Assumptions(), 3)
    assert found.times.calibrated.steps == 3
    assert found.times.calibrated.by_constant, "every step takes 16 s, whatever its lengths"
    assert found.account.steps["generation_s"].mean() == pytest.approx(16.0)
    assumed = found.times.setup.assumed
    assert "responses are assigned to 4 actors; the assignment in the log (2 actors) is not used" in assumed
    assert not any("left out" in sentence for sentence in assumed)


def test_steps_that_generate_at_the_same_time_correct_nothing_and_that_is_said(tmp_path: Path) -> None:
    found = study(open_log(with_times(tmp_path, 10.0)), SETTING, Assumptions(), 1)
    assert found.times.calibrated.steps == 0
    said = "logged generation times of 3 steps (0, 1, 2) are left out, because other steps generated at the same time"
    assert said in found.times.setup.assumed


@pytest.mark.full
def test_one_unknown_end_leaves_a_lower_bound_that_contradicts_and_calibrates(tmp_path: Path) -> None:
    path = with_times(tmp_path, 2000.0)
    table = pd.read_parquet(path)
    table["end_s"] += np.where(table.groupby("step").cumcount(ascending=False) == 0, 700.0, 0.0)
    table.loc[5, "end_s"] = np.nan
    table[table["step"] == 0].to_parquet(path)
    found = study(open_log(path), SETTING, Assumptions(), 1)
    first = contradicted(found.times.checks, found.times.calibrated, SIMULATED)
    assert "Generation of a step: at least 716 s in the log, " in first
    assert re.search(r"multiplied by [\d.]+, the least factor that agrees with the log\.", first)
    assert found.times.calibrated.steps == 0
    assert found.account.steps["generation_s"].to_numpy() == pytest.approx(716.0)
    said = "logged generation times of 1 step (0) are lower bounds, from the first to the last known time, because some"
    assert any(sentence.startswith(said) for sentence in found.times.setup.assumed)
    assert "at least 716 s" in time_of(found)
    assert "at most 10% less contradiction" in time_of(found)
    assert "lower bounds" in open_log(path).summary.missing["end_s"]

    table.to_parquet(path)
    found = study(open_log(path), SETTING, Assumptions(), 1)
    assert found.times.calibrated.steps == 2
    bounds = [check for check in found.times.checks if check.lower_bound == "logged"]
    assert [(check.logged, check.steps) for check in bounds] == [(716.0, 1)] * 2
    assert [check.contradicts for check in bounds] == [True, False], "by the profile; calibrated by the other two steps"


@pytest.mark.full
def test_the_ladder_begins_with_the_logs_own_dispatch(page: str) -> None:
    pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
    own = "least-loaded, held"
    verl = open_log(GOLDEN / "verl-v1", ImportOptions(GOLDEN / "trl", max_response_tokens=9))
    small = replace(SETTING, cluster=replace(SETTING.cluster, gpus_per_node=4))
    found = study(verl, small, Assumptions(), 2)
    rungs = found.schedules.results(found.schedules.ladder, found.schedules.logged[-1].step)
    assert rungs["policy"].tolist()[:2] == [own, "right-sizing"]
    held, account = found.schedules.table.query("policy == @own"), found.account
    assert held["gpu_seconds"].sum() == pytest.approx(account.gpu_s), "the first rung costs what the account adds up"
    assert held["time_s"].to_numpy() == pytest.approx(account.steps["generation_s"].to_numpy())
    only = Page("", "")
    schedules_section(only, found)
    text = only.render("")
    words = " ".join(text_of(text).split())
    assert f"speed-up over {own} cost relative to {own}" in words
    assert re.search(rf" {own} [^x]* 1\.00x 0\.0% ", words), "its own speed is the unit"
    assert f"each bar adds one idea, from {own} to " in figures_json(text)
    assert "speed-up over static" in text_of(page), "of a log whose framework is not known"


@pytest.mark.parametrize("phases", [NonGenerationPhases(), NonGenerationPhases(3.0, 5.0), NonGenerationPhases(3.0, 5.0, 4)])
def test_the_front_of_the_last_step_is_above_its_bound_as_whole_steps(log: OpenedLog, phases: NonGenerationPhases) -> None:
    setting = replace(SETTING, phases=phases)
    schedules = simulate_schedules(log.trace, setting, 1)
    last, front = schedules.logged[-1], true_front(schedules, setting)
    bound, oracle = schedules.bound_of(last), schedules.results(["oracle"], last.step).iloc[0]
    assert all(bound(plan.makespan_s) <= plan.gpu_seconds * (1 + 1e-9) for plan in front.plans)
    fastest = front.plans[0]
    assert phases.seconds < fastest.makespan_s <= 1.1 * oracle["time_s"], "as whole steps, as the policies' times are"
    assert fastest.gpu_seconds >= phases.learner_gpus * fastest.makespan_s


@pytest.mark.full
def test_the_page_says_that_its_times_were_corrected(log: OpenedLog) -> None:
    own = simulate(log.trace.rollouts, SETTING, ["static"]).table
    timed = OpenedLog(log.trace, pd.DataFrame({"step": own["step"], "generate_s": 1.5 * own["time_s"]}), "table", log.summary)
    words = " ".join(text_of(make_report(timed, SETTING, max_steps=1).html).split())
    assert "Calibrated: by 1.50, the median over 3 steps of the ratio of logged to simulated generation time" in words
    assert "Relative error on held-out steps (leave-one-out over 3 steps): median 0.0%" in words
    assert "; with a constant time per step: median" in words
    assert re.search(r"own schedule Generation of a step took .*, so simulated times are ", words)


@pytest.mark.full
def test_a_profile_of_any_name_is_text_beside_what_the_log_measured(log: OpenedLog) -> None:
    evil = replace(SETTING, latency=replace(SETTING.latency, name=EVIL))
    scalars = pd.DataFrame({"step": [0], "generate_s": [3.0]})
    found = study(OpenedLog(log.trace, scalars, log.framework, log.summary), evil, Assumptions(), 1)
    page = Page("", "")
    time_section(page, found.traces[0], found.account, found)
    schedules_section(page, found)
    settings_part(page, found)
    text = page.render("")
    assert "<script>alert" not in text
    assert EVIL in html.unescape(text)


def test_names_in_a_log_never_become_markup(tmp_path: Path) -> None:
    evil = make_report(open_log(log_file(tmp_path, 2, 4, run=EVIL)), SETTING, max_steps=1).html
    assert "<script>alert" not in evil
    assert evil.count("<script>") == 1


@pytest.mark.full
def test_the_command_recognises_a_log_and_writes_page_and_notebook(tmp_path: Path) -> None:
    path = log_file(tmp_path / "logs")
    command = ["report", str(path), "--gpus", "8", "--steps", "1", "--usd-per-gpu-hour", "spot=1.5", "--learn-s", "10"]
    done = run_rlhfless(*command, "-o", str(tmp_path / "out" / "report.html"))
    assert done.exit_code == 0, done.output
    assert "(stated)" in (tmp_path / "out" / "report.html").read_text("utf-8")
    done = run_rlhfless(*command, "-o", str(tmp_path / "out" / "report.ipynb"))
    assert done.exit_code == 0, done.output
    import nbformat

    book = nbformat.read(tmp_path / "out" / "report.ipynb", as_version=4)
    nbformat.validate(book)
    parameters = next(cell for cell in book.cells if "injected-parameters" in cell.metadata.get("tags", []))
    assert "LEARN_S = 10.0" in parameters.source
    for wrong, sentence in (
        (["--usd-per-gpu-hour", "cheap"], "--usd-per-gpu-hour is cheap; a price"),
        (["--usd-per-gpu-hour", "spot=-1"], "--usd-per-gpu-hour is spot=-1; a price"),
        (["--usd-per-gpu-hour", "=3"], "--usd-per-gpu-hour is =3; a price"),
        (["--usd-per-gpu-hour", "1", "--usd-per-gpu-hour", "2"], "--usd-per-gpu-hour has two prices, 1 and 2"),
        (["--dispatch", "random"], "--dispatch is random; static or least-loaded"),
        (["--learner-gpus", "-2"], "--learner-gpus is -2"),
        (["--learn-s", "nan"], "--learn-s is nan; a finite"),
        (["--learn-s", "inf"], "--learn-s is inf; a finite"),
        (["--run", "other"], "has no run other; one of log is needed"),
        (["--map", "x"], "--map x: is not of the form OURS=THEIRS"),
    ):
        refused = run_rlhfless(*command, *wrong, "-o", str(tmp_path / "never.html"))
        assert refused.exit_code == 2, refused.output
        assert sentence in " ".join(refused.output.split())
        assert not (tmp_path / "never.html").exists()


@pytest.mark.nightly
def test_a_page_of_a_hundred_thousand_responses_stays_small(tmp_path: Path) -> None:
    path = log_file(tmp_path / "logs", steps=50, prompts=500)
    page = make_report(open_log(path), SETTING).html
    assert len(page.encode()) < 2_000_000


@pytest.mark.full
def test_what_was_not_stated_is_named(tmp_path: Path) -> None:
    path = log_file(tmp_path / "logs", 2, 4)
    done = run_rlhfless("report", str(path), "--gpus", "16", "--steps", "1", "-o", str(tmp_path / "report.html"))
    assert done.exit_code == 0, done.output
    words = " ".join(text_of((tmp_path / "report.html").read_text("utf-8")).split())
    assert profile_assumed(DEFAULT_PROFILE) in words


def test_an_executed_run_takes_no_assumptions_on_what_it_recorded(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo"
    refused = run_rlhfless("report", str(shipped), "--learn-s", "3", "-o", str(tmp_path / "report.html"))
    assert refused.exit_code == 2
    assert "is the trace of an executed run" in refused.output
    assert "--learn-s" in refused.output
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        ({"cluster": {"nodes": 2}}, "cluster is {'nodes': 2}; an object with whole numbers above 0 as nodes and gpus_per_node"),
        ({"cluster": {"nodes": 2, "gpus_per_node": "8"}}, "as nodes and gpus_per_node, or with neither, is needed"),
        ({"cluster": "ours"}, "cluster is 'ours'; an object"),
        ({"profile": 3}, "profile is 3; a profile's name is needed"),
        ({"config": [1]}, "config is [1]; an object is needed"),
        ({"config": {"max_response_tokens": "9"}}, "a whole number above 0 as max_response_tokens, or without it, is needed"),
    ],
)
def test_a_wrong_meta_is_refused_in_one_line(tmp_path: Path, meta: dict[str, Any], sentence: str) -> None:
    folder = open_log(log_file(tmp_path / "logs", 2, 4)).trace.save(tmp_path / "trace")
    known = json.loads((folder / "meta.json").read_text("utf-8"))
    (folder / "meta.json").write_text(json.dumps(known | meta), encoding="utf-8")
    refused = run_rlhfless("report", str(folder), "-o", str(tmp_path / "report.html"))
    assert refused.exit_code == 2, refused.output
    assert f"{folder / 'meta.json'}: " in refused.output
    assert sentence in refused.output
    assert len(refused.output.splitlines()) == 1


def test_stated_seconds_stand_in_for_logged_ones_one_by_one() -> None:
    logged = PhaseSeconds(1.0, 2.0, 3.0, "logged")
    assert stated_phases(None, None, logged) == logged
    assert stated_phases(5.0, None, logged) == PhaseSeconds(5.0, 2.0, 3.0, "stated and logged")
    assert stated_phases(None, 7.0, None) == PhaseSeconds(0.0, 7.0, 0.0, "stated")
    assert stated_phases(None, None, None) == PhaseSeconds()


def test_one_giant_step_of_requests_is_refused_with_what_to_give() -> None:
    """Requests have no steps: the sentence says how to cut the log into batches."""
    count = 10_001
    rows = pd.DataFrame(
        {"step": 0, "prompt_id": np.arange(count).astype(str), "sample": 0, "prompt_tokens": 10, "response_tokens": 5}
    )
    trace = Trace(validate("rollouts", rows))
    with refused(TraceError, "10,001 requests", "--map step=row/128"):
        make_report(trace, SETTING)
    refuse_requests_without_steps(OpenedLog(Trace(trace.rollouts.assign(step=trace.rollouts.index % 2)), pd.DataFrame(), ""))
    refuse_requests_without_steps(
        OpenedLog(Trace(trace.rollouts.assign(prompt_id="a", sample=np.arange(count))), pd.DataFrame(), "")
    )

"""The report of an executed run and of its log: the same sections and tables, without contradictions."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from page_figures import figures_json
from report_setting import PROFILE, sixteen_l40s

import rlhfless as rl
from rlhfless.analysis import Assumptions, own_times
from rlhfless.diagnosis import diagnose
from rlhfless.errors import InputError
from rlhfless.plots.export.html_page import Page
from rlhfless.report.expected import with_expected
from rlhfless.report.settings import settings_part
from rlhfless.report.study import study
from rlhfless.report.write import make_report
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import OpenedLog, Trace

GOLDEN = Path(__file__).parents[1] / "trace" / "importers" / "golden"
TRACES = Path(__file__).parents[2] / "data" / "traces"
GIVEN = ["run", "step", "epoch", "prompt_id", "sample", "prompt_tokens", "response_tokens", "finish_reason"]
SIMULATED = ", by simulation of the run's own schedule"


def rollouts(steps: int = 3) -> pd.DataFrame:
    """Eight prompts of two responses a step, of lengths that differ from step to step."""
    rng = np.random.default_rng(2)
    return pd.DataFrame([
        {"run": "r", "step": s, "epoch": s, "prompt_id": f"p{p}", "sample": k, "prompt_tokens": 50,
         "response_tokens": int(np.clip(rng.lognormal(5 + 0.1 * p + 0.2 * s, 0.4), 1, 1500)), "finish_reason": "stop"}
        for s in range(steps) for p in range(8) for k in range(2)
    ])  # fmt: skip


def executed(policy: str = "static", setting: SimulationConfig | None = None) -> Trace:
    """The same responses as an executor on the virtual clock of the profile would have run them."""
    return simulate(rollouts(), setting or sixteen_l40s(), [policy]).traces[policy]


def opened(trace: Trace) -> OpenedLog:
    return OpenedLog(trace, pd.DataFrame({"step": []}), "")


def text_of(page: str) -> str:
    body = page[page.index("<h2") : page.rindex("<script>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def headings(page: str) -> list[str]:
    """Sections and parts, without the words that say where a trace is from."""
    found = [html.unescape(text) for text in re.findall(r"<h[23][^>]*>(.*?)</h[23]>", page)]
    return [text.removesuffix(SIMULATED) for text in found if not text.startswith(("Assumed; state it", "How the log was"))]


def test_the_pages_of_an_executed_run_and_of_its_log_have_the_same_sections_and_tables() -> None:
    trace, stated = executed(), Assumptions(dispatch="static", learner_gpus=0, learn_s=2.0)
    of_trace = make_report(trace, sixteen_l40s())
    of_log = make_report(Trace(trace.rollouts[GIVEN]), sixteen_l40s(), stated)
    own = {"As executed": "own", "The run's own schedule, simulated": "own"}
    parts = [[own.get(text, text) for text in headings(one.html)] for one in (of_trace, of_log)]
    assert parts[0] == parts[1]
    tables = [re.findall(r"<caption>(.*?)(?:,| of|:|<)", one.html) for one in (of_trace, of_log)]
    assert set(tables[1]) <= set(tables[0]), "the trace alone has what was measured beside it"
    for said in ("More, fewer or other replicas", "How many actors the solver plans per step"):
        assert said in parts[0]
    assert of_trace.findings is not None
    assert of_log.findings is not None
    pd.testing.assert_frame_equal(of_trace.findings.planned, of_log.findings.planned)


def idle_shares(page: str) -> dict[str, tuple[float, float]]:
    """The low and the high end of the idle share of the GPU-seconds, in per cent, by where a page says it."""
    text, found = text_of(page), {}
    number = r"(\d+(?:\.\d+)?)%"
    for where, pattern in (
        ("sentence", rf"{number}(?: to {number})? of the [A-Za-z' -]*GPU-seconds [a-z ]*are idle"),
        ("card", rf"\({number}\) idle GPU-seconds"),
        ("diagnosis", rf"GPUs that wait: {number} of"),
    ):
        if match := re.search(pattern, text):
            low, high = match[1], match[match.lastindex or 1]
            found[where] = float(low), float(high)
    if match := re.search(rf"{number}(?: of the GPU-seconds)? were idle", figures_json(page)):
        found["figure"] = float(match[1]), float(match[1])
    elif re.search("none (?:of the GPU-seconds )?were idle", figures_json(page)):
        found["figure"] = 0.0, 0.0
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    cells = [[re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)] for row in rows]
    uses = [float(row[-2].rstrip("%")) for row in cells if len(row) > 4 and row[1] == "idle"]
    return {**found, "table": (sum(uses), sum(uses))}


PAGES = {
    "verl": (GOLDEN / "verl-v1", {"learner_gpus": 4}),
    "verl, whole steps": (GOLDEN / "verl-v1", {"learner_gpus": 4, "learn_s": 3.0}),
    "trl": (GOLDEN / "trl", {"learner_gpus": 4}),
}  # fmt: skip


@pytest.fixture(scope="module", params=[*PAGES, "executed", "executed by the solver"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a log with GPUs of the learner, or of an executed run."""
    out = tmp_path_factory.mktemp("page") / "page.html"
    if request.param not in PAGES:
        run = rl.load(executed("static" if request.param == "executed" else "solver"), verbose=False)
    else:
        log, stated = PAGES[request.param]
        run = rl.load(log, gpus=16, profile=PROFILE, assumptions=Assumptions(**stated), tokenizer=GOLDEN / "trl", verbose=False)  # type: ignore[arg-type]
    return run.report(out, verbose=False).read_text("utf-8")


def test_a_page_says_one_idle_share(page: str) -> None:
    said = idle_shares(page)
    assert len(said) > 1
    low, high = min(low for low, _ in said.values()), max(high for _, high in said.values())
    assert high - low <= 1.5, f"rounded to per cent, and to a tenth in a table: {said}"
    assert "<th>idle</th>" not in page, "schedules are of generation, where other GPUs are not held"


def test_a_page_does_not_contradict_itself(page: str) -> None:
    text = text_of(page)
    assert "learns on the same GPUs" not in text
    assert "multiplied by 1 " not in text
    assert "because no price was given" not in text or " USD" in text, "a list price is named where it is used"
    assert "take 0 s of a step" not in text
    if "shares are of generation alone" in text:
        assert "whole steps (s)" not in text
        assert "What schedules would save of whole steps" not in text
    if "cut off by the limit unknown" in text:
        assert "end at the limit" not in text


def test_the_clock_of_the_profile_is_exact_and_another_profile_is_not() -> None:
    trace, setting = executed(), sixteen_l40s()
    own = own_times(opened(trace), setting)
    assert own.calibrated.exact
    assert own.calibrated.factor == 1.0
    assert not own.own_plans
    one_step = trace.with_rows(**{name: rows[rows["step"] == 2] for name, rows in tables(trace).items()})
    assert own_times(opened(one_step), setting).calibrated.allows_savings, "although no other step checks it"
    slower = replace(trace, meta={**trace.meta, "profile": "mine"})
    assert not own_times(opened(slower), setting).calibrated.exact
    assert "<b>Exact:</b>" in make_report(one_step, setting).html


def test_a_notebook_shows_contradictions_first_and_how_the_profile_was_scaled() -> None:
    times = pd.DataFrame({"step": [0, 1, 2], "generate_s": 900.0, "responses": 16})
    own = own_times(OpenedLog(Trace(rollouts()), times, ""), sixteen_l40s())
    cells = [html.unescape(cell) for cell in re.findall("<td>(.*?)</td>", own._repr_html_())]
    verdicts = [cell for cell in cells if cell in ("contradiction", "agrees")]
    assert verdicts == sorted((check.verdict for check in own.checks), reverse=True)
    assert len(set(verdicts)) == 2
    assert "900 s" in cells
    assert f"Times of {own.scale.words()}." in html.unescape(own._repr_html_())
    bare = own_times(OpenedLog(Trace(rollouts()), times[["step"]], ""), sixteen_l40s())
    assert "nothing that can be compared" in bare._repr_html_()


def tables(trace: Trace) -> dict[str, pd.DataFrame]:
    return {name: getattr(trace, name) for name in ("rollouts", "allocations", "spans", "events")}


@pytest.mark.parametrize("policy", ["static", "solver"])
def test_ways_are_expected_savings_only_of_a_run_that_is_their_base(policy: str) -> None:
    run = rl.load(executed(policy), verbose=False)
    found = study(run.opened, run.setting, run.assumptions, 2)
    assert found.ways is not None
    assert found.times.own_plans == (policy == "solver")
    levers = {one.kind: one.expected for one in with_expected(run.diagnosis(), found).levers}
    assert levers["assignment"] is not None
    assert (levers["partial rollout"] is not None) == (policy == "static")


def test_a_learner_on_some_of_the_actors_gpus_has_none_of_its_own() -> None:
    run = rl.load(TRACES / "arithmetic-grpo", verbose=False)
    setup = run.times.setup
    assert (setup.colocated, setup.learner_gpus, setup.counted_learner_gpus) == (True, 1, 0)
    assert [setup.learns_on(gpus) for gpus in (1, 16, 32)] == [1, 1, 1]
    apart = replace(run.trace, allocations=run.trace.allocations.assign(gpu_ids=[
        [99] if role == "learner" else ids for role, ids in zip(run.trace.allocations["role"], run.trace.allocations["gpu_ids"],
                                                                strict=True)
    ]))  # fmt: skip
    setup = own_times(opened(apart), run.setting).setup
    assert (setup.colocated, setup.counted_learner_gpus) == (False, 1)


def test_an_executed_run_knows_what_share_of_a_step_each_phase_is() -> None:
    said = diagnose(TRACES / "arithmetic-grpo")
    assert 0.8 < said.numbers["learn_share"].value < 0.9
    assert not any("share of a step" in text for text in said.cannot_say)
    assert len(said.step)
    assignment = next(one for one in said.levers if one.kind == "assignment")
    assert assignment.at_most == pytest.approx(said.numbers["generate_gpu_share"].value * 15 / 16, rel=1e-3)


def learned(trace: Trace, seconds: tuple[float, ...]) -> Trace:
    """The same run, whose first GPU learned for so many seconds after the generation of each step."""
    of_step = trace.allocations.groupby("step", sort=True)
    ends = of_step["end_s"].max()
    learner = of_step.head(1).sort_values("step").assign(
        role="learner", holder="learner", start_s=ends.to_numpy(), end_s=ends.to_numpy() + seconds
    )  # fmt: skip
    learner["gpu_ids"] = [ids[:1] for ids in learner["gpu_ids"]]
    return trace.with_rows(**{**tables(trace), "allocations": pd.concat([trace.allocations, learner], ignore_index=True)})


def test_other_replicas_learn_as_long_as_each_step_did_and_save_of_what_the_run_took() -> None:
    seconds = (1.0, 2.0, 30.0)
    run = rl.load(learned(executed("solver"), seconds), verbose=False)
    found = study(run.opened, run.setting, run.assumptions, 2)
    steps = [step.step for step in found.schedules.logged]
    assert len(steps) == 2
    rows, static = found.gpu_counts.table, found.schedules.table.set_index(["policy", "step"])["time_s"].loc["static"]
    own = rows[rows["variant"] == rows["variant"].iloc[0]].set_index("step")["time_s"]
    assert (own - static)[steps].tolist() == pytest.approx([seconds[step] for step in steps])
    took = found.own_took
    assert took is not None
    for one in found.counts[found.counts["kind"] == run.setting.cluster.kind].itertuples():
        assert one.time_saved_mean == pytest.approx(1 - one.time_s / took["time_s"].sum())
        assert one.cost_saved_mean == pytest.approx(1 - one.gpu_s / took["gpu_s"].sum())
    assert (found.counts["cost_saved_mean"] < 0).iloc[0], "the run released its GPUs, and these are held"
    assert found.to_dict()["gpu_counts"][0]["cost_saved_mean"] == found.counts["cost_saved_mean"].iloc[0]
    page = Page("", "")
    page.section("settings")
    settings_part(page, found)
    text = text_of(page.render(""))
    assert "relative to what the run itself took" in text
    assert f"{took['time_s'].sum():.1f} s" in text


def test_every_step_of_a_policy_that_chooses_is_accounted_for() -> None:
    found = simulate(rollouts(), sixteen_l40s(), ["solver"])
    first, *others = found.plans["solver"]
    without = [replace(plan, notes={}) for plan in others]
    said = replace(found, plans={"solver": (first, *without)}).choices_in_words()["solver"]
    short, _, why = str(first.notes["chosen"]).partition(": ")
    assert f"{short} in 1 step ({why})," in said
    assert said.endswith("re-planning in 2 steps.")
    assert "re-planning" not in found.choices_in_words()["solver"]


def test_prices_of_an_executed_run_may_be_stated() -> None:
    run = rl.load(executed(), assumptions=Assumptions(prices={"spot": 0.9}), verbose=False)
    page = make_report(run.opened, run.setting, run.assumptions, said=run.diagnosis()).html
    assert "stated by you" in page
    with refused(InputError, "executed run", "learner_gpus", "leave it out"):
        rl.load(executed(), assumptions=Assumptions(learner_gpus=4), verbose=False)

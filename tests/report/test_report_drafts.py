"""What a report says of speculative decoding: where it pays, what it saves and how it is switched on; nothing elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused_command
from every_plot import part

from rlhfless.analysis import draft_savings as draft_savings_file
from rlhfless.analysis import log_texts
from rlhfless.analysis.draft_groups import SOURCES, draft_groups
from rlhfless.analysis.draft_savings import DraftSavings, assigned_plan, draft_savings
from rlhfless.analysis.log_texts import texts_of
from rlhfless.diagnosis.numbers import Lever
from rlhfless.engine.simulated.accepted_runs import MeasuredRuns
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.plots import plot_waterfall
from rlhfless.report.drafts import draft_lever, draft_lines, saved_by_drafts
from rlhfless.report.schedules import simulate_schedules
from rlhfless.simulate import STRONG, DrawnDrafts, SimulationConfig, logged_steps, simulate_steps
from rlhfless.trace import ImportOptions, Trace, open_log, validate
from solver import Cluster
from solver.model.drafting import Drafting

SETTING = SimulationConfig(
    Cluster(1, 8, 2, kind="l40s", usd_per_gpu_hour=3.6), load_profile("l40s-qwen2.5-3b-tp2"), bound_work=0
)
STEPS, PROMPTS, SAMPLES = 3, 8, 4


def texts(again: float, seed: int = 0) -> list[dict[str, Any]]:
    """Responses of random letters; each is with probability ``again`` that of a text that the prompt's responses share."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    model = {p: rng.choice(letters, 400) for p in range(PROMPTS)}
    rows = []
    for step in range(STEPS):
        for p in range(PROMPTS):
            for sample in range(SAMPLES):
                length = int(np.clip(rng.lognormal(4.6, 0.5), 20, 400))
                own = np.where(rng.random(length) < again, model[p][:length], rng.choice(letters, length))
                rows.append(
                    {
                        "step": step, "prompt_id": f"p{p}", "sample": sample, "prompt_tokens": 20, "prompt": f"prompt {p}",
                        "response": "".join(own), "response_tokens": length, "finish_reason": "length",
                    }
                )  # fmt: skip
    return rows


def rollouts_of(rows: list[dict[str, Any]], folder: Path) -> pd.DataFrame:
    pd.DataFrame(rows).to_parquet(folder / "log.parquet")
    return open_log(folder / "log.parquet", ImportOptions(keep=frozenset({"prompt", "response"}))).trace.rollouts


def found_in(rollouts: pd.DataFrame, unit: str = "tokens") -> tuple[DraftSavings, ...]:
    steps = list(logged_steps(rollouts))[-2:]
    assigned = simulate_steps(steps, SETTING, ("static",)).traces["static"].rollouts
    return draft_savings(rollouts, steps, assigned, SETTING, str.encode, unit)


def lever(drafts: tuple[DraftSavings, ...], framework: str) -> Lever:
    return draft_lever(drafts[0], framework, 0.5, "time", (0.1, 0.2))


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> tuple[DraftSavings, ...]:
    return found_in(rollouts_of(texts(0.97), tmp_path_factory.mktemp("log")))


def test_responses_that_repeat_earlier_ones_are_drafted_from_them(repeating: tuple[DraftSavings, ...]) -> None:
    best = repeating[0]
    assert best.configuration.method == "suffix"
    assert best.speculative_config == {"method": "suffix", "num_speculative_tokens": best.draft_tokens}
    assert 0.3 < best.low <= best.mean <= best.high < 1 - 1 / (best.draft_tokens + 1)
    assert best.mean < 1 - 1 / best.tokens_per_pass, "passes that verify more tokens take longer"
    assert all(one.mean <= best.mean for one in repeating)


@pytest.mark.parametrize(("again", "seed"), [(0.97, 0), (0.9, 1)])
def test_the_saving_is_that_of_a_simulation_of_every_pass(
    again: float, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last step, whose responses are the measured ones: its own where each takes its own passes, else in the range."""
    rollouts = rollouts_of(texts(again, seed), tmp_path)
    step = list(logged_steps(rollouts))[-1]
    assigned = simulate_steps([step], SETTING, ("static",)).traces["static"].rollouts
    best = draft_savings(rollouts, [step], assigned, SETTING, str.encode)[0]
    length, names = best.draft_tokens, zip(step.rows["prompt_id"], step.rows["sample"], strict=True)
    index = {name: i for i, name in enumerate(names)}
    runs = {}
    for group in draft_groups(rollouts, str.encode, SOURCES[-1], steps=[step.step]):
        for sample, own in zip(group.name.samples, group.runs(length), strict=True):
            runs[index[group.name.prompt_id, sample]] = own
    factory = DraftedEngineFactory(Drafting(length=length, max_draft_tokens=length, min_match=1), MeasuredRuns(runs))
    latency, plan = replace(SETTING.latency, start_s=0.0, sync_s=0.0), assigned_plan(step, assigned, SETTING)
    alone, drafted = (
        max(c.time_s for c in run_step(plan, step.requests(), engines, latency, SETTING.cluster).completions.values())
        for engines in (SimulatedEngine, factory)
    )
    assert best.low - 0.02 <= 1 - drafted / alone <= best.high + 0.02
    monkeypatch.setattr(draft_savings_file, "NEIGHBOURS", 0.0)
    own = next(d for d in draft_savings(rollouts, [step], assigned, SETTING, str.encode) if d.draft_tokens == length)
    assert own.mean == pytest.approx(1 - drafted / alone, abs=0.02)


def test_a_method_is_said_with_its_range_and_what_it_was_measured_on(repeating: tuple[DraftSavings, ...]) -> None:
    best = repeating[0]
    said = saved_by_drafts(best)
    assert f"saved {best.mean:.0%} of the generation time ({best.low:.0%} to {best.high:.0%}" in said
    assert f"give {best.tokens_per_pass:.2f} tokens per pass (measured on {best.measured} responses" in said


def test_the_lever_has_the_lines_of_the_framework(repeating: tuple[DraftSavings, ...]) -> None:
    of_verl = lever(repeating, "verl")
    assert (of_verl.kind, of_verl.at_most, of_verl.expected) == ("drafts", 0.5, (0.1, 0.2))
    assert "engine_kwargs.vllm.speculative_config.method=suffix" in of_verl.line
    assert "keep their distribution" in of_verl.price
    assert "++policy.generation.vllm_kwargs.speculative_config.method=suffix" in lever(repeating, "nemo-rl").line
    assert "--speculative-config '{" in lever(repeating, "table").line
    assert lever(repeating, "slime").line == "", "slime does not decode with vLLM"
    assert draft_lines(repeating[0], "verl")[-1].startswith("pip install arctic-inference")


def test_texts_without_a_tokenizer_are_counted_in_bytes(tmp_path: Path) -> None:
    found = found_in(rollouts_of(texts(0.97), tmp_path), "bytes")
    assert "counted in bytes, so this is rough" in lever(found, "verl").price
    assert "bytes per pass" in saved_by_drafts(found[0])


def test_where_drafts_do_not_pay_or_are_on_already_or_texts_are_missing_nothing_is_said(tmp_path: Path) -> None:
    rollouts = rollouts_of(texts(0.0), tmp_path)
    assert found_in(rollouts) == ()
    good = rollouts_of(texts(0.97), tmp_path)
    assert found_in(good.drop(columns="response")) == ()
    assert found_in(good.assign(drafted_tokens=4)) == ()
    assert len(found_in(good.assign(drafted_tokens=0))) > 0


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_messages_in_place_of_texts_are_no_texts(suffix: str, tmp_path: Path) -> None:
    said = lambda text: [{"role": "user", "content": text}]  # noqa: E731
    frame = pd.DataFrame(texts(0.97))
    frame = frame.assign(prompt=frame["prompt"].map(said), response=frame["response"].map(said))
    if suffix == ".parquet":
        frame.to_parquet(tmp_path / "log.parquet")
    else:
        frame.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    rollouts = open_log(tmp_path / f"log{suffix}", ImportOptions(keep=texts_of(tmp_path))).trace.rollouts
    assert found_in(rollouts) == ()


def test_texts_of_large_logs_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("x" * 100)
    monkeypatch.setattr(log_texts, "MAX_BYTES", 150)
    assert texts_of(tmp_path / "a.jsonl") == {"prompt", "response"}
    assert texts_of(tmp_path) == frozenset()


@pytest.mark.full
def test_the_command_keeps_texts_and_counts_them_with_the_tokenizer(tmp_path: Path) -> None:
    pd.DataFrame(texts(0.97)).to_parquet(tmp_path / "log.parquet")
    done = run_rlhfless("report", str(tmp_path / "log.parquet"), "--gpus", "8", "--steps", "1", "-o", str(tmp_path / "r.html"))
    assert done.exit_code == 0, done.output
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "Speculative decoding with vLLM&#39;s method suffix would have saved" in page
    assert "name the tokenizer with --tokenizer" in page


def test_the_ladder_of_ideas_has_a_rung_for_speculation_where_drafts_are_given() -> None:
    rng = np.random.default_rng(5)
    rows = [
        {"run": "a", "step": step, "prompt_id": str(prompt), "sample": k, "prompt_tokens": 4,
         "response_tokens": int(rng.integers(5, 60)), "finish_reason": "stop"}
        for step in (0, 1) for prompt in range(6) for k in range(4)
    ]  # fmt: skip
    trace = Trace(validate("rollouts", pd.DataFrame(rows)))
    setting = SimulationConfig(Cluster(1, 4, 2), load_profile("l40s-qwen2.5-3b-tp2"), max_response_tokens=60)
    plain, drafted = (
        simulate_schedules(trace, replace(setting, drafts=drafts), 1) for drafts in (None, DrawnDrafts(STRONG))
    )  # fmt: skip
    assert plain.ladder == (*drafted.ladder[:6], "oracle+replan")
    assert set(drafted.policies) <= set(drafted.table["policy"]), "tables compare schedules without drafts, too"
    results = drafted.results(drafted.ladder).set_index("policy")
    assert results.loc["solver+replan, drafts", "time_s"] < results.loc["solver+replan", "time_s"]
    assert (results["gpu_seconds"] >= results["bound_gpu_seconds"] * (1 - 1e-9)).all()
    bars = part(plot_waterfall(drafted.results(drafted.ladder)), "time")
    assert bars["label"][bars["label"].str.contains("speculation")].tolist() == ["speculation: draft and verify"]


def test_a_notebook_has_no_bar_for_speculation(tmp_path: Path) -> None:
    out = str(tmp_path / "page.ipynb")
    done = run_rlhfless("report", "log.jsonl", "-o", out, "--drafts", "weak")
    refused_command(done, "--drafts", "notebook", ".html")

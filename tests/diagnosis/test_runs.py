"""Runs and layouts of GPUs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from trace_samples import PUBLIC_DATA

from rlhfless.diagnosis import diagnose
from rlhfless.diagnosis.asynchronous import asynchronous
from rlhfless.diagnosis.logged_run import LoggedRun, Stated
from rlhfless.diagnosis.numbers import Collected, Part
from rlhfless.diagnosis.phases import phases
from rlhfless.diagnosis.runs import each_run, runs, runs_frame
from rlhfless.diagnosis.whole_run import whole_run
from rlhfless.trace import import_log

CASE = PUBLIC_DATA / "cases" / "08_async_wait_is_zero" / "steps.csv"


def table(rows: list[dict[str, Any]], **stated: Any) -> LoggedRun:
    """Return a log whose rows are steps of runs."""
    return LoggedRun("log", "", pd.DataFrame([{"step": 0, **row} for row in rows]), stated=Stated(**stated))


def compared(rows: list[dict[str, Any]]) -> Part:
    """Return what is said of these runs."""
    return runs(table(rows), Collected())


SCALING = [
    {"run": "8 GPUs", "gpus": 8, "run_s": 36_000, "steps_done": 100},
    {"run": "16 GPUs", "gpus": 16, "run_s": 21_600, "steps_done": 100},
    {"run": "32 GPUs", "gpus": 32, "run_s": 21_420, "steps_done": 100},
]


def test_gpu_hours_per_step_scaling_and_where_more_gpus_win_nothing() -> None:
    part = compared(SCALING)
    numbers = {one.key: one.value for one in part.numbers}
    assert numbers["runs/8 GPUs/gpu_hours_per_step"] == pytest.approx(0.8)
    assert numbers["runs/16 GPUs/step_s"] == pytest.approx(216)
    assert numbers["runs/16 GPUs/scaling_efficiency_share"] == pytest.approx(0.8 / 0.96)
    assert numbers["scaling_efficiency_share"] == pytest.approx(0.8 / 1.904)
    (finding,) = part.findings
    assert finding.kind == "layout"
    assert "32 GPUs is the fastest" in finding.sentence
    assert "8 GPUs is the cheapest" in finding.sentence
    assert "From 16 to 32 GPUs nothing is won" in finding.sentence
    assert "From 8 to 16" not in finding.sentence
    assert set(finding.proof) <= set(numbers)


def test_items_are_compared_where_they_are_counted() -> None:
    part = compared([
        {"run": "a", "gpus": 8, "run_s": 800, "items": 400, "steps_done": 10},
        {"run": "b", "gpus": 16, "run_s": 900, "items": 1800, "steps_done": 10},
    ])  # fmt: skip
    numbers = {one.key: one.value for one in part.numbers}
    assert numbers["runs/a/item_s"] == 2
    assert numbers["runs/b/gpu_hours_per_item"] == pytest.approx(16 * 0.5 / 3600)
    assert "b is the fastest" in part.findings[0].sentence
    assert not any("same work" in note for note in part.notes)


def test_layouts_of_the_same_gpus_and_a_run_without_seconds() -> None:
    part = compared([
        {"run": "even", "gpus_generate": 4, "gpus_train": 4, "step_s": 100},
        {"run": "more generation", "gpus_generate": 6, "gpus_train": 2, "step_s": 80},
        {"run": "unknown", "gpus_generate": 2, "gpus_train": 6},
    ])  # fmt: skip
    assert "more generation is the fastest" in part.findings[0].sentence
    assert "scaling" not in part.findings[0].sentence
    assert any("unknown" in note for note in part.notes)


def test_runs_whose_gpus_nobody_knows_have_a_fastest_and_no_cheapest() -> None:
    part = compared([{"run": "a", "step_s": 100}, {"run": "b", "step_s": 10}])
    (finding,) = part.findings
    assert "b is the fastest" in finding.sentence
    assert "10.00 times as fast as a" in finding.sentence
    assert "cheapest" not in finding.sentence
    assert any("--gpus" in sentence for sentence in part.cannot_say)
    numbers = {one.key: one.value for one in part.numbers}
    assert numbers == {"runs/a/step_s": 100, "runs/b/step_s": 10, "runs/b/times_as_fast": 10}


def test_tokens_per_second_compare_runs_without_seconds() -> None:
    part = runs(
        table(
            [{"run": "plain", "tokens_per_s": 500.0}, {"run": "drafts", "tokens_per_s": 800.0, "tokens_per_pass": 2.4}],
            gpus=2, usd_per_gpu_hour=3.0,
        ),
        Collected(),
    )  # fmt: skip
    numbers = {one.key: one.value for one in part.numbers}
    assert numbers["runs/drafts/times_as_fast"] == pytest.approx(1.6)
    assert numbers["runs/plain/gpu_hours_per_million_tokens"] == pytest.approx(2 * 1e6 / 500 / 3600)
    assert numbers["runs/plain/usd_per_million_tokens"] == pytest.approx(6 * 1e6 / 500 / 3600)
    assert numbers["runs/drafts/decode_saving_share"] == pytest.approx(1 - 500 / 800)
    assert numbers["runs/drafts/pass_cost_ratio"] == pytest.approx(2.4 / 1.6)
    assert "2.40 tokens per pass" in part.findings[0].sentence
    assert any("share of a step that decodes" in sentence for sentence in part.cannot_say)


def test_gpu_hours_of_runs_as_stated() -> None:
    part = compared([{"run": "sync", "gpu_hours": 24.9, "run_s": 1650}, {"run": "async", "gpu_hours": 19.0, "run_s": 960}])
    numbers = {one.key: one.value for one in part.numbers}
    assert numbers["runs/sync/gpu_hours_per_run"] == 24.9
    assert "async is the cheapest with 19" in part.findings[0].sentence


def test_two_series_of_sizes_are_not_one_scaling() -> None:
    part = compared([
        {"run": f"{kind}: {nodes} nodes", "nodes": nodes, "step_s": step_s}
        for kind, nodes, step_s in (("new", 2, 40), ("new", 4, 20), ("new", 8, 11), ("old", 4, 90), ("old", 16, 10))
    ])  # fmt: skip
    assert "From 2 to 8 nodes" in part.findings[0].sentence
    numbers = {one.key: one.value for one in part.numbers}
    assert numbers["scaling_efficiency_share"] == pytest.approx(2 * 40 / (8 * 11))


def test_medians_are_said_not_to_add_up() -> None:
    part = compared([{**row, "median generation (s)": 100.0} for row in SCALING])
    assert any("Medians do not add up" in note for note in part.notes)
    assert not any("Medians" in note for note in compared(SCALING).notes)


def test_layouts_whose_training_never_waits_give_their_next_gpu_to_training() -> None:
    part = compared([
        {"run": "large", "gpus_generate": 24, "gpus_train": 24, "wait_s": 0.0, "step_s": 1500},
        {"run": "half", "gpus_generate": 12, "gpus_train": 12, "wait_s": 0.0003},
        {"run": "starved", "wait_s": 90.0, "step_s": 100},
    ])  # fmt: skip
    (line,) = [note for note in part.notes if "training" in note]
    assert "large" in line
    assert "half" in line
    assert "starved" not in line


PRICED = """| setup | GPUs | step (s) | $/GPU-hr |
|---|---|---|---|
| 8x A100 | 8 | 280 | $1.80 |
| 8x H100 | 8 | 150 | $3.00 |
| 16x L40S | 16 | 230 | $0.90 |
"""


def test_the_cheapest_is_in_dollars_where_the_table_has_prices(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(PRICED)
    said = diagnose(tmp_path / "a.md", Stated(usd_per_gpu_hour=2.0))
    assert said.numbers["runs/8x A100/usd_per_step"].value == pytest.approx(8 * 1.8 * 280 / 3600)
    sentence = said.findings[0].sentence
    assert "16x L40S is the cheapest with 0.92 USD per step, where 8x A100 takes 1.12" in sentence
    assert "perfect scaling" not in sentence, "GPUs of other kinds are no further GPUs"
    assert "nothing is won" not in sentence
    assert said.runs[1].numbers["usd"].value == pytest.approx(1.0), "a run's own price is surer than the stated one"


def test_other_kinds_of_gpus_without_prices_have_no_cheapest(tmp_path: Path) -> None:
    text = "| setup | GPU | GPUs | step (s) |\n|---|---|---|---|\n| a | A100 | 8 | 280 |\n| b | H100 | 16 | 150 |\n"
    (tmp_path / "a.md").write_text(text)
    said = diagnose(tmp_path / "a.md")
    assert "a, A100 takes the fewest GPU-hours" in said.findings[0].sentence
    assert "scaling" not in said.findings[0].sentence
    assert any("price" in one for one in said.cannot_say)


def test_samples_per_second_are_compared_per_item(tmp_path: Path) -> None:
    text = (
        "| mode | GPUs | batch | samples/s |\n|---|---|---|---|\n| server 7+1 | 8 | 112 | 2.0 |\n| colocate | 8 | 128 | 3.0 |\n"
    )
    (tmp_path / "a.md").write_text(text)
    said = diagnose(tmp_path / "a.md")
    assert said.numbers["runs/colocate/times_as_fast"].value == pytest.approx(1.5)
    assert said.numbers["runs/colocate/gpu_hours_per_item"].value == pytest.approx(8 / 3 / 3600)
    assert any("112, 128" in note for note in said.notes)


WIDE_DRAFTS = """| batch size | no spec (tok/s) | EAGLE k=3 (tok/s) | accept len | speedup |
|---:|---:|---:|---:|---:|
| 1 | 100 | 180 | 2.4 | 1.80x |
| 8 | 700 | 1050 | 2.4 | 1.50x |
| 128 | 7,000 | 6,300 | 2.4 | 0.90x |
"""
LONG_DRAFTS = """batch size,method,throughput (tok/s),acceptance length
1,none,100,-
1,EAGLE k=3,180,2.4
8,none,700,-
8,EAGLE k=3,1050,2.4
128,none,7000,-
128,EAGLE k=3,6300,2.4
"""


@pytest.mark.parametrize(("text", "plain"), [(WIDE_DRAFTS, "no spec"), (LONG_DRAFTS, "none")])
def test_drafts_are_compared_within_a_batch(tmp_path: Path, text: str, plain: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    said = diagnose(tmp_path / "a.txt")
    (finding,) = said.findings
    assert f"1.80 times as fast as {plain} at batch 1, 1.50 times at batch 8, 0.90 times at batch 128" in finding.sentence
    assert "stops paying between batch 8 and 128" in finding.sentence
    assert "fastest" not in finding.sentence
    assert said.numbers["runs/EAGLE k=3, batch 8/times_as_fast"].value == pytest.approx(1.5)
    assert said.numbers["runs/EAGLE k=3, batch 128/times_as_fast"].value == pytest.approx(0.9)
    assert f"runs/{plain}, batch 128/times_as_fast" not in said.numbers
    assert set(finding.proof) <= set(said.numbers)


def test_a_run_that_is_called_synchronous_hides_nothing(tmp_path: Path) -> None:
    rows = "| step time | 180 s | 100 s |\n| train wait | 90 s (50%) | 20 s |\n| train time | 88 s | 79 s |\n"
    (tmp_path / "a.md").write_text(f"| Metric | Sync (200 steps) | Fully async |\n|---|---|---|\n{rows}")
    together, beside = diagnose(tmp_path / "a.md").runs
    assert "generation_rate_to_hide" not in together.numbers
    assert together.numbers["generate_share"].value == pytest.approx(0.5)
    assert beside.numbers["generation_rate_to_hide"].value == pytest.approx(100 / 80)


def test_a_log_of_one_run_has_nothing_to_compare() -> None:
    assert compared([{"step_s": 100, "gpus": 8}]) == Part()
    assert compared([{"run": "a", "step_s": 100, "gpus": 8}, {"run": "a", "step": 1, "step_s": 90, "gpus": 8}]) == Part()
    assert [name for name, _ in each_run(table([{"step_s": 1}]))] == [""]


def test_means_over_the_steps_of_each_run() -> None:
    steps = [
        {"run": run, "step": at, "step_s": step_s, "gpus": gpus}
        for run, gpus, step_s in (("a", 8, 100.0), ("b", 16, 70.0))
        for at in range(4)
    ]
    frame = runs_frame(table(steps)).set_index("run")
    assert frame["seconds"].to_dict() == {"a": 100.0, "b": 70.0}
    assert frame["gpu_hours"].to_dict() == pytest.approx({"a": 800 / 3600, "b": 1120 / 3600})


def test_a_table_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "layouts.csv"
    path.write_text("layout,nodes,gpus_per_node,samples,wall hours\nsmall,1,8,8000,10\nlarge,4,8,8000,3\n")
    log = import_log(path)
    part = runs(LoggedRun(path.name, log.framework, log.scalars), Collected())
    numbers = {one.key: one.value for one in part.numbers}
    assert numbers["runs/small/gpu_hours_per_item"] == pytest.approx(80 / 8000)
    assert numbers["runs/large/item_s"] == pytest.approx(3 * 3600 / 8000)
    assert "small is the cheapest" in part.findings[0].sentence


@pytest.mark.skipif(not CASE.is_file(), reason="the public cases are not beside the project (shared/data/cases)")
def test_a_public_table_of_waits() -> None:
    log = import_log(CASE)
    assert log.rollouts is None
    whole = LoggedRun(CASE.name, log.framework, log.scalars)
    found = {}
    for name, run in each_run(whole):
        found[name] = Collected()
        for section in (phases, whole_run, asynchronous):
            found[name].add(section(run, found[name]))
    large, half, small = (found[name] for name in ("gpu64", "gpu32", "small"))
    shares = [large.numbers.value(f"{name}_share") for name in ("learn", "prepare", "sync", "unnamed")]
    assert shares == pytest.approx([0.69, 0.16, 0.11, 0.039], abs=0.005)
    assert large.numbers.value("gpu_hours_per_step") == pytest.approx(54.3, abs=0.05)
    assert small.numbers.value("wait_share") == pytest.approx(0.935, abs=5e-4)
    assert small.numbers.value("generation_rate_to_hide") == pytest.approx(15.4, abs=0.1)
    assert all("next GPU belongs to training" in " ".join(one.cannot_say) for one in (large, half))
    assert any("gpu64" in note and "gpu32" in note for note in runs(whole, Collected()).notes)
    for one in found.values():
        assert not {"tail", "engine"} & {finding.kind for finding in one.findings}, (
            "no schedule of generation wins anything here"
        )
        assert "generate_s" not in one.numbers


def test_gpus_of_the_runs_beat_one_stated_number() -> None:
    part = runs(table(SCALING, gpus=8), Collected())
    numbers = {one.key: one.value for one in part.numbers}
    assert numbers["runs/32 GPUs/gpu_hours_per_step"] == pytest.approx(32 * 214.2 / 3600)
    assert "8 GPUs is the cheapest" in part.findings[0].sentence
    assert any("8, 16, 32" in note for note in part.notes)
    without = [{name: value for name, value in row.items() if name != "gpus"} for row in SCALING]
    costs = {one.key: one.value for one in runs(table(without, gpus=8), Collected()).numbers}
    assert costs["runs/32 GPUs/gpu_hours_per_step"] == pytest.approx(8 * 214.2 / 3600)

"""RLHFuse's figures: the curve over the migration ratio has its best where the cut is chosen; published values beside ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless

from rlhfless.latency import load_profile
from rlhfless.paper import OTHER_FIGURES, Numbers, Runs, Sources, rlhfuse
from solver import Cluster, Objective, PlanningProblem, random_split
from solver.step.cut import choose_cut
from solver.step.work import Learner, TokenWork

CUT, SCHEDULES = OTHER_FIGURES["rlhfuse_cut"], OTHER_FIGURES["rlhfuse_schedules"]
SMALL = {"draws": 1, "actors": 4, "shares": (0.1, 0.2, 0.5)}
FEW = {**SCHEDULES.fast, "instances": ("2", "5", "8")}


@pytest.fixture(scope="module")
def curve() -> Numbers:
    return CUT.numbers(Runs(Sources(None)), **SMALL)


@pytest.fixture(scope="module")
def schedules() -> Numbers:
    return SCHEDULES.numbers(Runs(Sources(None)), **FEW)


def test_the_curve_has_its_least_time_where_the_cut_is_chosen(curve: Numbers) -> None:
    assert list(curve.table) == rlhfuse.CUTS
    history = rlhfuse.histories(Sources(None))[0]
    workload = rlhfuse.workload_of(history)
    latency = load_profile("l40s-qwen2.5-7b-tp4").affine
    size = latency.gpus_per_actor
    problem = PlanningProblem(workload, Cluster(4, size, size), latency, Objective(1.0))
    work, learner = TokenWork(latency.prefill_per_token_s, 0.0), Learner(overlaps=True)
    split = random_split(problem, actors=4, seed=0)
    chosen = choose_cut(split, problem, work, learner, shares=SMALL["shares"], followed=10_000)
    first = rlhfuse.best(curve).iloc[0]
    assert (first["data_set"], first["passes"]) == (history.name, 1)
    assert first["time_s"] == pytest.approx(chosen.time_s)
    assert first["share"] == chosen.share


def test_no_cut_is_a_candidate_and_preparation_on_released_gpus_never_loses(curve: Numbers) -> None:
    table = curve.table
    uncut = table[table["share"] == 0]
    assert len(uncut) == len(table.groupby(["data_set", "passes"]))
    assert (uncut["keep"] == SMALL["actors"]).all()
    assert (uncut["time_s"] <= uncut["serial_s"] * (1 + 1e-9)).all()
    assert table["serial_s"].to_numpy() == pytest.approx((table["generation_s"] + table["prepare_s"]).to_numpy())
    assert (
        (table["time_s"] >= table[["generation_s", "prepare_s"]].max(axis=1) * (1 - 1e-9)).groupby(table["share"]).any().all()
    )


def test_the_schedules_have_their_bounds_and_published_values(schedules: Numbers) -> None:
    table = schedules.table.set_index("instance")
    assert table["latency"].tolist() == table["latency_bound"].tolist() == [225, 225, 186]
    assert table["paper_latency"].tolist() == [225, 225, 186]
    assert "cpu_s" not in table.columns  # differs from run to run
    assert schedules.measured is not None
    assert (schedules.measured["cpu_s"] > 0).all()
    assert [one.holds for one in SCHEDULES.findings(schedules)] == ["yes"]
    searched = schedules._replace(table=schedules.table.assign(memory_search_share=0.5, peak_memory=[15.6, 15.6, 26.0]))
    assert [one.holds for one in SCHEDULES.findings(searched)] == ["yes", "yes"]
    memory = SCHEDULES.findings(searched)[1]
    assert memory.ours == "below the published one in 1 and above it in 0 of 3"
    assert memory.bound == "proven least in 2"


@pytest.mark.parametrize("name", ["rlhfuse_cut", "rlhfuse_schedules"])
def test_the_command_writes_it_and_names_its_paper(
    name: str, tmp_path: Path, curve: Numbers, schedules: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure, found = (CUT, curve) if name == "rlhfuse_cut" else (SCHEDULES, schedules)
    monkeypatch.setitem(OTHER_FIGURES, name, replace(figure, numbers=lambda *_, **__: found))
    result = run_rlhfless("figures", name, "--fast", "--pictures", "none", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / f"figure_{name}.html").read_text(encoding="utf-8")
    assert "arXiv:2409.13221" in text
    assert "2602.22718" not in text
    assert len(pd.read_csv(tmp_path / "out" / f"figure_{name}.csv")) == len(found.table)


def test_marks_of_the_curve_are_its_best_cuts(curve: Numbers) -> None:
    fig = CUT.plot(curve)
    stars = np.concatenate([trace.x for trace in fig.data if trace.marker.symbol == "star"])
    assert sorted(stars) == sorted(rlhfuse.best(curve)["share"])


def test_schedules_are_drawn_beside_published_values_and_bounds(schedules: Numbers) -> None:
    fig = SCHEDULES.plot(schedules)
    shown = [(trace.name, trace.yaxis) for trace in fig.data]
    assert shown[:3] == [("ours", "y"), ("published", "y"), ("lower bound", "y")]
    assert shown[3:] == [("published", "y2"), ("lower bound", "y2")], "memory was not searched"
    assert list(fig.data[0].x) == ["2", "5", "8"]
    assert list(fig.data[3].y) == schedules.table["paper_memory"].tolist()

"""Schedules of fused pipelines: published instances, one actor and critic, tables of instances, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from error_messages import refused

from rlhfless.errors import InputError
from rlhfless.paper.fused_pipelines import (
    PUBLISHED,
    FusedInstance,
    read_instances,
    rlhfuse_instances,
    schedule_instance,
    schedules_table,
)
from rlhfless.plots import plot_pipeline
from solver.model.errors import PlanningError
from solver.pipeline import PipelinePlan

ONE = FusedInstance("one", (4, 2, 8), (2, 1, 4), (1, 0.5))


def test_the_published_instances_are_rows_with_the_papers_values() -> None:
    table = schedules_table(schedule_instance(one, time_limit_s=0.02) for one in rlhfuse_instances())
    assert len(table) == 12
    assert table["paper_latency"].tolist()[9] == 613 > table["latency_bound"].tolist()[9] == 606
    assert (table["latency"] >= table["latency_bound"]).all()
    assert table["peak_memory"].isna().all(), "memory was not searched"
    assert table["paper_memory"].tolist()[0] == 19.7


def test_one_actor_and_critic_are_scheduled_and_kept_as_json() -> None:
    found = schedule_instance(ONE)
    assert found.plan.latency_is_optimal
    assert found.plan.search.objective == "latency"
    assert "actor, forward" in found.plot().to_json()
    split = schedule_instance(ONE, split_backward=True).plan
    assert PipelinePlan.from_json(split.to_json()).problem.split_backward
    assert split.latency <= found.plan.latency


def test_memory_that_was_not_minimised_is_said_with_what_to_type() -> None:
    one = FusedInstance("one", (4, 2, 4), (4, 1, 4), (1, 1))
    fast, frugal = schedule_instance(one), schedule_instance(one, memory=True, time_limit_s=0.1)
    assert not fast.plan.memory_is_optimal
    assert "not minimised: pass memory=True" in repr(fast.plan)
    assert "not minimised" not in repr(frugal.plan)


def test_the_status_of_the_latency_stands_beside_it_whether_memory_is_searched_or_not() -> None:
    searched, alone = (schedule_instance(ONE, memory=memory, time_limit_s=0.1) for memory in (True, False))
    table = schedules_table([searched, alone])
    assert table["latency_status"].tolist() == ["optimal", "optimal"]
    assert table["peak_memory"].iloc[0] == searched.plan.peak_memory >= table["memory_bound"].iloc[0] * (1 - 1e-9)
    assert math.isnan(table["peak_memory"].iloc[1])


def test_a_table_of_instances_needs_no_published_results(tmp_path: Path) -> None:
    rows = pd.read_csv(PUBLISHED).iloc[[5]].drop(columns=["experiment", "paper_latency", "paper_peak_memory_memory_pass"])
    rows.to_csv(tmp_path / "mine.csv", index=False)
    table = schedules_table(schedule_instance(one, time_limit_s=0.02) for one in read_instances(tmp_path / "mine.csv"))
    assert table["instance"].tolist() == ["0"]
    assert table["paper_latency"].isna().all()


def test_memory_is_searched_for_and_the_schedule_is_drawn() -> None:
    found = schedule_instance(FusedInstance("one", (4, 2, 4), (4, 1, 4), (1, 1)), memory=True, time_limit_s=0.1)
    assert found.plan.search.objective == "latency_then_memory"
    assert 0 <= found.plan.search.memory_share <= 1
    assert "actor, forward" in plot_pipeline({"one": found.plan}).to_json()


def test_models_that_fit_no_pipeline_are_refused() -> None:
    with refused(PlanningError, "3 stages"):
        schedule_instance(FusedInstance("wrong", (4, 2, 8), (3, 1, 4)))


def test_malformed_tables(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    columns = list(pd.read_csv(PUBLISHED))
    header = ",".join(columns) + "\n"
    with refused(InputError, "missing.csv"):
        read_instances("missing.csv")
    for text, named in (
        ("a,b\n1,2\n", "pp_actor"),
        ("", "mine.csv"),
        (header, "has no rows"),
        (header + ",".join(["x"] * len(columns)) + "\n", "not a number"),
    ):
        file.write_text(text, encoding="utf-8")
        with refused(InputError, named):
            read_instances(file)

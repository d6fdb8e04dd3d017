"""``explore`` has the plan and the numbers of ``run.plan(step)`` and its ``compare``, whatever else the machine does."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from dashboard_cards import cards_of
from log_samples import log

import rlhfless as rl
from rlhfless.plots.style import number, signed_share
from rlhfless.run import Run
from rlhfless.simulate import bound_of_plan
from rlhfless.widgets import Settings, WhatIf
from rlhfless.widgets.explorer import Explorer
from rlhfless.widgets.explorer_cards import plan_cards


@pytest.fixture(scope="module")
def run() -> Run:
    return rl.load(rl.example(), verbose=False)


def shown(explorer: Explorer) -> dict[str, list[str]]:
    assert explorer.wait(300)
    assert explorer.error is None
    return cards_of(explorer.panes.pane_facts)


def row_of(run: Run, step: int, policy: str) -> pd.Series:
    return run.plan(step).compare("random").table.set_index("policy").loc[policy]


def numbers(row: pd.Series) -> dict[str, str]:
    """A row of ``compare`` as the cards write it."""
    return {
        "actors": f"{int(row['actors'])}",
        "time": number(row["time_s"], "s"),
        "GPU-seconds": number(row["gpu_seconds"], digits=4),
        "cost": number(row["cost_usd"], "USD"),
        "above the lower bound": f"{row['gpu_seconds'] / row['bound_gpu_seconds'] - 1:.1%}",
    }


@pytest.mark.full
@pytest.mark.parametrize("step", [-1, 3])
def test_every_tile_is_what_run_plan_says_of_the_step(run: Run, step: int) -> None:
    explorer = run.explore(step)
    tiles, solver, random = shown(explorer), row_of(run, step, "solver"), row_of(run, step, "random")
    assert {name: tiles[name][0] for name in numbers(solver)} == numbers(solver)
    assert explorer.planned is not None
    for own, theirs in zip(explorer.planned.plan.actors, run.plan(step).plan.actors, strict=True):
        assert replace(own, predicted_s=0.0) == replace(theirs, predicted_s=0.0)
        assert own.predicted_s == pytest.approx(theirs.predicted_s, rel=1e-9)  # the run's profile is fitted to its times
    for name, column in (("time", "time_s"), ("GPU-seconds", "gpu_seconds"), ("cost", "cost_usd")):
        assert f"{signed_share(solver[column] / random[column] - 1)} against random" in tiles[name]
    at = {name: f"{number(row['time_s'], 's')}" for name, row in (("solver", solver), ("random", random))}
    hovers = {one.name: one.hovertext[0] for one in plane_of(explorer).data if one.hovertext is not None}
    assert at["solver"] in hovers["solver (this plan)"]
    assert at["random"] in hovers["random"]
    assert f"{numbers(solver)['above the lower bound']}" in hovers["solver (this plan)"]


def plane_of(explorer: Explorer):  # type: ignore[no-untyped-def]
    import plotly.io

    return plotly.io.from_json(explorer.panes.pane_plane, skip_invalid=True)


@pytest.mark.full
def test_every_way_to_explore_a_log_begins_with_the_same_numbers(run: Run) -> None:
    path = rl.example()
    stated = Settings(profile=str(run.profile))
    runs = [rl.load(path, verbose=False), rl.load(run.trace, verbose=False)]
    ways = [run.explore(), run.explore(settings=stated), *(one.explore() for one in runs)]
    assert [{name: said[0] for name, said in shown(one).items()} for one in ways[1:]] == [
        {name: said[0] for name, said in shown(ways[0]).items()}
    ] * 3


def test_nodes_and_the_response_limit_of_a_run_are_those_of_its_sliders(tmp_path: Path) -> None:
    folder = log().save(tmp_path / "log")
    nodes = rl.Hardware(gpus_per_node=6, usd_per_gpu_hour=2.0)
    run = rl.load(folder, 12, "cpu-tiny-qwen2", hardware=nodes, max_response_tokens=800, time_weight=0.4, verbose=False)
    explorer = run.explore()
    assert {name: shown(explorer)[name][0] for name in ("time", "GPU-seconds", "cost")}.items() <= numbers(
        row_of(run, -1, "solver")
    ).items()
    assert explorer.planned is not None
    assert explorer.planned.logged[0].predicted.max_response_tokens == 800
    assert explorer.settings.setting.cluster == run.setting.cluster
    copied: dict[str, object] = {}
    exec(explorer.as_code()[0], copied)
    assert copied["planned"].executed["time_s"] == explorer.planned.executed["time_s"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("nodes", [(1, 4), (1, 16), (3, 4), (2, 8)])
def test_a_trace_begins_with_the_nodes_that_it_states(nodes: tuple[int, int]) -> None:
    trace = log()
    trace.meta.update({"profile": "cpu-tiny-qwen2", "cluster": {"nodes": nodes[0], "gpus_per_node": nodes[1]}})
    run = rl.load(trace, verbose=False)
    cluster = run.explore().settings.setting.cluster
    assert (cluster.nodes, cluster.gpus_per_node) == nodes
    assert cluster == run.setting.cluster


def test_a_plan_depends_on_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    what_if, settings = WhatIf(rl.load(rl.example(), verbose=False)), Settings()
    quiet = what_if.plan(settings)
    leaps = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0 * next(leaps))
    busy = what_if.plan(settings)
    assert busy.plan.to_dict()["actors"] == quiet.plan.to_dict()["actors"]
    timed = ["planning_s", "planning_delay_s"]
    assert busy.executed.drop(timed).equals(quiet.executed.drop(timed))
    assert busy.plan.status == quiet.plan.status


def test_front_and_bound_are_for_the_true_lengths(run: Run) -> None:
    what_if = WhatIf(run)
    planned = what_if.plan(Settings(profile=str(run.profile)))
    others, front = what_if.alternatives(planned), what_if.front(planned)
    assert others is not None
    own = run.plan()
    best = bound_of_plan(own.setting, own.logged, own.plan)
    assert best is not None
    assert planned.bound is not None
    for plan in front.plans:
        assert planned.bound.gpu_seconds(plan.makespan_s) <= plan.gpu_seconds
        assert planned.bound.gpu_seconds(plan.makespan_s) == pytest.approx(best.gpu_seconds(plan.makespan_s), rel=1e-9)
    oracle = others.table.set_index("policy").loc["oracle"]
    slower = [plan.gpu_seconds for plan in front.plans if plan.makespan_s >= oracle["time_s"]]
    assert max(slower) < 1.2 * oracle["gpu_seconds"], "what the oracle does is near the front"


@pytest.mark.parametrize(
    ("weight", "times", "costs", "loses"),
    [
        (0.7, 1.063, 1.052, True),
        (0.7, 1.2, 0.95, True),
        (0.0, 0.8, 1.004, True),
        (0.7, 0.64, 1.217, False),
        (0.7, 1.0, 1.0, False),
    ],
)
def test_a_plan_that_loses_to_a_reference_says_so_weighed_and_with_time_and_cost(
    weight: float, times: float, costs: float, loses: bool
) -> None:
    planned = WhatIf(rl.load(log(), 8, "cpu-tiny-qwen2", verbose=False)).plan(
        Settings("cpu-tiny-qwen2", gpus=8, time_weight=weight)
    )
    steps, random = planned.table.copy(), planned.executed_under("random")
    own = steps["policy"] == "solver"
    steps.loc[own, ["time_s", "gpu_seconds"]] = times * random["time_s"], costs * random["gpu_seconds"]
    changed = replace(planned, table=steps)
    assert (changed.worse_than("random") > 0) == loses
    said = []
    for name in ("static", "random"):
        other, mine = changed.executed_under(name), changed.executed
        time, cost = (float(mine[column] / other[column]) for column in ("time_s", "gpu_seconds"))
        if (worse := time**weight * cost ** (1 - weight) - 1) > 1e-9:
            assert changed.worse_than(name) == pytest.approx(worse)
            changes = f"{signed_share(time - 1)} time, {signed_share(cost - 1)} cost"
            said.append(f"loses to {name}, weighed at {weight:g}: {signed_share(worse)} ({changes})")
    tile = cards_of(plan_cards(changed, None, 0.1))["above the lower bound"]
    assert [one for one in tile if "loses" in one] == said
    assert any("random" in one for one in said) == loses


def test_a_rule_that_moved_responses_stands_beside_the_predicted_time() -> None:
    planned = WhatIf(rl.load(rl.example(), verbose=False)).plan(Settings("h100-qwen2.5-3b-tp2", gpus=16, time_weight=0.7))
    assert planned.plan.rule is not None
    moves = int(planned.executed["moves"])
    assert moves > 0
    assert f"it moved {moves:,} responses" in plan_cards(planned, None, 0.1)
    steps = planned.table.assign(moves=0)
    assert "it moved" not in plan_cards(replace(planned, table=steps), None, 0.1)

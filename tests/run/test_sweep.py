"""``run.sweep`` and ``variants``: the run's own steps on other GPUs, under other policies, at other time weights."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from log_samples import rollouts

import rlhfless as rl
from rlhfless.errors import InputError
from rlhfless.plots import plain
from rlhfless.run import Run, Variant, variants
from rlhfless.scheduling import PlanningOptions, PolicyError, PolicyFunction
from rlhfless.simulate import Comparison
from rlhfless.trace import TraceError
from solver import Plan, PlanningError, PlanningProblem, random_split

PROFILE = "l40s-qwen2.5-3b-tp2"


@pytest.fixture(scope="module")
def run() -> Run:
    return rl.load(rollouts(steps=3, prompts=6, samples=2), 16, PROFILE, verbose=False)


@pytest.fixture(scope="module")
def swept(run: Run) -> Comparison:
    return run.sweep(gpus=[2, 8, 16], time_weight=[0.1, 0.9], policies=["static", "solver"])


def test_every_combination_has_a_row_per_step(run: Run, swept: Comparison) -> None:
    table = swept.to_frame()
    assert len(table) == 3 * (1 + 2) * len(run.steps), "static does not depend on the time weight"
    assert table["variant"].unique().tolist()[:3] == ["2 GPUs, static", "2 GPUs, w=0.1, solver", "2 GPUs, w=0.9, solver"]
    for _, rows in table.groupby("variant"):
        assert rows[["policy", "time_weight", "gpus"]].drop_duplicates().shape[0] == 1
        assert rows["step"].tolist() == run.steps
    assert (table["bound_gpu_seconds"] <= table["gpu_seconds"] * (1 + 1e-9)).all()
    assert list(swept.traces) == table["variant"].unique().tolist()
    which = f"Comparison of {table['variant'].nunique()} variants on {len(run.steps)} steps of the log, means per step"
    assert repr(swept).splitlines()[0] == which


def test_the_runs_own_gpus_have_the_numbers_of_a_simulation(run: Run, swept: Comparison) -> None:
    columns = ["step", "time_s", "gpu_seconds", "cost_usd", "actors"]
    at_own = run.sweep(policies=["static", "solver"]).table
    simulated = run.simulate(["static", "solver"]).table
    for policy in ("static", "solver"):
        ours, theirs = (table[table["policy"] == policy][columns] for table in (at_own, simulated))
        assert ours.to_numpy(dtype=float) == pytest.approx(theirs.to_numpy(dtype=float), rel=1e-12)
    assert at_own["variant"].unique().tolist() == ["static", "solver"]


def test_a_trace_is_of_its_variant(swept: Comparison) -> None:
    for name in ("2 GPUs, static", "16 GPUs, w=0.9, solver"):
        rows = swept.table[swept.table["variant"] == name]
        trace = swept.traces[name]
        assert trace.meta["cluster"]["nodes"] * trace.meta["cluster"]["gpus_per_node"] == rows["gpus"].iloc[0]
        assert trace.rollouts["end_s"].max() == pytest.approx(rows["time_s"].sum())


def test_means_are_of_the_steps(swept: Comparison) -> None:
    means = swept.means().set_index("variant")
    for name, rows in swept.table.groupby("variant"):
        assert means.loc[name, "time_s"] == pytest.approx(rows["time_s"].mean())
        assert means.loc[name, "steps"] == 3


def test_the_front_is_what_no_other_variant_beats(swept: Comparison) -> None:
    """By comparing every pair."""
    means = swept.means()
    points = list(zip(means["variant"], means["time_s"], means["gpu_seconds"], strict=True))

    def beaten(time_s: float, cost: float) -> bool:
        return any(t <= time_s and c <= cost and (t, c) != (time_s, cost) for _, t, c in points)

    expected = {(time_s, cost) for _, time_s, cost in points if not beaten(time_s, cost)}
    front = swept.front().means()
    assert list(zip(front["time_s"], front["gpu_seconds"], strict=True)) == sorted(expected)
    assert 1 < len(front) < len(points)
    assert swept.front().front().means()["variant"].tolist() == front["variant"].tolist()
    assert set(swept.front().traces) == set(front["variant"])


def test_a_figure_has_every_variant_and_names_the_front(swept: Comparison) -> None:
    figure, front = swept.plot(), swept.front().means()
    drawn = [(x, y) for line in figure.data if line.name in ("static", "solver") for x, y in zip(line.x, line.y, strict=True)]
    means = swept.means()
    assert sorted(drawn) == sorted(zip(means["time_s"], means["gpu_seconds"], strict=True))
    named = " = ".join(str(note.text) for note in figure.layout.annotations)
    assert all(name in named for name in front["variant"])
    assert len(swept.front().plot().data[0].x) == len(front)
    assert figure.table.loc[figure.table["on_front"], "variant"].tolist() == [
        n for n in means["variant"] if n in set(front["variant"])
    ]


def test_variants_that_are_equal_share_a_name(swept: Comparison) -> None:
    twice = swept.table.assign(variant="first"), swept.table.assign(variant="other")
    alike = replace(swept, table=pd.concat([one[swept.table["variant"] == swept.table["variant"].iloc[0]] for one in twice]))
    assert [one.text for one in alike.plot().layout.annotations] == ["first = other"]


def test_figures_of_comparisons_say_their_clock_and_profile(run: Run, swept: Comparison) -> None:
    for found in (swept, run.simulate(["static", "solver"]), run.what_ifs()):
        assert f"virtual clock, profile {run.setting.latency.name}" in plain(found.plot().layout.title.text)


def test_kinds_of_gpus_are_compared_in_dollars(run: Run) -> None:
    kinds = [Variant("l40s"), Variant("h100", rl.Hardware(gpus=8, profile="h100-qwen2.5-3b-tp1"))]
    found = variants(run, kinds)
    assert found.cost == "cost_usd"
    assert found.table["gpu_kind"].unique().tolist() == ["l40s", "h100"]
    assert "USD" in found.plot().layout.yaxis.title.text
    front = found.front().means()
    assert front["cost_usd"].is_monotonic_decreasing
    free = replace_cost(found)
    with refused(InputError, "h100", "usd_per_gpu_hour"):
        free.front()
    assert "GPU-seconds" in free.plot().layout.yaxis.title.text


def replace_cost(found: Comparison) -> Comparison:
    """The same where nobody knows a price of H100s."""
    usd = found.table["cost_usd"].where(found.table["gpu_kind"] != "h100")
    return Comparison(found.table.assign(cost_usd=usd), found.traces)


def test_json_has_rows_and_means_and_no_nan(run: Run) -> None:
    found = run.sweep(gpus=[1, 8], steps=run.steps[-1:])
    shown = json.loads(found.to_json())
    assert [row["variant"] for row in shown["steps"]] == ["8 GPUs"]
    assert shown["means"][0]["time_s"] == pytest.approx(found.means()["time_s"].iloc[0])
    assert list(shown["left_out"]) == ["1 GPU"]
    free = Comparison(found.table.assign(cost_usd=math.nan), found.traces)
    assert json.loads(free.to_json())["means"][0]["cost_usd"] is None
    assert shown["times"] == run.times.scale.words()


def test_what_cannot_run_is_left_out_and_says_why(run: Run) -> None:
    found = run.sweep(gpus=[1, 8], steps=run.steps[-1:])
    for shown in (repr(found), found._repr_html_()):
        assert "left out: 1 GPU (" in shown
    with refused(PlanningError, 2):
        run.sweep(gpus=[1], steps=run.steps[-1:])


def test_one_step_on_the_same_gpus_is_drawn_as_timelines(run: Run) -> None:
    last = run.steps[-1]
    compared = variants(run, [Variant("before", policy="static"), Variant("after", policy="solver")], steps=[last])
    assert f"Step {last}: after (after)" in compared.plot().layout.title.text
    several = run.simulate(["static", "solver"]).plot()
    assert "Time and cost of each policy" in several.layout.title.text


def test_variants_of_a_run_without_gpus_state_their_own(run: Run) -> None:
    unknown = rl.load(run.rollouts, profile=PROFILE, verbose=False)
    assert unknown.sweep(gpus=[8], steps=[0]).table["gpus"].tolist() == [8]
    with refused(InputError, "gpus"):
        unknown.sweep(time_weight=[0.1])


def test_a_sweep_chooses_the_size_of_actors_as_a_plan_does() -> None:
    run = rl.load(rl.example(), gpus=2, time_weight=0.0, verbose=False)
    found = run.sweep(gpus=[2], time_weight=[0.0], steps=[7]).table.iloc[0]
    planned = run.plan(7).compare().table.iloc[-1]
    columns = ["gpus_per_actor", "time_s", "gpu_seconds"]
    assert found[columns].tolist() == planned[columns].tolist()
    assert found["gpus_per_actor"] == 1, "the run has 2 GPUs per actor"
    stated = rl.load(rl.example(), 2, hardware=rl.Hardware(gpus_per_actor=2), verbose=False)
    assert stated.sweep(time_weight=[0.0], steps=[7]).table["gpus_per_actor"].tolist() == [2]


def test_gpus_that_decode_all_the_time_are_idle_for_exactly_0_s() -> None:
    found = rl.load(rl.example(), gpus=2, verbose=False).sweep(steps=[5])
    assert found.means()["idle_gpu_seconds"].tolist() == [0.0]


def test_sizes_of_actors_come_from_profiles(run: Run) -> None:
    h100 = rl.load(run.rollouts, 8, "h100-qwen2.5-3b-tp1", verbose=False)
    found = h100.sweep(gpus_per_actor=[1, 2], steps=[2])
    assert found.table["gpus_per_actor"].tolist() == [1, 2]
    several = h100.sweep(gpus_per_actor=[1, 2])
    for shown in (found, several):
        points = [(x, y) for one in shown.plot().data if one.name == "solver" for x, y in zip(one.x, one.y, strict=True)]
        means = shown.means()
        assert points == list(zip(means["time_s"], means["gpu_seconds"], strict=True)), "each size has a point of its own"
    with refused(InputError, "gpus_per_actor", 4, "1, 2"):
        h100.sweep(gpus_per_actor=[4])


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"gpus": 8}, InputError, ("gpus", 8, "[8, 16]")),
        ({"gpus": []}, InputError, ("gpus", "[]")),
        ({"gpus": [8, "16"]}, InputError, ("gpus", "'16'")),
        ({"gpus": [0]}, InputError, ("gpus", 0)),
        ({"gpus": [True]}, InputError, ("gpus", "True")),
        ({"gpus": [8, 8.0]}, InputError, ("gpus", "twice")),
        ({"gpus_per_actor": "2"}, InputError, ("gpus_per_actor", "'2'")),
        ({"time_weight": 0.7}, InputError, ("time_weight", 0.7)),
        ({"time_weight": [1.5]}, PlanningError, ("time_weight", 1.5)),
        ({"time_weight": [None]}, PlanningError, ("time_weight", "None")),
        ({"policies": "solver"}, InputError, ("policies", "'solver'")),
        ({"policies": ["solver", "solver"]}, InputError, ("policies", "twice")),
        ({"policies": ["statik"]}, PolicyError, ("'statik'",)),
        ({"gpus": np.array(8)}, InputError, ("gpus", 8)),
        ({"gpus": np.array([8, 8])}, InputError, ("gpus", "twice")),
        ({"gpus": [10**12]}, InputError, ("gpus", 10**12, "1,000,000")),
        ({"gpus_per_actor": [10**12]}, InputError, ("gpus_per_actor", 10**12)),
        ({"steps": 5}, InputError, ("steps", 5)),
        ({"steps": "1"}, InputError, ("steps", "'1'")),
        ({"steps": ["1"]}, InputError, ("steps", "'1'")),
        ({"steps": [1, 99]}, TraceError, ("steps", 99, "0 to 2")),
    ],
)
def test_wrong_arguments_are_one_sentence(
    run: Run, wrong: dict[str, Any], error: type[Exception], named: tuple[Any, ...]
) -> None:
    with refused(error, *named):
        run.sweep(**wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ([], ("[]", "Variant")),
        ("solver", ("'solver'", "Variant")),
        ([Variant("a"), "b"], ("'b'", "Variant")),
        ([Variant("a"), 1], ("1", "Variant")),
        ([Variant("a"), Variant("a")], ("'a'", "twice")),
    ],
)
def test_what_are_no_variants_is_one_sentence(run: Run, wrong: Any, named: tuple[str, ...]) -> None:
    with refused(InputError, *named):
        variants(run, wrong)


@pytest.mark.parametrize("wrong", [None, 3, "log.jsonl"])
def test_what_is_no_run_has_no_variants(wrong: Any) -> None:
    with refused(InputError, "run", repr(wrong), "rlhfless.load"):
        variants(wrong, [Variant("a")])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"gpus": 8}, ("gpus", 8)),
        ({"gpus": []}, ("gpus", "[]")),
        ({"gpus": [8, 8]}, ("gpus", "twice")),
        ({"gpus": [10**12]}, ("gpus", 10**12)),
        ({"gpus_per_actor": 2}, ("gpus_per_actor", 2)),
        ({"gpu_kinds": "l40s"}, ("gpu_kinds", "'l40s'")),
    ],
)
def test_a_search_checks_what_it_is_given(run: Run, wrong: dict[str, Any], named: tuple[Any, ...]) -> None:
    with refused(InputError, *named):
        run.search(**wrong)


def test_arrays_are_lists(run: Run) -> None:
    found = run.sweep(gpus=np.array([8, 16]), steps=np.array(run.steps[-1:]))
    assert found.table["gpus"].tolist() == [8, 16]


@pytest.mark.parametrize("gpus", [0, "8", 1.5, True, 10**12])
def test_a_number_of_gpus_is_refused_where_it_is_stated(gpus: Any) -> None:
    with refused(InputError, "gpus", gpus, "1,000,000"):
        rl.Hardware(gpus=gpus)
    with refused(InputError, "gpus", gpus):
        rl.load(rollouts(steps=1, prompts=2, samples=1), gpus, PROFILE, verbose=False)


def test_some_of_the_variants_still_say_what_could_not_run(run: Run) -> None:
    found = run.sweep(gpus=[1, 8, 16], steps=run.steps[-1:])
    assert list(found.left_out) == ["1 GPU"]
    assert found.front().left_out == found.only(["8 GPUs"]).left_out == found.left_out


@pytest.mark.parametrize("wrong", [3, None, "8 GPUs", [["8 GPUs"]]])
def test_names_of_variants_are_a_list(swept: Comparison, wrong: Any) -> None:
    with refused(InputError, "variant"):
        swept.only(wrong)


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        (1, InputError, ("steps", 1)),
        ("1", InputError, ("steps", "'1'")),
        ([0, 99], TraceError, ("steps", 99, "0 to 2")),
        ([], TraceError, ("step",)),
    ],
)
def test_steps_of_a_simulation_are_steps_of_the_log(
    run: Run, wrong: Any, error: type[Exception], named: tuple[Any, ...]
) -> None:
    with refused(error, *named):
        run.simulate(["static"], steps=wrong)


@pytest.mark.parametrize(("arguments", "named"), [((3,), ("out", 3)), (("r.html", "x"), ("max_steps", "'x'"))])
def test_a_report_checks_what_it_is_given(run: Run, arguments: tuple[Any, ...], named: tuple[Any, ...]) -> None:
    out, *steps = arguments
    with refused(InputError, *named):
        run.report(out, **({"max_steps": steps[0]} if steps else {}))


def test_a_variant_checks_itself() -> None:
    with refused(InputError, "name", 3):
        Variant(3)  # type: ignore[arg-type]
    with refused(InputError, "hardware", 16, "Hardware"):
        Variant("a", 16)  # type: ignore[arg-type]


def test_the_recipe_of_the_page_runs(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "what_ifs.md").read_text("utf-8")
    section = page.split("## Other GPUs, time weights and policies", 1)[1].split("\n## ", 1)[0]
    run.rollouts.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.S)), names)
    assert len(names["swept"].means()) == 12


def test_functions_of_one_name_are_told_apart(run: Run) -> None:
    def on(actors: int) -> PolicyFunction:
        def planned(problem: PlanningProblem, options: PlanningOptions) -> Plan:
            return random_split(problem, actors=actors, seed=options.seed)

        return planned

    found = variants(run, [Variant("one", policy=on(1)), Variant("two", policy=on(2)), Variant("again", policy=on(1))])
    assert found.means()["actors"].tolist() == [1, 2, 1]


def test_a_policy_that_fails_leaves_the_others(run: Run) -> None:
    def never(problem: PlanningProblem, options: PlanningOptions) -> Plan:
        raise PlanningError("no plan today")

    found = variants(run, [Variant("never", policy=never), Variant("static", policy="static")])
    assert found.means()["variant"].tolist() == ["static"]
    assert found.left_out == {"never": "no plan today"}


def test_an_unknown_variant_is_refused_with_those_that_exist(swept: Comparison) -> None:
    with refused(InputError, "'3 GPUs'", "2 GPUs, static"):
        swept.only(["3 GPUs"])


def test_gpus_that_hold_no_actor_are_refused_with_what_would_hold_one(run: Run) -> None:
    with refused(PlanningError, "2 GPUs", "only 1", "gpus_per_node of 2"):
        run.sweep(gpus=[1], steps=run.steps[-1:])

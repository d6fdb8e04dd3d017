"""``rl.load``: any log or trace becomes a run with a diagnosis, and from there a plan, a comparison and a search."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused
from importer_samples import (
    TOKENIZER,
    many_rollouts,
    write_areal,
    write_nemo_rl,
    write_prime_rl,
    write_slime,
    write_table,
    write_trl,
    write_verl_v0,
    write_verl_v1,
)
from log_samples import log, rollouts

import rlhfless
import rlhfless as rl
from rlhfless.analysis import Assumptions
from rlhfless.engine import Request, SimulatedEngine
from rlhfless.errors import InputError
from rlhfless.latency import PriceError
from rlhfless.plots import plain
from rlhfless.run import Hardware, Run
from rlhfless.scheduling import PolicyError
from rlhfless.scheduling.assignments import Static
from rlhfless.scheduling.solver import CONSOLIDATION
from rlhfless.trace import ImportOptions, TraceError, import_log, open_log
from rlhfless.widgets import Settings
from solver import Cluster, PlanningError, PlanningProblem, Workload, random_split

ROOT = Path(__file__).parents[2]
WRITERS: dict[str, Callable[[Path, pd.DataFrame], Path]] = {
    "verl": write_verl_v1, "verl, V0": write_verl_v0, "trl": write_trl, "nemo-rl": write_nemo_rl, "areal": write_areal,
    "slime": write_slime, "prime-rl": write_prime_rl, "table": write_table,
}  # fmt: skip
"""By framework; OpenRLHF logs scalars only."""
PROFILE = "l40s-qwen2.5-3b-tp2"
SMALL = {"steps": 2, "prompts": 4, "samples": 2}
"""Size of a log whose plans are quick."""


def loaded(source: Any = None, **options: Any) -> Run:
    """A small log on 16 L40S GPUs."""
    source = rollouts() if source is None else source
    return rl.load(source, 16, PROFILE, **{"verbose": False, **options})


@pytest.mark.parametrize("framework", WRITERS)
def test_of_a_log_of_every_framework_what_limits_it_is_printed(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = many_rollouts(prompts=6, samples=2)
    logged = logged.assign(
        weights_version=0, start_s=10.0 * logged["step"], end_s=10.0 * logged["step"] + logged["response_tokens"]
    )
    path = WRITERS[framework](tmp_path, logged)
    run = rl.load(path, options=ImportOptions(tokenizer=TOKENIZER))
    said = capsys.readouterr().out
    assert said == f"{run.diagnosis()}\n"
    assert repr(run) == str(run.diagnosis())
    assert run.diagnosis() is run.diagnosis()
    assert run.diagnosis().numbers["response_tokens_mean"].evidence == "counted"
    assert "simulated" not in said


def test_plans_have_the_time_weight_that_the_run_has_recorded(tmp_path: Path) -> None:
    trace = rl.load(rl.example(), verbose=False).trace
    for meta in ({"objective": {"time_weight": 0.3}}, {"objective": None, "config": {"time_weight": 0.3}}):
        run = rl.load(replace(trace, meta={**trace.meta, **meta}), verbose=False)
        assert run.objective.time_weight == 0.3
    assert rl.load(replace(trace, meta={**trace.meta, "objective": None}), verbose=False).objective.time_weight == 0.7
    assert rl.load(trace, time_weight=0.9, verbose=False).objective.time_weight == 0.9
    changed = {**trace.meta, "objective": {"time_weight": 0.0}}
    replace(trace, meta=changed).save(tmp_path / "run")
    shown = run_rlhfless("plan", str(tmp_path / "run")).stdout
    assert shown == run_rlhfless("plan", rl.example(), "--time-weight", "0").stdout.replace(
        str(rl.example()), str(tmp_path / "run")
    )


def test_a_comparison_says_how_much_better_or_worse_each_policy_is_by_what_is_minimised() -> None:
    run = rl.load(rl.example(), verbose=False)
    compared = run.simulate(["static", "solver"], steps=run.steps[-2:])
    of = compared.table.groupby("variant", sort=False)[["time_s", "gpu_seconds"]].sum()
    ratio = float((of.loc["solver"] / of.loc["static"]).pow([0.7, 0.3]).prod())
    assert ratio < 1
    assert f"solver {1 - ratio:.1%} better" in repr(compared)
    backwards = run.simulate(["solver", "static"], steps=run.steps[-2:])
    for shown in (repr(backwards), backwards._repr_html_()):
        assert f"static {1 / ratio - 1:.1%} worse" in shown


def test_the_figure_of_a_plan_that_loses_says_by_how_much() -> None:
    run = rl.load(rl.example(), verbose=False)
    worse = run.plan(run.steps[-1], policy="static").compare("solver")
    title = worse.plot().layout.title.text
    assert next(line.strip() for line in repr(worse).splitlines() if "weighed" in line) in plain(title)
    assert "worse" not in run.plan(run.steps[-1]).compare("static").plot().layout.title.text
    equal = run.simulate(["static", Static(name="twin")], steps=run.steps[-1:])
    assert "against static: twin the same" in repr(equal)
    assert "worse" not in equal.plot().layout.title.text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpu": 4}, "give gpus=4"),
        ({"gpu": "h100"}, "known=Stated(gpu='h100')"),
        ({"weight": 0.3}, "give time_weight=0.3"),
        ({"usd_per_gpu_hour": 3}, "hardware=rl.Hardware(usd_per_gpu_hour=3)"),
        ({"nonsense": 1}, "gpus, profile"),
    ],
)
def test_an_argument_that_load_has_not_names_the_one_that_is_meant(given: dict[str, Any], told: str) -> None:
    with refused(InputError, next(iter(given)), told) as error:
        rl.load(rl.example(), verbose=False, **given)
    assert "Stated(gpu=4)" not in str(error.value)


def test_the_record_of_an_executor_states_its_gpus_its_profile_and_its_clock() -> None:
    latency, cluster = rl.load_profile("cpu-tiny-qwen2"), Cluster(1, 2, 1, "cpu")
    workload = Workload([6] * 4, np.repeat(range(4), 2), [40, 50, 60, 90] * 2, max_response_tokens=100)
    plan = random_split(PlanningProblem(workload, cluster, latency), actors=2)
    requests = [
        Request(i, 6, 100, target_tokens=int(tokens), prompt=i // 2) for i, tokens in enumerate(workload.response_tokens)
    ]
    with rl.Executor(SimulatedEngine, cluster, latency=latency) as executor:
        trace = executor.run(plan, requests).trace
    run = rl.load(trace, verbose=False)
    assert (run.setting.cluster.gpus, run.setting.cluster.kind, run.profile) == (2, "cpu", "cpu-tiny-qwen2")
    assert run.diagnosis().numbers["gpu_hours"].evidence == "counted"


def test_the_same_of_a_frame_a_trace_and_an_opened_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rollouts(**SMALL).to_csv(path, index=False)
    sources = (rollouts(**SMALL), log(**SMALL), path, open_log(path), import_log(path))
    numbers = [loaded(source).diagnosis().to_frame() for source in sources]
    for other in numbers[1:]:
        pd.testing.assert_frame_equal(other, numbers[0])


def test_a_plan_is_compared_with_other_schedules_on_the_true_lengths() -> None:
    run = loaded()
    planned = run.plan(step=-1)
    compared = planned.compare("static", "random")
    assert compared.table["policy"].tolist() == ["static", "random", "solver"]
    alone = run.simulate(["solver"], steps=[run.steps[-1]]).table
    assert compared.table["gpu_seconds"].iloc[-1] == pytest.approx(alone["gpu_seconds"].iloc[0])
    for result in compared.table.itertuples():
        bound = f"(lower bound in {result.time_s:.4g} s: {result.bound_gpu_seconds:.4g}, by "
        assert any(f"  {result.policy}: " in line and bound in line for line in repr(compared).splitlines())
    assert (compared.table["bound_gpu_seconds"] <= compared.table["gpu_seconds"] * (1 + 1e-9)).all()
    assert len(compared.plot().data) > 0
    assert len(planned.plan.actors) == compared.table["actors"].iloc[-1]
    assert run.plan(step=1).logged.step == 1


def test_a_policy_of_the_users_own_plans_a_step() -> None:
    class OneActor:
        """Everything on one actor."""

        name, clairvoyant = "one actor", False

        def plan(self, problem: Any, options: Any) -> Any:
            return random_split(problem, actors=1)

    compared = loaded().plan(policy=OneActor()).compare("static")  # type: ignore[arg-type]
    assert compared.table["actors"].tolist()[-1] == 1


def test_a_plan_and_a_comparison_say_which_plan_runs_and_why() -> None:
    run = rl.load(rl.example(), verbose=False)
    planned = run.plan(step=-1)
    assert planned.plan.notes["chosen"] == CONSOLIDATION
    assert planned.plan.notes["why"].startswith("Round-robin runs, and nearly empty actors")
    for shown in (repr(planned), planned._repr_html_()):
        assert planned.plan.notes["why"] in shown
    compared = planned.compare("static")
    said = f"solver ran {CONSOLIDATION}"
    assert said in repr(compared)
    assert said in compared._repr_html_()
    assert repr(compared).endswith("with 1 GPU per actor"), "what the other size of actors would have given"
    assert "consolidation" not in repr(run.plan(step=-1, policy="random").compare("static"))


def test_a_run_is_explored_and_compared() -> None:
    run = rl.load(
        rl.example(), 8, "h100-qwen2.5-3b-tp1", hardware=Hardware(usd_per_gpu_hour=1.5), time_weight=0.2, verbose=False
    )
    settings = run.explore(tau=0.5).settings
    assert (settings.profile, settings.gpus, settings.usd_per_gpu_hour) == ("h100-qwen2.5-3b-tp1", 8, 1.5)
    assert (settings.time_weight, settings.tau) == (0.2, 0.5)
    assert run.explore(run.steps[2]).what_if.step == run.steps[2]
    assert run.explore(settings=Settings(gpus=4)).settings == Settings(gpus=4).of_run(run)
    assert rl.compare({"run": run}).shown.table.equals(rl.compare({"run": run.trace}).shown.table)


@pytest.mark.full
def test_the_report_is_that_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rollouts().to_csv(tmp_path / "log.csv", index=False)
    run = loaded(tmp_path / "log.csv")
    page = run.report(tmp_path / "front.html", max_steps=1)
    assert capsys.readouterr().out == f"writing {page} (about a minute) ...\n"
    run.report(tmp_path / "again.html", max_steps=1, verbose=False)
    assert capsys.readouterr().out == ""
    arguments = ["report", "--gpus", "16", "--profile", PROFILE, "--steps", "1", str(tmp_path / "log.csv")]
    done = run_rlhfless(*arguments, "-o", str(tmp_path / "command.html"))
    assert done.exit_code == 0, done.output
    tables = [re.findall(r"<td[^>]*>(.*?)</td>", path.read_text("utf-8")) for path in (page, tmp_path / "command.html")]
    assert len(tables[0]) > 50
    assert tables[0] == tables[1]


@pytest.mark.full
def test_capacities_are_ranked_by_what_is_wanted() -> None:
    run = loaded(rollouts(steps=2, prompts=8, samples=2))
    free = run.search(gpus=(8, 16))
    table = free.means()
    assert set(table["gpu_kind"]) == {"l40s", "h100"}
    assert not free.left_out
    weight = run.setting.objective.time_weight
    values = table["time_s"] ** weight * table["cost_usd"] ** (1 - weight)
    assert values.is_monotonic_increasing
    fastest, cheapest = table["time_s"].min(), table["cost_usd"].min()

    def kind_of(best: str) -> str:
        return str(table.loc[table[best].idxmin(), "gpu_kind"])

    within = run.search(gpu_kinds=[kind_of("time_s")], gpus=(8, 16), deadline_s=float(fastest) * 1.0001).means()
    assert within["within_limit"].iloc[0]
    assert not within["within_limit"].all()
    assert within["time_s"].iloc[0] == pytest.approx(fastest)
    affordable = run.search(gpu_kinds=[kind_of("cost_usd")], gpus=(8, 16), budget_usd=float(cheapest) * 1.0001).means()
    assert affordable["cost_usd"].iloc[0] == pytest.approx(cheapest)
    assert len(free.plans[table["variant"].iloc[0]]) == table["steps"].iloc[0]


def test_gpus_that_hold_no_actor_are_left_out_and_say_why() -> None:
    found = loaded(rollouts(**SMALL)).search(gpu_kinds=["l40s"], gpus=(1, 16))
    assert found.means()["gpus"].tolist() == [16]
    ((name, why),) = found.left_out.items()
    assert "1 x L40S" in name
    assert f"left out: {name} ({why})" in repr(found)


def test_an_own_gpu_kind_is_ranked_at_its_price(tmp_path: Path) -> None:
    file = rl.profile_like("h100-qwen2.5-3b-tp1", kind="mine", decode=2.0, prefill=2.0, path=tmp_path / "mine.json")
    with refused(PriceError, "'mine'", "usd_per_gpu_hour"):
        rl.load(rollouts(**SMALL), 8, file, verbose=False).plan()
    run = rl.load(rollouts(**SMALL), 8, file, hardware=Hardware(usd_per_gpu_hour=1.0), verbose=False)
    table = run.search(gpus=(8,)).means().set_index("gpu_kind")
    assert set(table.index) == {"mine", "h100", "l40s"}
    assert table.loc["mine", "cost_usd"] == pytest.approx(table.loc["mine", "gpu_seconds"] / 3600)
    assert (table.loc["mine", "time_s"] < table.loc[["h100"], "time_s"].min()).all()


def test_a_limit_and_other_options_of_reading_are_arguments() -> None:
    longest = int(rollouts()["response_tokens"].max())
    assert loaded(max_response_tokens=longest + 100).setting.max_response_tokens == longest + 100
    with refused(TraceError, longest):
        loaded(max_response_tokens=longest - 1).plan()
    with refused(InputError, "max_tokens", "give max_response_tokens=3"):
        loaded(max_tokens=3)


def test_columns_with_other_names_are_all_named_with_the_way_to_map_them(tmp_path: Path) -> None:
    names = {"step": "iter", "response_tokens": "length"}
    rollouts(**SMALL).rename(columns=names).to_csv(tmp_path / "log.csv", index=False)
    with refused(TraceError, "'step'", "'response_tokens'", "mapping={'step': 'iter', 'response_tokens': 'THEIRS'}"):
        loaded(tmp_path / "log.csv")
    rollouts(**SMALL).to_csv(tmp_path / "own.csv", index=False)
    renamed, own = loaded(tmp_path / "log.csv", mapping=names), loaded(tmp_path / "own.csv")
    pd.testing.assert_frame_equal(renamed.rollouts, own.rollouts)


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    run = loaded()
    with refused(InputError, "int"):
        rl.load(3)  # type: ignore[arg-type]
    with refused(TraceError, "none.csv"):
        rl.load(tmp_path / "none.csv")
    with refused(InputError, 15, 8):
        rl.load(rollouts(), 15, PROFILE, verbose=False).plan()
    with refused(InputError, "reasoning-static"):
        rl.load(rl.example(), assumptions=Assumptions(learn_s=3.0))
    for wrong in (99, -4, "last", True, 1.0):
        with refused(InputError, "step", wrong):
            run.plan(step=wrong)  # type: ignore[arg-type]
    with refused(PolicyError, "solver"):
        run.plan().compare("solver")
    with refused(PlanningError, "deadline_s", "budget_usd"):
        run.search(deadline_s=1.0, budget_usd=1.0)
    with refused(PlanningError, "budget_usd", math.nan):
        run.search(budget_usd=math.nan)
    with refused(InputError, "tpu", "h100"):
        run.search(gpu_kinds=["tpu"])


def test_the_front_shows_its_names_and_no_others() -> None:
    assert dir(rl) == sorted(rlhfless.__all__)
    for name in rlhfless.__all__:
        assert getattr(rl, name).__doc__, name
    with pytest.raises(AttributeError, match=r"laod.*load"):
        rl.laod  # noqa: B018


def test_the_front_loads_nothing_heavy() -> None:
    heavy = "('numpy', 'pandas', 'plotly', 'torch', 'transformers', 'ortools', 'pyarrow')"
    fronts = "import rlhfless, rlhfless.engine, rlhfless.training, rlhfless.report; dir(rlhfless)"
    code = f"import sys; {fronts}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("profile", "known"), [("cpu-tiny-qwen2", False), (PROFILE, True)])
def test_an_unknown_price_is_no_cost_of_0_in_what_is_printed(profile: str, known: bool) -> None:
    """Emulated GPUs have none."""
    run = rl.load(rollouts(**SMALL), 16, profile, verbose=False)
    for result in (run.plan().compare("static"), run.search(gpus=[16])):
        for text in (repr(result), result._repr_html_()):
            assert ("unknown" in text) != known, text


def test_in_ipython_a_load_prints_one_line_as_the_cell_shows_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = rl.load(rl.example())
    assert capsys.readouterr().out == f"{run!r}\n"
    monkeypatch.setattr("rlhfless.run.loading.running_shell", object)
    rl.load(rl.example())
    assert capsys.readouterr().out == f"{run!r}\n".splitlines(keepends=True)[0]

"""What follows from settings: a plan and its execution, then policies, front and bound; all without a widget."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from log_samples import log

import rlhfless as rl
from rlhfless.errors import InputError
from rlhfless.latency import ProfileError, read_profile, save_profile
from rlhfless.run import Run
from rlhfless.trace import Trace
from rlhfless.widgets import Settings, WhatIf
from rlhfless.widgets.loaded_run import RunWithTimes
from rlhfless.widgets.settings import PREDICTORS, models
from rlhfless.widgets.what_if import PLANNER, POLICIES
from solver.model.errors import PlanningError
from solver.model.problem import PlanningProblem
from solver.timing.evaluate import evaluate

CPU = Settings("cpu-tiny-qwen2", gpus=8)


def on_cpus(source: Trace | pd.DataFrame | Path) -> Run:
    """The log on the GPUs of ``CPU``."""
    return rl.load(source, CPU.gpus, CPU.profile, verbose=False)


@pytest.fixture(scope="module")
def what_if() -> WhatIf:
    return WhatIf(on_cpus(log()))


def test_a_plan_is_executed_with_the_true_lengths(what_if: WhatIf) -> None:
    planned = what_if.plan(CPU)
    rows = planned.trace.rollouts
    truth = what_if.rollouts[what_if.rollouts["step"] == 2]
    assert rows["response_tokens"].tolist() == truth["response_tokens"].tolist(), "row i of the trace is response i"
    assert rows["prompt_id"].tolist() == truth["prompt_id"].tolist()
    held = planned.trace.allocations
    gpu_s = (held["end_s"] - held["start_s"]) * held["gpu_ids"].map(len)
    assert planned.executed["gpu_seconds"] == pytest.approx(gpu_s.sum())
    table = planned.actors
    assert table["responses"].sum() == len(truth)
    assert table["done_s"].max() == pytest.approx(planned.executed["time_s"])
    assert table["predicted_s"].max() <= planned.plan.makespan_s * (1 + 1e-9), "the mean over scenarios of the last actor"


def test_a_higher_time_weight_never_makes_the_planned_step_slower(what_if: WhatIf) -> None:
    times = [what_if.plan(replace(CPU, time_weight=w)).plan.makespan_s for w in (0.0, 0.5, 1.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_every_policy_stands_beside_the_plan_and_above_the_bound(what_if: WhatIf) -> None:
    planned = what_if.plan(CPU)
    others = what_if.alternatives(planned)
    assert others is not None
    assert others.table["policy"].tolist() == list(POLICIES)
    assert POLICIES[-1] == PLANNER
    assert (others.table["gpu_seconds"] >= others.table["bound_gpu_seconds"]).all()
    assert others.table["gpu_seconds"].iloc[-1] == planned.executed["gpu_seconds"]
    assert list(others.traces) == list(others.plans) == list(POLICIES)
    assert planned.bound is not None
    assert planned.bound.gpu_seconds(planned.executed["time_s"]) <= planned.executed["gpu_seconds"]
    assert len(what_if.front(planned).plans) >= 1


def test_what_nobody_waits_for_any_more_is_left_out(what_if: WhatIf) -> None:
    asked = []
    assert what_if.alternatives(what_if.plan(CPU), lambda: bool(asked.append(1)) or len(asked) < 3) is None
    assert len(asked) == 3, "asked between policies, and no policy is run after the first no"


@pytest.mark.full
def test_tau_and_predictors_and_prices_change_what_they_should(what_if: WhatIf) -> None:
    def gpu_s(policy: str, settings: Settings) -> float:
        others = what_if.alternatives(what_if.plan(settings))
        assert others is not None
        return float(others.table.set_index("policy").loc[policy, "gpu_seconds"])

    assert gpu_s("rlhfless", replace(CPU, tau=0.2)) != gpu_s("rlhfless", replace(CPU, tau=1.0))
    assert gpu_s("static", replace(CPU, tau=0.2)) == gpu_s("static", replace(CPU, tau=1.0))
    lengths = {name: tuple(what_if.logged(name).predicted.response_tokens) for name in PREDICTORS}
    assert len(set(lengths.values())) > 1
    planned = what_if.plan(replace(CPU, usd_per_gpu_hour=3.6))
    assert planned.executed["cost_usd"] == pytest.approx(planned.executed["gpu_seconds"] * 0.001)


@pytest.mark.full
def test_settings_survive_json_and_their_python_code_computes_the_same(tmp_path: Path) -> None:
    folder = log().save(tmp_path / "log")
    settings = replace(CPU, time_weight=0.35, predictor="inflight")
    assert Settings(**json.loads(settings.to_json())) == settings
    names: dict[str, object] = {}
    what_if = WhatIf(on_cpus(folder), 2)
    planned = what_if.plan(settings)
    exec(settings.to_python(str(folder), 2, what_if.scale), names)
    assert names["planned"].plan.makespan_s == planned.plan.makespan_s  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gpus": 12, "gpus_per_node": 8}, ("12",)),
        ({"gpus": 0}, ("gpus", "0")),
        ({"profile": "l40s-qwen2.5-7b-tp4", "gpus": 2}, ()),
        ({"predictor": "oracle"}, ()),
        ({"predictor": "trend"}, ("inflight",)),
        ({"tau": 0.0}, ("0.0",)),
        ({"time_weight": math.nan}, ("time_weight",)),
        ({"usd_per_gpu_hour": -1.0}, ("usd_per_gpu_hour", "-1.0")),
        ({"gpus": "16"}, ("'16'",)),
        ({"gpus": 16.5}, ("16.5",)),
        ({"gpus": True}, ()),
        ({"gpus": [8, 16]}, ()),
        ({"time_weight": "0.5"}, ("time_weight", "'0.5'")),
        ({"tau": None}, ()),
        ({"usd_per_gpu_hour": "3"}, ("usd_per_gpu_hour", "'3'")),
        ({"predictor": ["inflight"]}, ()),
        ({"profile": 3}, ()),
    ],
)
def test_settings_out_of_range_are_refused_in_a_sentence(wrong: dict[str, object], said: tuple[str, ...]) -> None:
    with refused(InputError, *said):
        Settings(**wrong)  # type: ignore[arg-type]


def test_numbers_of_arrays_and_paths_become_what_json_can_hold(tmp_path: Path) -> None:
    path = save_profile(tmp_path / "mine.json", read_profile("cpu-tiny-qwen2"))
    settings = Settings(path, gpus=np.int64(8), tau=np.float32(0.5))  # type: ignore[arg-type]
    assert Settings(**json.loads(settings.to_json())) == settings == Settings(str(path), gpus=8, tau=0.5)


def test_a_gpu_kind_without_a_list_price_asks_for_one(tmp_path: Path) -> None:
    path = str(save_profile(tmp_path / "mine.json", {**read_profile("cpu-tiny-qwen2"), "kind": "mi300x"}))
    with refused(InputError, "'mi300x'", "usd_per_gpu_hour"):
        _ = Settings(path, 8, 0.7).setting
    assert Settings(path, 8, 0.7, usd_per_gpu_hour=3.0).setting.cluster.usd_per_gpu_hour == 3.0


@pytest.mark.parametrize("step", [9, -1, 1.5, "last", [1]])
def test_a_step_that_is_not_there_is_refused(step: int) -> None:
    with refused(InputError, str(repr(step))):
        WhatIf(on_cpus(log()), step)


@pytest.mark.parametrize("run", [None, "a/trace", ["a/trace"], log()])
def test_what_is_no_loaded_run_is_refused(run: RunWithTimes) -> None:
    with refused(InputError, type(run).__name__, "rlhfless.load"):
        WhatIf(run)


def test_one_step_alone_is_planned_without_history() -> None:
    rows = log().rollouts
    alone = WhatIf(on_cpus(rows[rows["step"] == 0]))
    assert len(alone.plan(CPU).trace.rollouts) == 48


def test_methods_say_what_they_need(what_if: WhatIf) -> None:
    with refused(InputError):
        what_if.plan({"gpus": 8})  # type: ignore[arg-type]
    with refused(InputError, "'ewma'"):
        what_if.logged("ewma")
    with refused(InputError, "WhatIf.plan"):
        what_if.alternatives(CPU)  # type: ignore[arg-type]
    with refused(InputError, "WhatIf.plan"):
        what_if.front(CPU)  # type: ignore[arg-type]


def test_what_cannot_be_planned_says_why() -> None:
    big = log()
    big.rollouts["prompt_tokens"] = 10**9
    with pytest.raises(PlanningError):
        WhatIf(on_cpus(big)).plan(CPU)


def test_settings_that_are_not_given_are_those_of_the_run() -> None:
    run = rl.load(
        rl.example(), 8, "h100-qwen2.5-3b-tp1", hardware=rl.Hardware(usd_per_gpu_hour=1.5), time_weight=0.2, verbose=False
    )
    planned = WhatIf(run, 7).plan(Settings())
    assert planned.settings == Settings("h100-qwen2.5-3b-tp1", 8, 0.2, usd_per_gpu_hour=1.5, gpus_per_node=8, any_size=True)
    assert planned.executed["time_s"] == run.plan(7).compare().table["time_s"].iloc[-1]
    other = Settings("l40s-qwen2.5-3b-tp2", time_weight=0.3).of_run(run)
    assert (other.gpus, other.time_weight, other.usd_per_gpu_hour) == (8, 0.3, None), "other GPUs have their list price"
    with refused(InputError, "profile", "of_run(run)"):
        _ = Settings().setting


def test_only_the_profile_of_the_run_is_said_to_agree_with_its_log() -> None:
    what_if = WhatIf(rl.load(rl.example(), verbose=False), 7)
    own, other = (what_if.plan(Settings(profile)) for profile in (None, "l40s-qwen2.5-3b-tp2"))
    assert own.settings.profile == what_if.run.profile != other.settings.profile
    assert "agree with those of 8 steps" in own.times
    assert other.times.startswith("profile l40s-qwen2.5-3b-tp2 as it is, not compared with")


def test_sliders_begin_with_the_profile_and_the_gpus_of_the_run() -> None:
    trace = log()
    trace.meta.update({"profile": "cpu-tiny-qwen2", "cluster": {"nodes": 3, "gpus_per_node": 8}})
    assert rl.load(trace, verbose=False).explore().settings.gpus == 24
    trace.meta["profile"] = "somebody's own"
    with refused(ProfileError, "somebody's own"):
        rl.load(trace, verbose=False)


def test_gpus_that_nobody_states_are_asked_for_and_never_assumed() -> None:
    unknown = rl.load(log(), profile="cpu-tiny-qwen2", verbose=False)
    with refused(InputError, "how many GPUs", "gpus=N"):
        unknown.explore()
    with refused(InputError, "how many GPUs", "gpus=N"):
        WhatIf(unknown).plan(CPU)


def test_every_shipped_profile_can_be_chosen_by_kind_and_size() -> None:
    sizes = models()
    assert sorted(sizes["h100 · Qwen2.5-3B"]) == [1, 2]
    assert all(
        Settings(name, 16, 0.7).setting.cluster.gpus_per_actor == size for of in sizes.values() for size, name in of.items()
    )


def test_a_given_profile_is_a_choice_beside_the_shipped_ones_of_its_kind(tmp_path: Path) -> None:
    shipped = read_profile("h100-qwen2.5-3b-tp2")
    same = str(save_profile(tmp_path / "same.json", shipped))
    other = str(save_profile(tmp_path / "other.json", {**shipped, "gpus_per_actor": 4}))
    sizes = models(same, other)
    assert sizes["h100 · Qwen2.5-3B"] == {**models()["h100 · Qwen2.5-3B"], 4: other}
    assert sizes[f"h100 · Qwen2.5-3B · {same}"] == {2: same}
    assert models("h100-qwen2.5-3b-tp2") == models(), "a shipped one is no second"


def test_the_plan_shown_is_timed_by_the_planning_model(what_if: WhatIf) -> None:
    planned = what_if.plan(CPU)
    taken = evaluate(
        planned.plan, PlanningProblem(planned.logged[0].predicted, planned.setting.cluster, planned.setting.latency)
    )
    assert planned.plan.makespan_s == pytest.approx(taken.makespan_s)

"""What follows from settings: a plan and its execution, then policies, front and bound; all without a widget."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from error_messages import refused
from log_samples import log

from rlhfless.errors import InputError
from rlhfless.latency import ProfileError, read_profile, save_profile
from rlhfless.trace import Limits, TraceError
from rlhfless.widgets import Settings, WhatIf, explore
from rlhfless.widgets.settings import PREDICTORS, models
from rlhfless.widgets.what_if import PLANNER, POLICIES
from solver.model.errors import PlanningError
from solver.model.problem import PlanningProblem
from solver.timing.evaluate import evaluate

CPU = Settings("cpu-tiny-qwen2", gpus=8)


@pytest.fixture(scope="module")
def what_if() -> WhatIf:
    return WhatIf(log())


def test_a_plan_is_executed_with_the_true_lengths(what_if: WhatIf) -> None:
    planned = what_if.plan(CPU)
    rows = planned.trace.rollouts
    truth = what_if.rollouts[what_if.rollouts["step"] == 2]
    assert rows["response_tokens"].tolist() == truth["response_tokens"].tolist(), "row i of the trace is response i"
    assert rows["prompt_id"].tolist() == truth["prompt_id"].tolist()
    held = planned.trace.allocations
    gpu_s = (held["end_s"] - held["start_s"]) * held["gpu_ids"].map(len)
    assert planned.gpu_seconds == pytest.approx(gpu_s.sum())
    table = planned.actors
    assert table["responses"].sum() == len(truth)
    assert table["done_s"].max() == pytest.approx(planned.time_s)
    assert table["predicted_s"].max() <= planned.plan.makespan_s * (1 + 1e-9), "the mean over scenarios of the last actor"


def test_a_higher_time_weight_never_makes_the_planned_step_slower(what_if: WhatIf) -> None:
    times = [what_if.plan(replace(CPU, time_weight=w)).plan.makespan_s for w in (0.0, 0.5, 1.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_every_policy_stands_beside_the_plan_and_above_the_bound(what_if: WhatIf) -> None:
    planned = what_if.plan(CPU)
    others = what_if.alternatives(planned)
    assert others is not None
    assert others.results["policy"].tolist() == list(POLICIES)
    assert POLICIES[-1] == PLANNER
    assert (others.results["gpu_seconds"] >= others.results["bound_gpu_seconds"]).all()
    assert others.results["gpu_seconds"].iloc[-1] == planned.gpu_seconds
    assert others.bound.gpu_seconds(planned.time_s) <= planned.gpu_seconds
    assert len(others.front.plans) >= 1


def test_what_nobody_waits_for_any_more_is_left_out(what_if: WhatIf) -> None:
    asked = []
    assert what_if.alternatives(what_if.plan(CPU), lambda: bool(asked.append(1)) or len(asked) < 3) is None
    assert len(asked) == 3, "asked between policies, and no policy is run after the first no"


@pytest.mark.full
def test_tau_and_predictors_and_prices_change_what_they_should(what_if: WhatIf) -> None:
    def gpu_s(policy: str, settings: Settings) -> float:
        others = what_if.alternatives(what_if.plan(settings))
        assert others is not None
        return float(others.results.set_index("policy").loc[policy, "gpu_seconds"])

    assert gpu_s("rlhfless", replace(CPU, tau=0.2)) != gpu_s("rlhfless", replace(CPU, tau=1.0))
    assert gpu_s("static", replace(CPU, tau=0.2)) == gpu_s("static", replace(CPU, tau=1.0))
    lengths = {name: tuple(what_if.logged(name).predicted.response_tokens) for name in PREDICTORS}
    assert len(set(lengths.values())) > 1
    planned = what_if.plan(replace(CPU, usd_per_gpu_hour=3.6))
    assert planned.cost_usd == pytest.approx(planned.gpu_seconds * 0.001)


@pytest.mark.full
def test_settings_survive_json_and_their_python_code_computes_the_same(tmp_path: Path) -> None:
    folder = log().save(tmp_path / "log")
    settings = replace(CPU, time_weight=0.35, predictor="inflight")
    assert Settings(**json.loads(settings.to_json())) == settings
    names: dict[str, object] = {}
    what_if = WhatIf(folder, 2)
    planned = what_if.plan(settings)
    exec(settings.to_python(str(folder), 2, what_if.scale), names)
    assert names["planned"].plan.makespan_s == planned.plan.makespan_s  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gpus": 12}, ("12",)),
        ({"profile": "l40s-qwen2.5-7b-tp4", "gpus": 2}, ()),
        ({"predictor": "oracle"}, ()),
        ({"predictor": "trend"}, ("inflight",)),
        ({"tau": 0.0}, ("0.0",)),
        ({"time_weight": math.nan}, ("time_weight",)),
        ({"usd_per_gpu_hour": -1.0}, ("usd_per_gpu_hour", "-1.0")),
        ({"gpus": "16"}, ("'16'",)),
        ({"gpus": 16.5}, ("16.5",)),
        ({"gpus": True}, ()),
        ({"gpus": None}, ()),
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
        _ = Settings(path).setting
    assert Settings(path, usd_per_gpu_hour=3.0).setting.cluster.usd_per_gpu_hour == 3.0


@pytest.mark.parametrize("step", [9, -1, 1.5, "last", [1]])
def test_a_step_that_is_not_there_is_refused(step: int) -> None:
    with refused(TraceError, str(repr(step))):
        WhatIf(log(), step)


@pytest.mark.parametrize("source", [None, 3, ["a/trace"], {"a": 1}])
def test_what_is_no_log_is_refused(source: str) -> None:
    with refused(TraceError, type(source).__name__):
        WhatIf(source)


def test_a_path_has_limits_that_may_be_raised(tmp_path: Path) -> None:
    folder, few = log().save(tmp_path / "log"), Limits(rows=3)
    for show in (WhatIf, explore):
        for path in (folder, folder / "rollouts.parquet"):
            with refused(TraceError, "rollouts.parquet", "more than 3 rows", "Limits(rows=...)"):
                show(path, limits=few)
    assert WhatIf(folder, limits=Limits(rows=10_000)).steps == [0, 1, 2]


@pytest.mark.parametrize("limit", [0, -5, "long", 2.5])
def test_max_response_tokens_that_are_no_number_are_refused(limit: int) -> None:
    with refused(InputError, "max_response_tokens", repr(limit)):
        WhatIf(log(), max_response_tokens=limit)


def test_an_empty_selection_and_one_step_alone() -> None:
    rows = log().rollouts
    with refused(TraceError):
        WhatIf(rows[rows["step"] == 9])
    alone = WhatIf(rows[rows["step"] == 0])
    assert (alone.steps, len(alone.plan(CPU).trace.rollouts)) == ([0], 48), "nothing earlier: it is planned all the same"


def test_methods_say_what_they_need(what_if: WhatIf) -> None:
    with refused(InputError):
        what_if.plan({"gpus": 8})  # type: ignore[arg-type]
    with refused(InputError, "'ewma'"):
        what_if.logged("ewma")
    with refused(InputError, "WhatIf.plan"):
        what_if.alternatives(CPU)  # type: ignore[arg-type]


def test_what_cannot_be_planned_says_why() -> None:
    big = log()
    big.rollouts["prompt_tokens"] = 10**9
    with pytest.raises(PlanningError):
        WhatIf(big).plan(CPU)


def test_a_run_begins_with_its_own_profile_and_cluster() -> None:
    trace = log()
    trace.meta.update({"profile": "cpu-tiny-qwen2", "cluster": {"nodes": 3, "gpus_per_node": 8}})
    assert WhatIf(trace).own == Settings("cpu-tiny-qwen2", gpus=24)
    trace.meta["profile"] = "somebody's own"
    with refused(ProfileError, "somebody's own"):
        explore(trace)


def test_gpus_that_nobody_states_are_asked_for_and_never_assumed() -> None:
    what_if = WhatIf(log())
    with refused(InputError, "how many GPUs", "gpus=N"):
        explore(log())
    with refused(InputError, "plan(Settings(...))"):
        _ = what_if.scale
    what_if.plan(CPU)
    assert what_if.own == CPU
    trace = log()
    trace.meta["cluster"] = {"nodes": 1, "gpus_per_node": 4}
    assert explore(trace, profile="cpu-tiny-qwen2").settings == Settings("cpu-tiny-qwen2", gpus=4)


def test_every_shipped_profile_can_be_chosen_by_kind_and_size() -> None:
    sizes = models()
    assert sorted(sizes["h100 · Qwen2.5-3B"]) == [1, 2]
    assert all(Settings(name).setting.cluster.gpus_per_actor == size for of in sizes.values() for size, name in of.items())


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
    taken = evaluate(planned.plan, PlanningProblem(planned.logged.predicted, CPU.setting.cluster, CPU.setting.latency))
    assert planned.plan.makespan_s == pytest.approx(taken.makespan_s)

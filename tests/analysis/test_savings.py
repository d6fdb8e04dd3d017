"""Savings of schedules and of other replicas: against itself a run saves nothing, nothing saves more than the bound."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.analysis import (
    PhaseSeconds,
    RunSetup,
    account,
    calibration,
    completed,
    configuration_lines,
    counts_frame,
    gpu_counts,
    logged_phases,
    run_setup,
    savings,
    step_parts,
)  # fmt: skip
from rlhfless.analysis.gpu_counts import of_all_draws
from rlhfless.latency import load_profile, scaled
from rlhfless.simulate import Comparison, SimulationConfig, logged_steps, simulate
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError

CLUSTER = Cluster(2, 8, 2, kind="l40s", usd_per_gpu_hour=3.6)
POLICIES = ("static", "least-loaded", "random", "fold", "solver")


def rollouts(steps: int = 3, prompts: int = 24) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    means = rng.lognormal(5.0, 0.6, prompts)
    rows = [
        {"run": "r", "step": s, "epoch": s, "prompt_id": f"p{p}", "sample": k, "prompt_tokens": 60,
         "response_tokens": int(np.clip(rng.lognormal(np.log(means[p]), 0.4), 1, 1024)), "finish_reason": "stop"}
        for s in range(steps) for p in range(prompts) for k in range(4)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def setting() -> SimulationConfig:
    return SimulationConfig(CLUSTER, load_profile("l40s-qwen2.5-3b-tp2"))


@pytest.fixture(scope="module")
def simulation(setting: SimulationConfig) -> Comparison:
    return simulate(rollouts(), setting, POLICIES)


def against(
    simulation: Comparison, setup: RunSetup, policies: Sequence[str] = POLICIES, phases: PhaseSeconds | None = None
) -> pd.DataFrame:
    own = {name: completed(simulation.traces[name], setup, CLUSTER, phases) for name in setup.candidates}
    return savings(simulation, policies, [step_parts(trace) for trace in own.values()]).set_index("policy")


def test_against_itself_a_run_saves_nothing(simulation: Comparison) -> None:
    table = against(simulation, run_setup("verl", dispatch="static"))
    own = table.loc["static"].drop(["replicas low", "replicas high", "time most", "GPU-seconds most"])
    assert own.to_numpy() == pytest.approx(0.0, abs=1e-9)
    assert (table["replicas low"] <= table["replicas high"]).all()
    table = table.drop(columns=["replicas low", "replicas high"])
    assert (table.filter(like="low").to_numpy() <= table.filter(like="mean").to_numpy() + 1e-12).all()
    assert (table.filter(like="mean").to_numpy() <= table.filter(like="high").to_numpy() + 1e-12).all()


def test_nothing_saves_more_than_the_bound(simulation: Comparison) -> None:
    for setup in (run_setup("verl"), run_setup("slime", learner_gpus=4)):
        table = against(simulation, setup)
        for kind in ("time", "GPU-seconds"):
            assert (table[f"{kind} high"] <= table[f"{kind} most"] + 1e-9).all()
        assert table.loc["random", "GPU-seconds mean"] > 0.1  # there is something to save in this log


def test_work_that_no_schedule_changes_dilutes_savings(simulation: Comparison) -> None:
    setup = run_setup("verl", dispatch="static")
    alone = against(simulation, setup)
    whole = against(simulation, setup, phases=PhaseSeconds(learn_s=60.0, basis="stated"))
    assert (whole["time most"] < 0.5 * alone["time most"]).all()
    assert 0 < whole.loc["random", "GPU-seconds mean"] < alone.loc["random", "GPU-seconds mean"]


def test_a_saving_is_the_share_of_the_sums(simulation: Comparison) -> None:
    table = against(simulation, run_setup("verl", dispatch="static", learner_gpus=4), ("fold",), PhaseSeconds(learn_s=1.0))
    by = simulation.table.groupby("policy")[["time_s", "gpu_seconds"]].sum()
    own_time, their_time = by.loc["fold", "time_s"] + 3.0, by.loc["static", "time_s"] + 3.0
    assert table["time mean"].iloc[0] == pytest.approx(1 - own_time / their_time)
    ours = by.loc["fold", "gpu_seconds"] + 4 * own_time
    assert table["GPU-seconds mean"].iloc[0] == pytest.approx(1 - ours / ((16 + 4) * their_time))


def test_a_log_that_is_slower_than_its_profile_scales_it(setting: SimulationConfig) -> None:
    slow = scaled(setting.latency, 1.5)
    once = simulate(rollouts(), setting, ["static"]).table.set_index("step")["time_s"]
    longer = simulate(rollouts(), replace(setting, latency=slow), ["static"]).table.set_index("step")["time_s"]
    assert (longer / once).to_numpy() == pytest.approx(1.5)
    found = calibration(pd.DataFrame({"step": longer.index, "generate_s": longer.to_numpy()}), once)
    assert (found.factor, found.low, found.high, found.steps) == (pytest.approx(1.5), pytest.approx(1.5), pytest.approx(1.5), 3)
    single = calibration(pd.DataFrame({"step": [0], "generate_s": [3.0]}), once)
    assert (single.factor, single.steps) == (pytest.approx(3.0 / once[0]), 1)
    assert single.checked is not None
    assert np.isnan(single.checked.errors).all(), "how far another step is off is not known"
    assert calibration(pd.DataFrame({"step": [0, 1], "step_s": [3.0, 3.0]}), once).steps == 0
    with refused(PlanningError):
        scaled(setting.latency, 0)


def test_logged_phases_are_the_mean_of_what_was_logged() -> None:
    scalars = pd.DataFrame({"step": [1, 2], "prepare_s": [1.0, 3.0], "learn_s": [np.nan, 4.0]})
    assert logged_phases(scalars) == PhaseSeconds(2.0, 4.0, 0.0, "logged")
    assert logged_phases(pd.DataFrame({"step": [1], "generate_s": [1.0]})) is None


def test_configuration_lines_say_sizes_in_the_frameworks_words() -> None:
    assert configuration_lines("verl", 6, 2, 8) == (
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "trainer.n_gpus_per_node=6 trainer.nnodes=2  # verl starts one replica per 2 GPUs: 6",
    )
    assert configuration_lines("nemo-rl", 3, 4, 8)[1] == "cluster.gpus_per_node=4 cluster.num_nodes=3"
    assert "--num_processes 6" in configuration_lines("trl", 3, 2, 8)[1]
    assert "--tensor-parallel-size 2 --data-parallel-size 3" in configuration_lines("trl", 3, 2, 8)[0]
    assert configuration_lines("areal", 3, 2, 8)[0].startswith("rollout.backend=sglang:d3t2 ")
    one_node = "--deployment.num-infer-gpus 6 --inference.parallel.dp 3 --inference.parallel.tp 2"
    assert configuration_lines("prime-rl", 3, 2, 8)[0].endswith(one_node)
    assert configuration_lines("prime-rl", 5, 2, 8) == ()  # over several nodes it is not documented
    assert configuration_lines("table", 3, 2, 8) == ()
    engines, learner = configuration_lines("openrlhf", 6, 2, 8)
    assert engines.startswith("--vllm.num_engines 6 --vllm.tensor_parallel_size 2 ")
    assert learner.startswith("--actor.num_nodes 2 --actor.num_gpus_per_node 6 ")


@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8]))
def test_configured_nodes_hold_exactly_the_replicas(replicas: int, size: int) -> None:
    line = configuration_lines("verl", replicas, size, 8)[1]
    each, nodes = (int(part.split("=")[1]) for part in line.split()[:2])
    assert each * nodes == replicas * size
    assert each <= 8
    assert each % size == 0


@pytest.mark.parametrize("setup", [
    run_setup("verl", dispatch="static"), run_setup("slime", dispatch="static", learner_gpus=4),
    run_setup("areal", dispatch="static", learner_gpus=4), run_setup("prime-rl", dispatch="static"),
], ids=lambda setup: setup.framework)  # fmt: skip
def test_what_savings_are_shares_of_is_what_the_account_holds(simulation: Comparison, setup: RunSetup) -> None:
    phases = PhaseSeconds(prepare_s=2.0, learn_s=20.0, basis="stated")
    held = account(completed(simulation.traces["static"], setup, CLUSTER, phases)).gpu_s
    table = against(simulation, setup, ("fold",), phases).loc["fold"]
    time_s, gpu_s = simulation.table.groupby("policy")[["time_s", "gpu_seconds"]].sum().loc["fold"]
    outside = 3 * phases.seconds if setup.synchronous else 0.0
    learner = setup.learner_gpus * (time_s + outside) if setup.synchronous else 0.0
    ours = gpu_s + learner + (16 * outside if setup.colocated else 0.0)
    assert table["GPU-seconds mean"] == pytest.approx(1 - ours / held)


def counts(setting: SimulationConfig, setup: RunSetup, phases: PhaseSeconds | None = None) -> pd.DataFrame:
    found = gpu_counts(list(logged_steps(rollouts(), steps=[2])), setting, setup, phases or PhaseSeconds())
    return counts_frame(found).set_index(["kind", "gpus_per_actor", "replicas"])


def test_other_kinds_are_priced_as_the_runs_own(setting: SimulationConfig) -> None:
    cheap = replace(setting, cluster=replace(CLUSTER, usd_per_gpu_hour=3.7664 / 2))  # half of the list price
    table = counts(cheap, run_setup("verl", dispatch="static"))
    own, h100 = table.iloc[0], table.loc["h100"].iloc[0]
    assert h100["usd_per_gpu_hour"] == pytest.approx(6.88 / 2)
    paid = (h100["gpu_s"] * h100["usd_per_gpu_hour"]) / (own["gpu_s"] * own["usd_per_gpu_hour"])
    assert h100["cost_saved_mean"] == pytest.approx(1 - paid)
    free = counts(replace(setting, cluster=replace(CLUSTER, usd_per_gpu_hour=0.0)), run_setup("verl", dispatch="static"))
    unknown = free["cost_saved_mean"].isna()
    assert unknown.tolist() == [kind != "l40s" for kind, *_ in free.index], "unknown, not nothing"
    assert free["usd_per_gpu_hour"].isna().all()


def test_numbers_sizes_and_kinds_are_compared_once_and_the_own_comes_first(setting: SimulationConfig) -> None:
    table = counts(setting, run_setup("verl", dispatch="static"))
    own = table.iloc[0]
    assert own.name == ("l40s", 2, 8)
    assert own.filter(like="_saved_").tolist() == [0.0] * 6
    assert table.index.is_unique
    assert {("l40s", 2, 4), ("h100", 1, 16), ("h100", 2, 8)} <= set(table.index)
    half = table.loc[("l40s", 2, 4)]
    assert half["time_saved_mean"] < 0
    assert half["cost_saved_mean"] == pytest.approx(1 - half["gpu_s"] / own["gpu_s"])


def test_a_stand_in_is_compared_with_no_other_gpus(setting: SimulationConfig) -> None:
    """A saving against GPUs that the run did not have, by a ratio of two profiles of other models, is none."""
    setup, logged = run_setup("verl", dispatch="static"), list(logged_steps(rollouts(), steps=[2]))
    own, stand_in = (
        counts_frame(gpu_counts(logged, setting, setup, PhaseSeconds(), stand_in=stands_in)) for stands_in in (False, True)
    )
    of_own = own[(own["kind"] == "l40s") & (own["gpus_per_actor"] == 2)]
    assert stand_in["replicas"].tolist() == of_own["replicas"].tolist()
    assert set(stand_in["kind"]) == {"l40s"}
    assert set(stand_in["gpus_per_actor"]) == {2}


def test_numbers_of_replicas_are_a_comparison_of_whole_steps(setting: SimulationConfig) -> None:
    """One variant for each number of replicas and each dispatch that may have been; ranges cover the dispatches."""
    setup = replace(run_setup("verl", dispatch="static"), candidates=("static", "least-loaded"))
    found = gpu_counts(list(logged_steps(rollouts(), steps=[1, 2])), setting, setup, PhaseSeconds(learn_s=30.0, basis="stated"))
    table, frame = found.table, counts_frame(found)
    assert len(table) == 2 * 2 * len(frame)
    means = found.means()
    assert means["policy"].tolist() == ["static", "least-loaded"] * len(frame)
    assert means["time_s"].iloc[0] == pytest.approx(frame["time_s"].iloc[0] / 2)
    assert (table["gpu_seconds"] == table["gpus"] * table["time_s"]).all(), "all GPUs are held until a step ends"
    assert set(found.front().means()["variant"]) < set(means["variant"])
    by_dispatch = means[means["gpus"] == frame["gpus"].iloc[0]].groupby("policy", sort=False)["time_s"].first() * 2
    assert (frame["time_low_s"].iloc[0], frame["time_high_s"].iloc[0]) == pytest.approx((by_dispatch.min(), by_dispatch.max()))
    assert json.loads(found.to_json())["means"][0]["bound_gpu_seconds"] is None


def test_ranges_cover_all_draws_and_numbers_that_one_of_them_cannot_have_are_left_out(setting: SimulationConfig) -> None:
    first, second = (
        gpu_counts(list(logged_steps(rollouts(), steps=[step])), setting, run_setup("verl", dispatch="static"), PhaseSeconds())
        for step in (1, 2)
    )
    lost = second.table["variant"].iloc[-1]
    fewer = second.only([name for name in second.table["variant"] if name != lost])
    table = counts_frame(of_all_draws(first, [fewer]))
    alone = [counts_frame(one) for one in (first, second)]
    assert len(table) == len(alone[0]) - 1
    for row, one, other in zip(table.itertuples(), *(frame.itertuples() for frame in alone), strict=False):
        assert row.time_s == one.time_s
        assert (row.time_low_s, row.time_high_s) == (min(one.time_s, other.time_s), max(one.time_s, other.time_s))
        assert row.time_saved_mean == one.time_saved_mean
        assert row.time_saved_low == min(one.time_saved_low, other.time_saved_low)


def test_sizes_without_room_for_the_responses_are_left_out_and_the_own_is_refused(setting: SimulationConfig) -> None:
    tiny = replace(setting, latency=replace(setting.latency, kv_capacity_tokens=64))
    with refused(PlanningError, "KV"):
        counts(tiny, run_setup("verl", dispatch="static"))


def test_learning_takes_the_same_gpu_seconds_on_fewer_gpus(setting: SimulationConfig) -> None:
    phases = PhaseSeconds(learn_s=30.0, basis="stated")
    table = counts(setting, run_setup("verl", dispatch="static", learner_gpus=0), phases)
    alone = counts(setting, run_setup("verl", dispatch="static"))
    added_s = table["time_s"] - alone["time_s"]
    assert added_s.tolist() == pytest.approx((30.0 * table["gpus"].iloc[0] / table["gpus"]).tolist())


def test_a_constant_that_is_closer_to_left_out_steps_than_the_profile_is_used() -> None:
    simulated = pd.Series({step: 10.0 + 3 * (step % 4) for step in range(8)})
    took = pd.Series({step: 30.0 + 0.1 * step for step in range(8)})
    found = calibration(pd.DataFrame({"step": took.index, "generate_s": took.to_numpy()}), simulated)
    assert found.by_constant
    assert (found.factor * simulated).mean() == pytest.approx(took.mean())
    follows = calibration(pd.DataFrame({"step": simulated.index, "generate_s": 2.1 * simulated.to_numpy()}), simulated)
    assert (follows.by_constant, follows.factor) == (False, pytest.approx(2.1))
    assert follows.checked is not None
    assert follows.checked.constant[0] == np.median(2.1 * simulated[1:]), "of the steps that were not left out"


def test_a_step_that_took_no_time_calibrates_nothing_and_spoils_nothing() -> None:
    simulated = pd.Series({0: 1.0, 1: 1.0, 2: 1.0})
    found = calibration(pd.DataFrame({"step": [0, 1, 2], "generate_s": [2.0, 0.0, 2.0]}), simulated)
    assert (found.factor, found.steps) == (2.0, 2)

"""Savings, what-if and advice: against itself a run saves nothing, nothing saves more than the bound, refusals are rows."""

from __future__ import annotations

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
    advise,
    calibration,
    configuration_lines,
    generation_s,
    logged_phases,
    prices_of,
    run_setup,
    savings,
    variants,
    what_if,
)  # fmt: skip
from rlhfless.analysis.what_if import Variant
from rlhfless.latency import load_profile, scaled
from rlhfless.simulate import Simulation, SimulationConfig, logged_steps, simulate
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
    return SimulationConfig(CLUSTER, load_profile("l40s-qwen2.5-3b-tp2"), time_limit_s=0.1)


@pytest.fixture(scope="module")
def simulation(setting: SimulationConfig) -> Simulation:
    return simulate(rollouts(), setting, POLICIES)


def against(
    simulation: Simulation, setup: RunSetup, policies: Sequence[str] = POLICIES, phases: PhaseSeconds | None = None
) -> pd.DataFrame:
    theirs = generation_s(simulation, setup.candidates)
    return savings(simulation, theirs, setup, CLUSTER, policies, phases).set_index("policy")


def test_against_itself_a_run_saves_nothing(simulation: Simulation) -> None:
    table = against(simulation, run_setup("verl", dispatch="static"))
    own = table.loc["static"].drop(["replicas low", "replicas high", "time most", "GPU-seconds most"])
    assert own.to_numpy() == pytest.approx(0.0, abs=1e-9)
    assert (table["replicas low"] <= table["replicas high"]).all()
    table = table.drop(columns=["replicas low", "replicas high"])
    assert (table.filter(like="low").to_numpy() <= table.filter(like="mean").to_numpy() + 1e-12).all()
    assert (table.filter(like="mean").to_numpy() <= table.filter(like="high").to_numpy() + 1e-12).all()


def test_nothing_saves_more_than_the_bound(simulation: Simulation) -> None:
    for setup in (run_setup("verl"), run_setup("slime", learner_gpus=4)):
        table = against(simulation, setup)
        for kind in ("time", "GPU-seconds"):
            assert (table[f"{kind} high"] <= table[f"{kind} most"] + 1e-9).all()
        assert table.loc["random", "GPU-seconds mean"] > 0.1  # there is something to save in this log


def test_work_that_no_schedule_changes_dilutes_savings(simulation: Simulation) -> None:
    setup = run_setup("verl", dispatch="static")
    alone = against(simulation, setup)
    whole = against(simulation, setup, phases=PhaseSeconds(learn_s=60.0, basis="stated"))
    assert (whole["time most"] < 0.5 * alone["time most"]).all()
    assert 0 < whole.loc["random", "GPU-seconds mean"] < alone.loc["random", "GPU-seconds mean"]


def test_a_saving_is_the_share_of_the_sums(simulation: Simulation) -> None:
    table = against(simulation, run_setup("verl", dispatch="static", learner_gpus=4), ("fold",), PhaseSeconds(learn_s=1.0))
    by = simulation.steps.groupby("policy")[["time_s", "gpu_seconds"]].sum()
    own_time, their_time = by.loc["fold", "time_s"] + 3.0, by.loc["static", "time_s"] + 3.0
    assert table["time mean"].iloc[0] == pytest.approx(1 - own_time / their_time)
    ours = by.loc["fold", "gpu_seconds"] + 4 * own_time
    assert table["GPU-seconds mean"].iloc[0] == pytest.approx(1 - ours / ((16 + 4) * their_time))


def test_a_log_that_is_slower_than_its_profile_scales_it(setting: SimulationConfig) -> None:
    slow = scaled(setting.latency, 1.5)
    once = simulate(rollouts(), setting, ["static"]).steps.set_index("step")["time_s"]
    longer = simulate(rollouts(), replace(setting, latency=slow), ["static"]).steps.set_index("step")["time_s"]
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


def test_one_thing_is_changed_at_a_time(setting: SimulationConfig) -> None:
    logged = list(logged_steps(rollouts(), steps=[2]))
    table = what_if(logged, list(variants(setting, "static")))
    assert table["change"].iloc[0] == "unchanged run"
    assert (table["time_share"].iloc[0], table["usd_share"].iloc[0]) == (1.0, 1.0)
    half = table[table["change"] == "half the GPUs: 8"].iloc[0]
    assert half["time_share"] > 1
    assert half["usd"] == pytest.approx(8 * half["time_s"] * 3.6 / 3600)
    kinds = set(table["change"])
    assert {"1 x H100 per actor", "2 x H100 per actor", "local cut at tau 0.5"} <= kinds
    assert (table["missing"] == "").all()


def test_a_variant_that_cannot_run_is_a_row_that_says_why(setting: SimulationConfig) -> None:
    logged = list(logged_steps(rollouts(), steps=[2]))
    tiny = replace(setting, latency=replace(setting.latency, kv_capacity_tokens=64))
    table = what_if(logged, [Variant("as it was", setting, ("static",), True), Variant("no memory", tiny, ("static",), True)])
    assert "KV" in table["missing"].iloc[1]
    assert np.isnan(table["time_s"].iloc[1])


def test_advice_compares_actor_sizes_that_have_a_profile() -> None:
    setting = SimulationConfig(Cluster(1, 8, 2, kind="h100"), load_profile("h100-qwen2.5-3b-tp2"), time_limit_s=0.1)
    logged = list(logged_steps(rollouts(), steps=[2]))
    advice = advise(logged, setting, run_setup("verl"))
    assert [size.gpus_per_actor for size in advice.sizes] == [1, 2]
    assert [size.replicas for size in advice.sizes] == [8, 4]
    assert advice.reserved.time_s == min(size.time_s for size in advice.sizes)
    assert all(1 <= size.right_sized <= size.replicas for size in advice.sizes)


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


def test_prices_have_their_source() -> None:
    table = prices_of("l40s")
    assert (table["usd_per_gpu_hour"] > 0).all()
    assert table["source"].str.len().min() > 0


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
def test_what_savings_are_shares_of_is_what_the_account_holds(simulation: Simulation, setup: RunSetup) -> None:
    phases = PhaseSeconds(prepare_s=2.0, learn_s=20.0, basis="stated")
    held = account(simulation.traces["static"], setup, CLUSTER, phases).gpu_s
    table = against(simulation, setup, ("fold",), phases).loc["fold"]
    time_s, gpu_s = simulation.steps.groupby("policy")[["time_s", "gpu_seconds"]].sum().loc["fold"]
    outside = 3 * phases.seconds if setup.synchronous else 0.0
    learner = setup.learner_gpus * (time_s + outside) if setup.synchronous else 0.0
    ours = gpu_s + learner + (16 * outside if setup.colocated else 0.0)
    assert table["GPU-seconds mean"] == pytest.approx(1 - ours / held)


def test_other_kinds_are_priced_as_the_runs_own() -> None:
    cheap = replace(CLUSTER, usd_per_gpu_hour=3.7664 / 2)  # half of the list price
    every = list(variants(SimulationConfig(cheap, load_profile("l40s-qwen2.5-3b-tp2")), "static"))
    prices = {one.setting.cluster.kind: one.setting.cluster.usd_per_gpu_hour for one in every}
    assert prices["h100"] == pytest.approx(6.88 / 2)


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

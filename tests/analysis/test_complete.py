"""A logged run completed into traces: it holds all that the run held, and is studied as if it had been executed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import rlhfless as rl
from rlhfless.analysis import Assumptions, PhaseSeconds, RunSetup, account, complete, completed, run_setup, step_parts
from rlhfless.errors import InputError
from rlhfless.latency import load_profile
from rlhfless.report.study import Findings, study
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import OpenedLog, Trace, TraceError, read_trace, step_metrics
from solver.model.cluster import Cluster

TRACES = Path(__file__).parents[2] / "data" / "traces"
SETTING = SimulationConfig(Cluster(1, 8, 2, kind="l40s", usd_per_gpu_hour=3.6), load_profile("l40s-qwen2.5-3b-tp2"))
PHASES = PhaseSeconds(prepare_s=1.0, learn_s=2.0, sync_s=0.5, basis="stated")


def rollouts(steps: int = 3, prompts: int = 8) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    rows = [
        {"run": "r", "step": s, "epoch": s, "prompt_id": f"p{p}", "sample": k, "prompt_tokens": 50,
         "response_tokens": int(np.clip(rng.lognormal(5 + 0.1 * p, 0.4), 1, 1500)), "finish_reason": "stop"}
        for s in range(steps) for p in range(prompts) for k in range(2)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def opened(trace: Trace, framework: str = "verl") -> OpenedLog:
    return OpenedLog(trace, pd.DataFrame({"step": []}), framework)


@pytest.fixture(scope="module")
def generation() -> Trace:
    return simulate(rollouts(), SETTING, ["static"]).traces["static"]


def test_chosen_steps_of_an_executed_run_are_those_alone() -> None:
    run = rl.load(rl.example(), verbose=False)
    wanted = [run.steps[-1], run.steps[0]]
    (some,) = run.complete(steps=wanted)
    (whole,) = run.complete()
    assert some.steps == sorted(wanted)
    assert whole.steps == run.steps
    kept = whole.rollouts[whole.rollouts["step"].isin(wanted)]
    assert some.rollouts["response_tokens"].tolist() == kept["response_tokens"].tolist()
    assert account(some).lines["gpu_s"].sum() < account(whole).lines["gpu_s"].sum()
    with refused(TraceError, "steps", 9999):
        run.complete(steps=[9999])
    with refused(InputError, "steps", 5):
        run.complete(steps=5)  # type: ignore[arg-type]


def test_hardware_of_a_user_is_a_setting() -> None:
    hardware = rl.Hardware(gpus=8, profile="l40s-qwen2.5-3b-tp2")
    for log in (rollouts(), opened(Trace(rollouts()), "")):
        assert [one.meta["completed"]["dispatch"] for one in complete(log, hardware)] == ["static", "least-loaded"]
    with refused(InputError, "hardware", 8):
        complete(rollouts(), 8)  # type: ignore[arg-type]
    with refused(InputError, "GPUs", "gpus"):
        complete(rollouts(), rl.Hardware(profile="l40s-qwen2.5-3b-tp2"))
    with refused(TraceError, "missing.jsonl"):
        complete("missing.jsonl", hardware)


@pytest.mark.parametrize("setup", [
    run_setup("verl"), run_setup("slime", learner_gpus=4), run_setup("slime"), run_setup("areal", learner_gpus=4),
], ids=["shared GPUs", "learner apart", "unknown learner", "asynchronous"])  # fmt: skip
def test_every_gpu_is_held_from_the_first_start_of_a_step_to_its_end(generation: Trace, setup: RunSetup) -> None:
    trace = completed(generation, setup, SETTING.cluster, PHASES)
    gpus = 8 + setup.counted_learner_gpus
    outside_s = PHASES.seconds if setup.synchronous else 0.0
    for parts, alone in zip(step_parts(trace).itertuples(), step_parts(generation).itertuples(), strict=True):
        assert parts.generation_s == pytest.approx(alone.generation_s)
        assert parts.working_s == pytest.approx(alone.working_s)
        assert parts.time_s == pytest.approx(alone.generation_s + outside_s)
        assert parts.gpu_s == pytest.approx(gpus * parts.time_s)
        assert parts.waiting_gpus == pytest.approx(setup.counted_learner_gpus), "actors' GPUs are no schedule's to keep"
    assert account(trace).gpu_s == pytest.approx(step_metrics(trace)["gpu_seconds"].sum())
    assert {int(gpu) for ids in trace.allocations["gpu_ids"] for gpu in ids} == set(range(gpus))
    assert step_metrics(trace)["actors"].tolist() == step_metrics(generation)["actors"].tolist()
    basis = account(trace).lines.set_index("use")["basis"]
    assert basis["decoding, slots in use"] == "simulated"
    assert ("learning" in basis) == bool(outside_s and (setup.colocated or setup.learner_gpus))
    if "learning" in basis:
        assert basis["learning"] == "stated"


def test_what_a_log_does_not_say_is_a_list_of_traces() -> None:
    log = opened(Trace(rollouts()))
    assert [trace.meta["completed"]["dispatch"] for trace in complete(log, SETTING)] == ["least-loaded", "static"]
    (stated,) = complete(log, SETTING, Assumptions(dispatch="static", learn_s=3.0), steps=[2])
    assert stated.steps == [2]
    assert account(stated).lines.set_index("use")["gpu_s"]["learning"] == pytest.approx(24.0)
    unknown = opened(Trace(rollouts(), meta={"dispatch_order": "unknown"}))
    assert len(complete(unknown, SETTING, Assumptions(dispatch="static"), steps=[2])) == 7
    with refused(TraceError, "step"):
        complete(log, SETTING, steps=[9])


def test_an_executed_run_is_its_own_completion(generation: Trace) -> None:
    log = opened(generation)
    assert complete(log, SETTING)[0] is log.trace


def test_a_completed_log_has_the_findings_of_the_same_run_if_it_was_executed() -> None:
    stated = Assumptions(dispatch="static", prepare_s=1.0, learn_s=2.0, calibrate=False)
    log = opened(Trace(rollouts()))
    logged = study(log, SETTING, stated, 3)
    executed = study(opened(logged.traces[0]), SETTING, Assumptions(calibrate=False), 3)
    assert (logged.times.executed, executed.times.executed) == (False, True)
    pd.testing.assert_frame_equal(logged.took, executed.took)
    pd.testing.assert_frame_equal(logged.account.lines, executed.account.lines)
    for one, other in ((logged.reserved, executed.reserved), (logged.given_back, executed.given_back)):
        pd.testing.assert_frame_equal(one, other, rtol=1e-9)
    assert_same_settings(logged, executed)


def replicas(found: Findings) -> pd.DataFrame:
    """The steps with every number of replicas, under static."""
    table = found.gpu_counts.table
    columns = ["variant", "gpu_kind", "gpus_per_actor", "actors", "gpus", "step", "time_s"]
    return table.loc[table["policy"] == "static", columns].reset_index(drop=True)


def assert_same_settings(logged: Findings, executed: Findings) -> None:
    """The replicas, plans and divisions that are computed of two findings are the same."""
    pd.testing.assert_frame_equal(replicas(logged), replicas(executed))
    pd.testing.assert_frame_equal(logged.planned, executed.planned)
    pd.testing.assert_frame_equal(logged.splits, executed.splits)


@pytest.mark.parametrize("name", ["reasoning-static", "arithmetic-grpo"])
def test_the_responses_of_an_executed_run_as_a_log_have_its_plans_and_replicas(name: str) -> None:
    """With the profile as it is and the seconds of learning stated, only the learner of one GPU differs from that of a log."""
    run = rl.load(TRACES / name, assumptions=Assumptions(calibrate=False), verbose=False)
    tables = {table: getattr(run.trace, table) for table in ("rollouts", "allocations", "spans", "events")}
    trace = run.trace.with_rows(**{table: rows[rows["step"].isin(run.steps[:3])] for table, rows in tables.items()})
    executed = study(opened(trace), run.setting, run.assumptions, 2)
    learn_s = executed.times.phases.seconds
    given = Trace(trace.rollouts[["run", "step", "prompt_id", "sample", "prompt_tokens", "response_tokens", "finish_reason"]])
    stated = Assumptions(dispatch="static", learner_gpus=0, learn_s=learn_s, calibrate=False)
    logged = study(opened(given), run.setting, stated, 2)
    pd.testing.assert_frame_equal(logged.planned, executed.planned)
    ours, theirs = replicas(executed), replicas(logged)
    assert theirs["variant"].nunique() > 2
    pd.testing.assert_frame_equal(theirs.drop(columns="time_s"), ours.drop(columns="time_s"))
    on_all_s = learn_s * (theirs["gpus"].iloc[0] / theirs["gpus"] - 1)  # a log's learner takes the GPU-seconds of all GPUs
    assert executed.own_took is not None
    own_s = executed.own_took.set_index("step")["fixed_s"].loc[ours["step"]].to_numpy()  # of each step; of a log their mean
    assert theirs["time_s"].tolist() == pytest.approx((ours["time_s"] - own_s + learn_s + on_all_s).tolist())
    assert (executed.times.own_plans, logged.times.own_plans) == (name != "reasoning-static", False)


def test_findings_are_json_with_a_version_and_without_values_that_json_lacks() -> None:
    found = study(opened(Trace(rollouts(2, 4))), SETTING, None, 1)
    said = json.loads(found.to_json())
    assert (said["schema"], said["version"], said["times_of"]) == (
        "rlhfless-findings", 2, "simulation of the run's own schedule",
    )  # fmt: skip
    assert sum(row["share"] for row in said["uses"]) == pytest.approx(1.0)
    assert {row["gpus"] for row in said["savings"]} == {"held", "released"}
    assert (said["idle_low_share"], said["idle_high_share"]) == found.idle_shares
    assert len(found.to_frame()) == len(said["savings"])
    assert found.plot().data
    assert "<table" in found._repr_html_()


def test_a_trace_of_an_earlier_version_is_read_and_studied(tmp_path: Path) -> None:
    shutil.copytree(TRACES / "arithmetic-grpo-drafts", tmp_path / "trace")
    meta = json.loads((tmp_path / "trace" / "meta.json").read_text())
    (tmp_path / "trace" / "meta.json").write_text(json.dumps({**meta, "project_version": "0.0.1"}))
    now, before = (account(read_trace(path)) for path in (TRACES / "arithmetic-grpo-drafts", tmp_path / "trace"))
    pd.testing.assert_frame_equal(now.lines, before.lines)
    assert rl.load(tmp_path / "trace", verbose=False).times.executed


def test_a_completed_log_is_a_trace_that_is_saved_and_read(generation: Trace, tmp_path: Path) -> None:
    trace = completed(generation, run_setup("slime", learner_gpus=4), SETTING.cluster, PHASES)
    read = read_trace(trace.save(tmp_path / "trace"))
    pd.testing.assert_frame_equal(account(trace).lines, account(read).lines)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=16), st.floats(0.0, 50.0), st.floats(0.0, 50.0), st.integers(0, 4))
@settings(deadline=None, max_examples=20)
def test_uses_of_a_completed_log_add_up(lengths: list[int], learn_s: float, sync_s: float, learner_gpus: int) -> None:
    rows = pd.DataFrame({"step": [i % 2 for i in range(len(lengths))], "prompt_id": [f"p{i}" for i in range(len(lengths))],
                         "sample": 0, "prompt_tokens": 20, "response_tokens": lengths})  # fmt: skip
    one = simulate(Trace(rows).rollouts, SETTING, ["least-loaded"]).traces["least-loaded"]
    phases = PhaseSeconds(learn_s=learn_s, sync_s=sync_s, basis="logged")
    found = account(completed(one, run_setup("verl", learner_gpus=learner_gpus), SETTING.cluster, phases))
    time_s = step_parts(one)["generation_s"].sum() + len(found.steps) * phases.seconds
    assert found.gpu_s == pytest.approx((8 + learner_gpus) * time_s)
    assert (found.lines["gpu_s"] > 0).all()
    assert found.lines["share"].sum() == pytest.approx(1.0)

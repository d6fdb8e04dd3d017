"""Where GPU-seconds went: every held second has exactly one use, and the response that all waited for is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from plot_samples import sample_trace, tables

from rlhfless.analysis import PhaseSeconds, account, completed, run_setup
from rlhfless.analysis.gpu_seconds import ACTORS_WAIT, EMPTY, IN_USE, PAUSING, UNUSED, WAITING
from rlhfless.errors import InputError
from rlhfless.latency import load_profile
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import Trace
from solver.model.cluster import Cluster

CLUSTER = Cluster(1, 8, 2, kind="l40s", usd_per_gpu_hour=3.6)


def trace(**more: Any) -> Trace:
    """Two actors of two GPUs: one decodes 3 s of 4 with a pause of half a second, the other 2 s of 4."""
    same = {"run": "run", "step": 0}
    held = {**same, "role": "decode", "kind": "l40s", "usd_per_gpu_s": 0.001, "start_s": 0.0, "end_s": 4.0}
    spans = [
        {"holder": "actor-0", "phase": "start", "start_s": 0.0, "end_s": 0.5},
        {"holder": "actor-0", "phase": "decode", "start_s": 0.5, "end_s": 2.0, "batch_mean": 1.0, "slots": 4},
        {"holder": "actor-0", "phase": "decode", "start_s": 2.5, "end_s": 4.0, "batch_mean": 4.0, "slots": 4},
        {"holder": "actor-0", "phase": "transfer", "start_s": 2.0, "end_s": 3.0, "background": True},
        {"holder": "actor-1", "phase": "prefill", "start_s": 0.0, "end_s": 0.5},
        {"holder": "actor-1", "phase": "decode", "start_s": 0.0, "end_s": 2.0, "batch_mean": 4.0, "slots": 4},
    ]
    rows = [
        {**same, "prompt_id": f"p{i}", "sample": 0, "response_tokens": 10 * i, "end_s": end, "actor": f"actor-{i % 2}"}
        for i, end in enumerate([1.0, 1.5, 2.0, 4.0])
    ]
    allocations = [{"holder": f"actor-{i}", "gpu_ids": [2 * i, 2 * i + 1], **held} for i in (0, 1)]
    return Trace(rows, allocations=allocations, spans=[{**same, **span} for span in spans], **more)


def test_every_held_second_has_one_use() -> None:
    found = account(completed(trace(), run_setup("verl"), CLUSTER))
    uses = found.lines.set_index("use")["gpu_s"].to_dict()
    assert uses == pytest.approx(
        {"starting actors": 1.0, "prefill": 1.0, IN_USE: 6.75, EMPTY: 2.25, WAITING: 4.0, PAUSING: 1.0, UNUSED: 16.0}
    )
    assert found.gpu_s == pytest.approx(8 * 4.0)
    assert found.idle_share == pytest.approx(21 / 32)
    assert found.lines["usd"].sum() == pytest.approx(32 * 3.6 / 3600)
    assert found.slot_idle_gpu_s == pytest.approx(2 * 1.5 * 0.75)


def test_what_rounding_leaves_is_no_use() -> None:
    one = trace()
    spans = one.spans.copy()
    spans.loc[spans["end_s"] == 2.0, "end_s"] = 2.5 - 1e-12  # nothing is between the decodes of actor-0 but rounding
    uses = account(completed(replace(one, spans=spans), run_setup("verl"), CLUSTER)).lines["use"].tolist()
    assert PAUSING not in uses


def test_the_last_response_and_its_tail_are_named() -> None:
    step = account(completed(trace(), run_setup("verl"), CLUSTER)).steps.iloc[0]
    assert (step["prompt_id"], step["response_tokens"], step["actor"], step["median_tokens"]) == ("p3", 30, "actor-1", 15.0)
    assert step["generation_s"] == 4.0
    assert step["tail_s"] == pytest.approx(4.0 - np.quantile([1.0, 1.5, 2.0, 4.0], 0.9))


def test_gpus_of_their_own_wait_for_each_other() -> None:
    phases = PhaseSeconds(prepare_s=1.0, learn_s=2.0, basis="stated")
    shared = account(completed(trace(), run_setup("verl"), CLUSTER, phases)).lines.set_index("use")["gpu_s"]
    assert shared["learning"] == 16.0
    assert shared["preparation"] == 8.0
    assert ACTORS_WAIT not in shared
    apart = account(completed(trace(), run_setup("verl", learner_gpus=4), CLUSTER, phases)).lines.set_index("use")["gpu_s"]
    assert (apart["learning"], apart["preparation"]) == (8.0, 4.0)
    assert (apart["learner waiting for responses"], apart[ACTORS_WAIT]) == (16.0, 24.0)


def test_actors_of_an_asynchronous_run_do_not_wait_for_the_learner() -> None:
    found = account(completed(trace(), run_setup("areal", learner_gpus=4), CLUSTER, PhaseSeconds(learn_s=2.0, basis="logged")))
    assert ACTORS_WAIT not in set(found.lines["use"])


@given(st.lists(st.integers(1, 400), min_size=1, max_size=24), st.sampled_from(["static", "least-loaded", "fold"]))
@settings(deadline=None, max_examples=25)
def test_uses_add_up_to_all_gpus_for_as_long_as_generation_takes(lengths: list[int], policy: str) -> None:
    rollouts = pd.DataFrame(
        {"run": "r", "step": 0, "epoch": 0, "prompt_id": [f"p{i // 2}" for i in range(len(lengths))],
         "sample": [i % 2 for i in range(len(lengths))], "prompt_tokens": 20, "response_tokens": lengths,
         "finish_reason": "stop"}
    )  # fmt: skip
    setting = SimulationConfig(CLUSTER, load_profile("l40s-qwen2.5-3b-tp2"))
    result = simulate(rollouts, setting, [policy])
    found = account(completed(result.traces[policy], run_setup("verl"), CLUSTER))
    assert found.gpu_s == pytest.approx(8 * float(result.table["time_s"].iloc[0]))
    assert (found.lines["gpu_s"] >= 0).all()
    assert found.lines["share"].sum() == pytest.approx(1.0)


def of_use(table: pd.DataFrame) -> dict[str, float]:
    """GPU-seconds by use, those of idle GPUs together."""
    return table["gpu_s"].groupby(table["use"].where(table["kind"] != "idle", "idle")).sum().to_dict()


def test_uses_of_an_executed_run_add_up_to_what_is_billed() -> None:
    """actor-0: 2 GPUs, 1 s of prefill, 2 s of decoding in a quarter of the slots, 1 s idle. actor-1: 2 GPUs decode for 2 s."""
    spans = [{**row, "batch_mean": 2.0, "slots": 8} if row["phase"] == "decode" else row for row in tables()["spans"]]
    table = account(sample_trace(1, spans=spans)).lines
    assert of_use(table) == pytest.approx({"prefill": 2.0, IN_USE: 2.0, EMPTY: 6.0, "idle": 2.0})
    assert table["kind"].drop_duplicates().tolist() == ["work", "empty slots", "idle"]
    assert table["gpu_s"].sum() == pytest.approx(12.0)
    assert table["usd"].sum() == pytest.approx(0.012)
    assert table["share"].sum() == pytest.approx(1.0)
    assert set(table["basis"]) == {"executed"}


def test_gpus_without_a_price_leave_the_dollars_of_their_uses_unknown() -> None:
    held = [{**row, "usd_per_gpu_s": 0.0} for row in tables()["allocations"]]
    table = account(sample_trace(1, allocations=held)).lines
    assert table["usd"].isna().all()
    assert table["gpu_s"].sum() == pytest.approx(12.0)


def test_slots_that_are_not_recorded_count_as_used() -> None:
    assert of_use(account(sample_trace(1)).lines) == pytest.approx({IN_USE: 8.0, "prefill": 2.0, "idle": 2.0})


def test_overlapping_spans_count_once() -> None:
    double = [*tables()["spans"], {**tables()["spans"][1], "phase": "prefill"}]
    assert account(sample_trace(1, spans=double)).lines["gpu_s"].sum() == pytest.approx(12.0)


def test_a_trace_without_allocations_has_no_uses() -> None:
    assert account(sample_trace(1, allocations=[])).lines.empty


def test_idle_gpus_of_an_executed_run_have_a_cause() -> None:
    same = {"run": "r", "step": 0, "kind": "l40s", "usd_per_gpu_s": 0.01}
    held = [
        {"holder": "actor-0", "role": "decode", "gpu_ids": [0, 1], "start_s": 1.0, "end_s": 4.0, **same},
        {"holder": "actor-1", "role": "decode", "gpu_ids": [2, 3], "start_s": 0.0, "end_s": 10.0, **same},
        {"holder": "actor-2", "role": "decode", "gpu_ids": [4], "start_s": 0.0, "end_s": 2.0, **same},
        {"holder": "learner", "role": "learner", "gpu_ids": [5], "start_s": 0.0, "end_s": 12.0, **same},
    ]
    spans = [
        {"holder": "actor-0", "phase": "decode", "start_s": 1.5, "end_s": 4.0, "run": "r", "step": 0},
        {"holder": "actor-1", "phase": "decode", "start_s": 0.0, "end_s": 3.0, "run": "r", "step": 0},
        {"holder": "learner", "phase": "prepare", "start_s": 3.0, "end_s": 5.0, "run": "r", "step": 0},
        {"holder": "learner", "phase": "learn", "start_s": 6.0, "end_s": 10.0, "run": "r", "step": 0},
        {"holder": "learner", "phase": "sync", "start_s": 10.0, "end_s": 11.0, "run": "r", "step": 0},
    ]
    rows = [{"run": "r", "step": 0, "prompt_id": "p", "sample": 0, "response_tokens": 5}]
    lines = account(Trace(rows, held, spans)).lines
    uses = lines.set_index("use")["gpu_s"].to_dict()
    assert uses == pytest.approx(
        {
            IN_USE: 5.0 + 6.0, "preparation": 2.0, "learning": 4.0, "sending weights": 1.0, PAUSING: 1.0, WAITING: 2.0,
            ACTORS_WAIT: 12.0, UNUSED: 2.0, "learner waiting for responses": 3.0, "learner waiting between phases": 2.0,
        }
    )  # fmt: skip
    assert sum(uses.values()) == pytest.approx(6.0 + 20.0 + 2.0 + 12.0)


def test_what_nobody_stated_is_named_as_an_assumption() -> None:
    assumed = run_setup("verl")
    assert assumed.dispatch == "least-loaded"
    assert assumed.candidates == ("least-loaded", "static")
    assert "ranges cover both dispatch rules" in assumed.assumed[0]
    stated = run_setup("verl", dispatch="static", learner_gpus=0)
    assert (stated.candidates, stated.assumed, stated.colocated) == (("static",), (), True)
    unknown = run_setup("table")
    assert "the framework is unknown; it is taken to cut the batch into equal chunks" in unknown.assumed[0]
    apart = run_setup("prime-rl")
    assert not apart.colocated
    assert not apart.synchronous
    assert len(apart.assumed) == 3


def test_wrong_statements_are_refused() -> None:
    with refused(InputError, "'random'"):
        run_setup("verl", dispatch="random")
    with refused(InputError):
        run_setup("verl", learner_gpus=-1)

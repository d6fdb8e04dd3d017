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

from rlhfless.analysis import PhaseSeconds, account, run_setup
from rlhfless.analysis.gpu_seconds import ACTORS_WAIT, LEARNER_WAITS, PAUSING, UNUSED, WAITING
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
    found = account(trace(), run_setup("verl"), CLUSTER)
    uses = found.lines.set_index("use")["gpu_s"].to_dict()
    assert uses == pytest.approx(
        {"starting actors": 1.0, "prefill": 1.0, "decoding": 9.0, WAITING: 4.0, PAUSING: 1.0, UNUSED: 16.0}
    )
    assert found.gpu_s == pytest.approx(8 * 4.0)
    assert found.idle_share == pytest.approx(21 / 32)
    assert found.lines["usd"].sum() == pytest.approx(32 * 3.6 / 3600)
    assert found.slot_idle_gpu_s == pytest.approx(2 * 1.5 * 0.75)


def test_what_rounding_leaves_is_no_use() -> None:
    one = trace()
    spans = one.spans.copy()
    spans.loc[spans["end_s"] == 2.0, "end_s"] = 2.5 - 1e-12  # nothing is between the decodes of actor-0 but rounding
    uses = account(replace(one, spans=spans), run_setup("verl"), CLUSTER).lines["use"].tolist()
    assert PAUSING not in uses


def test_the_last_response_and_its_tail_are_named() -> None:
    step = account(trace(), run_setup("verl"), CLUSTER).steps.iloc[0]
    assert (step["prompt_id"], step["response_tokens"], step["actor"], step["median_tokens"]) == ("p3", 30, "actor-1", 15.0)
    assert step["generation_s"] == 4.0
    assert step["tail_s"] == pytest.approx(4.0 - np.quantile([1.0, 1.5, 2.0, 4.0], 0.9))


def test_gpus_of_their_own_wait_for_each_other() -> None:
    phases = PhaseSeconds(prepare_s=1.0, learn_s=2.0, basis="stated")
    shared = account(trace(), run_setup("verl"), CLUSTER, phases).lines.set_index("use")["gpu_s"]
    assert shared["learning"] == 16.0
    assert shared["preparation"] == 8.0
    assert ACTORS_WAIT not in shared
    apart = account(trace(), run_setup("verl", learner_gpus=4), CLUSTER, phases).lines.set_index("use")["gpu_s"]
    assert (apart["learning"], apart["preparation"]) == (8.0, 4.0)
    assert (apart[LEARNER_WAITS], apart[ACTORS_WAIT]) == (16.0, 24.0)


def test_actors_of_an_asynchronous_run_do_not_wait_for_the_learner() -> None:
    found = account(trace(), run_setup("areal", learner_gpus=4), CLUSTER, PhaseSeconds(learn_s=2.0, basis="logged"))
    assert ACTORS_WAIT not in set(found.lines["use"])


@given(st.lists(st.integers(1, 400), min_size=1, max_size=24), st.sampled_from(["static", "least-loaded", "fold"]))
@settings(deadline=None, max_examples=25)
def test_uses_add_up_to_all_gpus_for_as_long_as_generation_takes(lengths: list[int], policy: str) -> None:
    rollouts = pd.DataFrame(
        {"run": "r", "step": 0, "epoch": 0, "prompt_id": [f"p{i // 2}" for i in range(len(lengths))],
         "sample": [i % 2 for i in range(len(lengths))], "prompt_tokens": 20, "response_tokens": lengths,
         "finish_reason": "stop"}
    )  # fmt: skip
    setting = SimulationConfig(CLUSTER, load_profile("l40s-qwen2.5-3b-tp2"), time_limit_s=0.05)
    result = simulate(rollouts, setting, [policy])
    found = account(result.traces[policy], run_setup("verl"), CLUSTER)
    assert found.gpu_s == pytest.approx(8 * float(result.steps["time_s"].iloc[0]))
    assert (found.lines["gpu_s"] >= 0).all()
    assert found.lines["share"].sum() == pytest.approx(1.0)


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

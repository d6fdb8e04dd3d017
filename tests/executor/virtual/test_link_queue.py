"""A KV cache is sent where its transfer takes less than recomputing it, whatever it has to wait for on the link."""

from __future__ import annotations

import json

import numpy as np
import pytest
from executor_samples import Orders, plan_of, uniform_step
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from solver import LatencyModel
from solver.model.runtime_rules import Cut, Decision, Move
from solver.replanning.marginal_value import delay_s, sends_kv, stall_s


def sent(at: dict[float, list[Decision]], migration: str) -> list[tuple[int, float, float]]:
    """(response, start, end) of every cache that actor 0 sends: 0.13 s each where recomputing one takes 0.3 s."""
    step = uniform_step([9] * 5, transfer_base_s=0.02, transfer_per_kv_token_s=0.01, prefill_base_s=0.3)
    record = run_step(
        plan_of([[0, 1, 2, 3], [4]], Orders(at)), step.requests(), SimulatedEngine, step.latency, step.cluster,
        migration=migration,
    )  # fmt: skip
    assert sorted(record.completions) == list(range(5))
    spans = [s for s in record.spans if s["phase"] == "migrate"]
    return [
        (json.loads(s["detail"])["response"], round(s["end_s"] - s["start_s"], 6), round(s["start_s"], 6)) for s in spans
    ]  # fmt: skip


CUT = Cut(0, tuple(Move(r, 1, two_step=False) for r in range(4)))


@pytest.mark.parametrize("singly", [False, True])
def test_those_that_wait_for_the_link_are_sent_too(singly):
    """The fourth is there after 0.52 s, and would be after 0.3 s if it held up the receiver's batch for being recomputed."""
    decisions = list(CUT.moves) if singly else [CUT]
    found = sent({0.35: decisions}, "cheaper")
    assert [response for response, _, _ in found] == [0, 1, 2, 3]
    assert found[1][2] == pytest.approx(found[0][2] + 0.13, abs=2e-2)


@given(st.floats(0, 2), st.floats(0, 0.1), st.floats(0, 2), st.floats(0, 0.1), st.integers(1, 100))
def test_planner_and_executor_compare_the_same(base_s, per_token_s, prefill_s, per_prefill_token_s, tokens):
    latency = LatencyModel(
        "x", 1, 0.1, 0.0, 0.0, prefill_base_s=prefill_s, prefill_per_token_s=per_prefill_token_s,
        transfer_base_s=base_s, transfer_per_kv_token_s=per_token_s,
    )  # fmt: skip
    transfer_s, recompute_s = latency.transfer_s(tokens), latency.recompute_s(tokens)
    kv_tokens = np.array([float(tokens)])
    sends = bool(sends_kv(transfer_s, recompute_s))
    assert stall_s(latency, kv_tokens)[0] == pytest.approx(0.0 if sends else recompute_s)
    assert delay_s(latency, kv_tokens, 0.0)[0] == pytest.approx(min(transfer_s, recompute_s))
    assert not sends_kv(np.inf, recompute_s)

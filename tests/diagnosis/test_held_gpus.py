"""What the trace of an executed run says of its GPUs: counted from its allocations, never from anything assumed."""

from __future__ import annotations

import pytest

import rlhfless as rl
from rlhfless.diagnosis import diagnose
from rlhfless.trace import allocation_metrics, read_trace


def test_cost_and_idle_share_are_those_of_the_trace() -> None:
    trace = read_trace(rl.example())
    said, held = diagnose(trace), allocation_metrics(trace)
    assert said.numbers["gpu_hours"].value == pytest.approx(held["gpu_seconds"].sum() / 3600)
    assert said.numbers["usd"].value == pytest.approx(held["cost_usd"].sum())
    share = held["idle_gpu_seconds"].sum() / held["gpu_seconds"].sum()
    assert said.numbers["idle_gpu_share"].value == pytest.approx(share)
    assert said.numbers["idle_gpu_share"].evidence == "counted"
    assert "idle_gpu_share" in [key for one in said.findings for key in one.proof]


def test_stated_gpus_do_not_change_what_the_trace_cost_and_its_own_gpus_are_named() -> None:
    one, own = (rl.load(rl.example(), gpus, verbose=False).diagnosis() for gpus in (1, None))
    assert one.numbers["gpu_hours"].value == own.numbers["gpu_hours"].value
    assert "which ran on 16 GPUs" in one.numbers["gpu_hours"].how
    assert "which ran on" not in own.numbers["gpu_hours"].how
    assert "if all" not in str(one)


def test_a_log_without_allocations_has_no_cost() -> None:
    trace = read_trace(rl.example())
    said = diagnose(trace.rollouts)
    assert not {"gpu_hours", "usd", "idle_gpu_share"} & set(said.numbers)
    assert "Cost" not in str(said)

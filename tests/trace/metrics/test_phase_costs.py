"""What steps cost by phase: sums are those of the allocations, and every second has one phase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import rollouts, step

from rlhfless.trace import STEP_PHASES, Trace, TraceError, allocation_metrics, step_costs

META = {"cluster": {"nodes": 1, "gpus_per_node": 4}}


def trace_of(held: list[tuple[Any, ...]], did: list[tuple[Any, ...]], meta: dict[str, Any] = META) -> Trace:
    """One step; held: holder, role, GPUs, start, end; did: holder, phase, start, end."""
    names = ("holder", "role", "gpu_ids", "start_s", "end_s")
    rows = [{"step": 0, "kind": "x", "node": 0, "usd_per_gpu_s": 0.5, **dict(zip(names, row, strict=True))} for row in held]
    spans = [{"step": 0, **dict(zip(("holder", "phase", "start_s", "end_s"), row, strict=True))} for row in did]
    return Trace(pd.DataFrame(rollouts()), pd.DataFrame(rows), pd.DataFrame(spans), meta=meta)


def test_a_step_that_a_reader_adds_up() -> None:
    """Two actors sync for 1 s and decode, one for 3 s and one for 1 s; preparation overlaps the last second of the longer and
    goes on for 2 s; learning takes 2 s. GPUs are held for 0.5 s before the sync."""
    trace = trace_of(
        [
            ("a", "decode", [0], 0.0, 4.5),
            ("b", "decode", [1], 0.0, 2.5),
            ("p", "prepare", [4, 5], 3.5, 6.5),
            ("learner", "learner", [0, 1], 6.5, 8.5),
        ],
        [
            ("a", "sync", 0.5, 1.5),
            ("b", "sync", 0.5, 1.5),
            ("a", "decode", 1.5, 4.5),
            ("b", "decode", 1.5, 2.5),
            ("p", "prepare", 3.5, 4.0),
            ("p", "prepare", 4.25, 6.5),
            ("learner", "learn", 6.5, 8.5),
        ],
    )
    costs = step_costs(trace).set_index("phase")
    assert costs["time_s"].to_dict() == {"generation": 3.5, "preparation": 2.0, "learning": 2.0, "sync": 1.0}
    assert costs["elastic_gpu_s"].to_dict() == {"generation": 5.0, "preparation": 6.0, "learning": 4.0, "sync": 2.0}
    assert costs["elastic_usd"].to_dict() == {"generation": 2.5, "preparation": 3.0, "learning": 2.0, "sync": 1.0}
    six = {"generation": 21.0, "preparation": 12.0, "learning": 12.0, "sync": 6.0}  # the cluster's four, and two beside it
    assert costs["serverful_gpu_s"].to_dict() == six
    assert costs["serverful_usd"].to_dict() == {name: 0.5 * value for name, value in six.items()}
    assert step_costs(trace, gpus=2)["serverful_gpu_s"].sum() == pytest.approx(2 * 8.5)
    unpriced = step_costs(replace(trace, allocations=trace.allocations.assign(usd_per_gpu_s=0.0)))
    assert unpriced[["elastic_usd", "serverful_usd"]].isna().all(axis=None), "unknown, and not free"
    assert unpriced["elastic_gpu_s"].sum() == costs["elastic_gpu_s"].sum()


moments = st.floats(0, 10)
spans = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from(["start", "sync", "prefill", "decode", "prepare", "learn"]), moments, moments
    )
)


@given(st.tuples(moments, moments, moments), spans)
def test_phases_add_up_to_what_was_held(ends: tuple[float, ...], did: list[tuple[Any, ...]]) -> None:
    roles = ("decode", "prepare", "learner")
    held = [(who, role, [i], 0.0, 0.1 + end) for i, (who, role, end) in enumerate(zip("abc", roles, ends, strict=True))]
    trace = trace_of(held, [(who, what, min(a, b), max(a, b)) for who, what, a, b in did])
    costs = step_costs(trace)
    assert costs["phase"].tolist() == list(STEP_PHASES)
    assert (costs[["time_s", "elastic_gpu_s", "serverful_gpu_s"]] >= -1e-9).all(axis=None)
    assert costs["elastic_gpu_s"].sum() == pytest.approx(allocation_metrics(trace)["gpu_seconds"].sum())
    assert costs["time_s"].sum() == pytest.approx(0.1 + max(ends))
    assert costs["serverful_gpu_s"].sum() >= costs["elastic_gpu_s"].sum() - 1e-9


def test_every_step_has_its_own_rows() -> None:
    parts = [step(0), step(1)]
    frames = {
        name: pd.DataFrame([row for part in parts for row in part[name]]) for name in ("rollouts", "allocations", "spans")
    }
    costs = step_costs(Trace(**frames, meta=META))
    assert costs.groupby("step")["elastic_gpu_s"].sum().to_dict() == {0: 16.0, 1: 16.0}
    learning = costs[costs["phase"] == "learning"]
    assert learning["elastic_gpu_s"].tolist() == [4.0, 4.0], "a learner without spans is held for learning"


def test_what_tells_no_cost_is_named() -> None:
    logged = Trace(pd.DataFrame(rollouts()))
    with refused(TraceError):
        step_costs(logged)
    trace = trace_of([("a", "decode", [0], 0.0, 1.0), ("b", "decode", [1], 0.0, 1.0)], [], meta={})
    with refused(TraceError):
        step_costs(trace)
    dearer = trace.allocations.assign(usd_per_gpu_s=[0.5, 0.7])
    with refused(TraceError):
        step_costs(replace(trace, allocations=dearer))

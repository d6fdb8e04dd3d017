"""Metrics and traces of simulated policies, from the records of their steps.

The metrics of all policies are computed at once. The trace of a policy is made when it is first read, as most callers read the
results of many policies and the trace of few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

from rlhfless.executor import StepRecord
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from rlhfless.trace import Trace
from rlhfless.trace.metrics.step_metrics import billed_steps
from rlhfless.trace.schema.validation import validate

Executed = Sequence[tuple[StepRecord, LoggedStep]]
"""Steps that one policy executed, in order, and what the log says of them."""

Key = TypeVar("Key", str, tuple[int, str])

COUNTED = ("run", "step", "holder", "phase", "start_s", "end_s", "batch_mean", "slots", "background")
"""Columns of spans that metrics are computed from."""


class SimulatedTraces(Mapping[str, Trace]):
    """The trace of every policy, by name, made when it is first read.

    Args:
        executed: the steps of every policy. setting: that they were simulated in.
    """

    def __init__(self, executed: Mapping[str, Executed], setting: SimulationConfig) -> None:
        self._executed, self._setting = dict(executed), setting
        self._made: dict[str, Trace] = {}

    def __getitem__(self, policy: str) -> Trace:
        if policy not in self._made:
            self._made[policy] = trace_of(self._executed[policy], self._setting, policy)
            self._executed[policy] = ()  # the trace has it all
        return self._made[policy]

    def __iter__(self) -> Iterator[str]:
        return iter(self._executed)

    def __len__(self) -> int:
        return len(self._executed)


def policy_metrics(executed: Mapping[Key, Executed]) -> pd.DataFrame:
    """Return the billed time and cost of every policy's steps: one row per policy and step.

    Args:
        executed: by the policy, or by a pair of a setting's number and the policy.

    Returns:
        A frame with ``policy, step, actors, gpu_seconds, idle_gpu_seconds, slot_idle_gpu_seconds, cost_usd``, as
        ``rlhfless.trace.step_metrics`` computes them.
    """
    names = list(executed)
    runs = [(str(number), record) for number, name in enumerate(names) for record, _ in executed[name]]
    allocations = validate("allocations", [{**row, "run": run} for run, record in runs for row in record.allocations])
    spans = pd.DataFrame([{**row, "run": run} for run, record in runs for row in record.spans], columns=list(COUNTED))
    billed = billed_steps(allocations, validate("spans", spans)).astype({"actors": "Int64"})
    of_row = [names[int(run)] for run in billed["run"]]
    billed.insert(0, "policy", pd.Series(of_row, dtype=object if any(isinstance(name, tuple) for name in names) else None))
    columns = ["policy", "step", "actors", "gpu_seconds", "idle_gpu_seconds", "slot_idle_gpu_seconds", "cost_usd"]
    return billed[columns]


def rollout_rows(record: StepRecord, logged: LoggedStep) -> pd.DataFrame:
    """Return the log's rows of a step with the times of this execution instead of the logged times."""
    completed, actor_of = record.completions, record.actor_of
    done = [completed[i] for i in range(len(logged.rows))]
    times = pd.DataFrame(
        {
            "prefill_tokens_computed": [one.prefill_tokens_computed for one in done],
            "actor": [actor_of[i] for i in range(len(done))],
            "start_s": [one.start_s for one in done],
            "first_token_s": [one.first_token_s for one in done],
            "end_s": [one.time_s for one in done],
        },
        index=logged.rows.index,
    )
    if all(one.passes is not None for one in done):
        for name in ("passes", "drafted_tokens", "accepted_tokens"):
            times[name] = [getattr(one, name) for one in done]
    kept = logged.rows.drop(columns=[c for c in times.columns if c in logged.rows], errors="ignore")
    return pd.concat([kept, times], axis=1).assign(predicted_tokens=logged.predicted.response_tokens.astype(float))


def trace_of(executed: Executed, setting: SimulationConfig, policy: str) -> Trace:
    """Return one trace of all steps under one policy."""
    return Trace(
        rollouts=pd.concat([rollout_rows(record, logged) for record, logged in executed], ignore_index=True),
        allocations=pd.DataFrame([row for record, _ in executed for row in record.allocations]),
        spans=pd.DataFrame([row for record, _ in executed for row in record.spans]),
        events=pd.DataFrame([row for record, _ in executed for row in record.events]),
        plans=[{"step": record.step, **record.plan.to_dict()} for record, _ in executed],
        meta=describe(setting, policy),
    )


def describe(setting: SimulationConfig, policy: str) -> dict[str, Any]:
    """Return the contents of ``meta.json`` for a simulated run."""
    return {
        "seeds": {"policy": setting.seed},
        "cluster": vars(setting.cluster),
        "profile": setting.latency.name,
        "policy": policy,
        "objective": vars(setting.objective),
        "clock": "virtual",
        "charging": "profile",
        "engine": "simulated",
        "device": "none",
    }

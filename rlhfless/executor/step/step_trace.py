"""Turns the record of one executed step into a trace in memory: the four tables, and the plan.

A running or interrupted step has rows for the responses that are complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlhfless.engine.protocol import Completion, Request
from solver.model.cluster import Cluster, MixedCluster
from solver.model.latency import LatencyModel
from solver.model.offers import Latencies
from solver.model.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    from rlhfless.trace import Trace


class StepRows(Protocol):
    """What a trace needs of a ``StepRecord``."""

    run: str
    step: int
    plan: Plan
    allocations: list[dict[str, Any]]
    events: list[dict[str, Any]]
    requests: Sequence[Request]
    meta: dict[str, Any]

    @property
    def completions(self) -> Mapping[int, Completion]:
        """Completions by response."""
        ...

    @property
    def spans(self) -> list[dict[str, Any]]:
        """The span rows."""
        ...

    def rollout_times(self, response: int) -> dict[str, Any]:
        """Columns of a rollouts row that execution measures."""
        ...


def step_trace(record: StepRows) -> Trace:
    """Return the step as ``rlhfless.trace.read_trace`` would return it from a folder with this step alone.

    Raises:
        TraceError: no response is complete.
    """
    import pandas as pd

    from rlhfless.latency import list_profiles
    from rlhfless.trace import Trace

    meta = {**record.meta}
    if meta.get("profile") not in list_profiles():  # a latency model of one's own, which no reader could load by its name
        meta.pop("profile", None)
    allocations, spans, events = (pd.DataFrame(rows) for rows in (record.allocations, record.spans, record.events))
    plans = [{"step": record.step, **record.plan.to_dict()}]
    return Trace(rollout_rows(record), allocations, spans, events, plans, meta)


def executed_with(plan: Plan, latency: Latencies, cluster: Cluster | MixedCluster) -> dict[str, Any]:
    """Return policy, cluster and latency profile of a step for ``StepRecord.meta``; of several kinds of actors the policy."""
    meta: dict[str, Any] = {"policy": plan.policy}
    if isinstance(cluster, Cluster):
        meta["cluster"] = {**vars(cluster)}
    if isinstance(latency, LatencyModel):
        meta["profile"] = latency.name
    return meta


def rollout_rows(record: StepRows) -> pd.DataFrame:
    """Return one row of the table ``rollouts`` per complete response.

    Prompts are named by their number in the step. A response without a request, or without a prompt, is a prompt of its own.
    """
    import pandas as pd

    request_of = {request.response: request for request in record.requests}
    samples: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for response in sorted(record.completions):
        request = request_of.get(response)
        prompt = str(response if request is None or request.prompt is None else request.prompt)
        samples[prompt] = samples.get(prompt, -1) + 1
        rows.append(
            {
                "run": record.run,
                "step": record.step,
                "prompt_id": prompt,
                "sample": samples[prompt],
                "prompt_tokens": None if request is None else request.prompt_tokens,
                **record.rollout_times(response),
            }
        )
    return pd.DataFrame(rows)

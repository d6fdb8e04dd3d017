"""Computes the metrics of each step from a trace: time, GPU-seconds, idle GPU-seconds, dollars, tokens, rewards.

Money and GPU-seconds come from allocations only, idle time from allocations and their spans. A logged trace has neither, so
these numbers are NaN, not 0. Dollars are NaN, too, where GPUs without a price were allocated (``dollars``).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.metrics.intervals import interval_union_s
from rlhfless.trace.schema.prices import dollars
from rlhfless.trace.schema.tables import NO_ACTOR

ROUNDING = 1e-12
"""Of the end of an allocation: an idle time below it is the rounding of sums of the same seconds."""
SUMS = ["gpu_seconds", "idle_gpu_seconds", "slot_idle_gpu_seconds", "cost_usd"]


def allocation_metrics(trace: Trace) -> pd.DataFrame:
    """Return one row per allocation, with ``gpus``, ``duration_s``, GPU-seconds, idle time and dollars.

    A span belongs to the allocations of its run, step and holder, clipped to their time.
    ``idle_gpu_seconds``: gpus x (duration - union of the foreground spans).
    ``slot_idle_gpu_seconds``: gpus x sum over decode spans of duration x (1 - batch_mean / slots). It is separate from the idle
    GPU-seconds and never added to them. It is NaN where a decode span lacks its batch or slots.
    """
    return billed_allocations(trace.allocations, trace.spans)


def billed_allocations(allocations: pd.DataFrame, spans: pd.DataFrame) -> pd.DataFrame:
    """Return ``allocation_metrics`` of some rows of a trace.

    Args:
        allocations, spans: as ``validate`` returns them; all spans of the allocations' holders in their steps.
    """
    table = allocations.copy()
    at = spans.groupby(["run", "step", "holder"], sort=False).indices if len(spans) else {}
    start, end = spans["start_s"].to_numpy(), spans["end_s"].to_numpy()
    foreground = ~spans["background"].to_numpy(dtype=bool)
    decode = (spans["phase"] == "decode").to_numpy(dtype=bool)
    empty_share = 1.0 - spans["batch_mean"].to_numpy() / spans["slots"].to_numpy(dtype=float, na_value=np.nan)
    table["gpus"] = np.array([len(ids) for ids in table["gpu_ids"]], dtype=np.int64)
    table["duration_s"] = table["end_s"] - table["start_s"]
    busy_s, empty_slot_s = np.zeros(len(table)), np.zeros(len(table))
    held = zip(*(table[name].tolist() for name in ("run", "step", "holder", "start_s", "end_s")), strict=True)
    for row, (run, step, holder, start_s, end_s) in enumerate(held):
        span_indices = at.get((run, step, holder), np.zeros(0, dtype=np.int64))
        begin, until = np.maximum(start[span_indices], start_s), np.minimum(end[span_indices], end_s)
        busy_s[row] = interval_union_s(begin[foreground[span_indices]], until[foreground[span_indices]])
        decoding = decode[span_indices] & (until > begin)
        empty_slot_s[row] = float(((until - begin) * empty_share[span_indices])[decoding].sum())
    table["gpu_seconds"] = table["gpus"] * table["duration_s"]
    idle_s = table["duration_s"] - busy_s
    table["idle_gpu_seconds"] = table["gpus"] * idle_s.where(idle_s > ROUNDING * table["end_s"].abs(), 0.0)
    table["slot_idle_gpu_seconds"] = table["gpus"] * empty_slot_s
    table["cost_usd"] = dollars(table["gpu_seconds"], table["usd_per_gpu_s"])
    return table


def step_metrics(trace: Trace) -> pd.DataFrame:
    """Return one row of metrics per run and step.

    Returns:
        A frame with ``run, step``; ``time_s`` (last end minus first start of the allocations), ``gpu_seconds``,
        ``idle_gpu_seconds``, ``slot_idle_gpu_seconds``, ``cost_usd`` (sums over the allocations), ``actors`` (holders
        with the role decode; ``NO_ACTOR`` is none); ``responses, response_tokens, response_tokens_mean, reward_mean`` (of
        the responses with a reward), ``truncated_share`` (ended by ``length``, of those whose finish reason is known), and
        ``planning_s``, of which ``planning_delay_s`` delayed generation. What the trace does not record is NaN or NA.
    """
    keys = ["run", "step"]
    return (
        billed_steps(trace.allocations, trace.spans)
        .merge(_generated(trace), on=keys, how="outer")
        .merge(_planned(trace), on="step", how="left")
        .sort_values(keys, kind="stable", ignore_index=True)
        .astype({"actors": "Int64", "responses": "Int64", "response_tokens": "Int64"})
    )


def total_usd(metrics: pd.DataFrame) -> float:
    """Return the dollars of several rows of ``step_metrics``: NaN where those of a step with allocations are unknown."""
    return float(metrics.loc[metrics["gpu_seconds"].notna(), "cost_usd"].sum(skipna=False, min_count=1))


def billed_steps(allocations: pd.DataFrame, spans: pd.DataFrame) -> pd.DataFrame:
    """Return what each run's steps were billed: those columns of ``step_metrics`` that allocations and spans give.

    Args:
        allocations, spans: as ``validate`` returns them.
    """
    table = billed_allocations(allocations, spans)
    groups = table.groupby(["run", "step"], sort=False).indices
    columns = {name: table[name].to_numpy() for name in (*SUMS, "start_s", "end_s", "holder", "role")}
    rows = [
        (
            *of_step,
            columns["end_s"][at].max() - columns["start_s"][at].min(),
            *(columns[name][at].sum() for name in SUMS),
            len(set(columns["holder"][at][columns["role"][at] == "decode"]) - {NO_ACTOR}),
        )
        for of_step, at in groups.items()
    ]
    dtypes = {"run": "str", "step": np.int64, **dict.fromkeys(["time_s", *SUMS], float), "actors": np.int64}
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)


def _generated(trace: Trace) -> pd.DataFrame:
    table = trace.rollouts[["run", "step", "response_tokens", "reward"]].copy()
    reasons = trace.rollouts["finish_reason"]
    table["truncated"] = (reasons == "length").astype(float).where(reasons.notna())
    groups = table.groupby(["run", "step"], sort=False)
    return pd.DataFrame(
        {
            "responses": groups.size(),
            "response_tokens": groups["response_tokens"].sum(),
            "response_tokens_mean": groups["response_tokens"].mean(),
            "reward_mean": groups["reward"].mean(),
            "truncated_share": groups["truncated"].mean(),
        }
    ).reset_index()


def _planned(trace: Trace) -> pd.DataFrame:
    """Return the planning time of each step that has a plan."""
    names = ("planning_s", "planning_delay_s")
    rows = [{"step": plan["step"], **{name: plan.get(name, np.nan) for name in names}} for plan in trace.plans]
    return pd.DataFrame(rows, columns=["step", *names]).astype({"step": np.int64, **dict.fromkeys(names, float)})

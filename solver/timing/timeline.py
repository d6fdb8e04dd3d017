"""Time of one actor's iterations: the schedule of ``solver.timing.batching`` under a latency model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.model.latency import LatencyModel
from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray, IntArray
from solver.timing.batch import Batch
from solver.timing.batching import schedule
from solver.timing.residency import Residency


@dataclass(frozen=True, eq=False)
class Timeline:
    """An actor's iterations with their times in seconds, counted from when it is ready.

    Attributes:
        residency: which responses are in the batch when.
        boundary_s: (I+1,) boundaries between iterations; iteration t lies between entries t and t+1.
        prefill_s: (I,) part of each iteration that counts as prefill, at its start: the prefill call, or the prompt tokens'
            share of the fed tokens of a mixed iteration. The rest counts as decoding, including the join time of newly admitted
            responses.
        prefill_tokens: (I,) tokens that prefill is charged for in it (``LatencyModel.charged_tokens``).
        batch, kv_tokens: (I,) responses that get a token, and their KV tokens.
        end_s: (n,) completion time of each response.
    """

    residency: Residency
    boundary_s: FloatArray
    prefill_s: FloatArray
    prefill_tokens: IntArray
    batch: IntArray
    kv_tokens: IntArray
    end_s: FloatArray

    @property
    def busy_s(self) -> float:
        """Return the seconds until the last response is complete."""
        return float(self.boundary_s[-1])


def timeline(batch: Batch, latency: LatencyModel) -> Timeline:
    """Schedule the responses and charge every iteration with its time.

    With separate prefill, the missing tokens of newly admitted responses are prefilled in one call, or in none if everything
    is cached. Then all responses decode one token. With mixed prefill an iteration feeds both. Each newly admitted response
    takes ``join_s``.
    """
    residency = schedule(batch, latency.token_budget)
    decoding, kv, prompts = residency.per_iteration(batch.growth)
    fed: IntArray | FloatArray = decoding if batch.drafts is None else batch.drafts.fed_per_iteration(residency, latency)
    if latency.mixes:
        tokens, seconds = prompts, latency.iteration_s(fed, kv, prompts)
        prefill_s = seconds * prompts / np.maximum(fed + prompts, 1)
    else:
        computes = residency.last_chunks > 0
        tokens = prompts + np.bincount(residency.first[computes], minlength=len(decoding))
        prefill_s = np.where(tokens > 0, latency.prefill_s(tokens), 0.0)
        seconds = latency.iteration_s(fed, kv) + prefill_s
    if latency.join_s:
        joins = (residency.last > residency.first) & ((residency.first > 0) | (residency.response >= batch.running))
        seconds += latency.join_s * np.bincount(residency.first[joins], minlength=len(decoding))
    if latency.mixes and not decoding.all():
        prefill_s = np.where(decoding > 0, prefill_s, seconds)
    boundary_s = np.concatenate([[0.0], seconds.cumsum()])
    last = np.zeros(len(batch), np.int64)
    np.maximum.at(last, residency.response, residency.last)
    return Timeline(residency, boundary_s, prefill_s, tokens, decoding, kv, boundary_s[last])


def busy_s(batch: Batch, latency: LatencyModel) -> float:
    """Return ``timeline(...).busy_s`` of an actor on which nothing runs yet.

    With an affine latency model no iteration is computed by itself. Its time is a sum over its responses, so the total is base
    time times iterations plus the loads, whatever the order of admission.
    """
    if latency.table is not None:
        return timeline(batch, latency).busy_s
    r = schedule(batch, latency.token_budget)
    stay = (r.last - r.ready).astype(float)
    if batch.drafts is None:
        fed, growing = float(stay.sum()), (stay * (stay - 1)).sum()
    else:
        drafts = batch.drafts
        fed, growing = float(dot(stay, drafts.fed[r.response])), dot(stay * (stay - 1), drafts.growth[r.response])
    kv_steps = float(dot(stay, r.context) + growing / 2)
    seconds = (
        latency.base_s * float(r.last.max(initial=0))
        + latency.per_response_s * fed
        + latency.per_kv_token_s * kv_steps
        + latency.join_s * float(np.count_nonzero(r.last > r.first))
    )
    if latency.mixes:
        return seconds + float(latency.prefill_s(r.computed().sum()))
    computed = (r.prefill > 0) & (stay > 0)
    tokens = int(r.prefill[computed].sum())
    if tokens == 0:
        return seconds
    return seconds + float(latency.prefill_s(tokens, len(set(r.first[computed].tolist()))))

"""Continuous batching on one actor, in whole decode iterations: which responses are in the batch when, and how long each
iteration takes.

The planner's ``evaluate`` and the simulated engine both use it, so a plan is timed exactly as it is simulated.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray, IntArray
from solver.timing.mixed_prefill import exceeds_budget, keeps_budget, schedule_general, schedule_reserved
from solver.timing.pass_tokens import PassTokens
from solver.timing.refill import fits_at_once, only_slots_bind, schedule_with_refill
from solver.timing.residency import Residency


def schedule(
    remaining: IntArray,
    context: IntArray,
    max_tokens: IntArray,
    cached_tokens: IntArray,
    admission: Admission,
    running: int = 0,
    token_budget: int | None = None,
    passes: PassTokens | None = None,
) -> Residency:
    """Schedule continuous batching for responses queued in the given order, all available from iteration 0.

    Args:
        remaining: (n,) iterations each response needs; context: (n,) KV tokens at its next iteration.
        max_tokens: (n,) the most KV tokens it can reach (what ``reserve`` sets aside).
        cached_tokens: (n,) KV tokens of its context, at most all of it, that are cached when it joins and need no prefill. Its
            KV cache came along, its prompt's was received in part or whole, or an earlier response computes it. After an
            eviction a response computes its whole context.
        running: the first ``running`` responses are in the batch already.
        token_budget: the most tokens that an iteration feeds (``solver.timing.mixed_prefill``); None where every context is
            computed in the iteration in which the response joins.
        passes: what an iteration, then a pass, feeds and commits of each response where drafts are verified; None where it is
            one token.
    """
    prefill = context - cached_tokens
    reserves = admission.rule == "reserve" and not running
    if token_budget is not None and reserves and exceeds_budget(remaining, prefill, max_tokens, admission, token_budget):
        return schedule_reserved(remaining, context, max_tokens, prefill, admission, token_budget)
    unbudgeted = _schedule_unbudgeted(remaining, context, max_tokens, prefill, admission, running, passes)
    if token_budget is None or keeps_budget(unbudgeted, token_budget):
        return unbudgeted
    if reserves:
        return schedule_reserved(remaining, context, max_tokens, prefill, admission, token_budget)
    return schedule_general(remaining, context, max_tokens, prefill, admission, token_budget, running, passes)


def _schedule_unbudgeted(
    remaining: IntArray,
    context: IntArray,
    max_tokens: IntArray,
    prefill: IntArray,
    admission: Admission,
    running: int,
    passes: PassTokens | None,
) -> Residency:
    """Schedule where every context is computed in the iteration in which the response joins."""
    n = len(remaining)
    if n <= admission.max_batch and fits_at_once(remaining, context, max_tokens, admission, passes):
        return Residency.at_once(np.arange(n), np.zeros(n, np.int64), remaining.astype(np.int64), context, prefill)
    if only_slots_bind(max_tokens, admission):
        return _schedule_slots(remaining, context, prefill, admission.max_batch)
    if admission.rule == "reserve" and not running:
        return _schedule_reserved(remaining, context, max_tokens, prefill, admission)
    return schedule_with_refill(remaining, context, max_tokens, prefill, admission, running, passes)


def _schedule_slots(remaining: IntArray, context: IntArray, prefill: IntArray, slots: int) -> Residency:
    """Refill where only slots bind: every response, in order, joins when the first slot is free."""
    needs_iterations = remaining > 0
    lengths = remaining[needs_iterations]
    runs = np.flatnonzero(np.diff(lengths, prepend=-1))
    begin = np.zeros(len(remaining), dtype=np.int64)
    begin[needs_iterations] = _joins_by_run(lengths, runs, slots) if 2 * len(runs) < len(lengths) else _joins(lengths, slots)
    return Residency.at_once(np.arange(len(remaining)), begin, begin + remaining, context, prefill)


def _schedule_reserved(
    remaining: IntArray, context: IntArray, max_tokens: IntArray, prefill: IntArray, admission: Admission
) -> Residency:
    """Refill where reserved memory binds as well: every response, in order, joins when enough has left."""
    capacity, slots = admission.kv_capacity_tokens, admission.max_batch
    unit = int(max_tokens.max()) + 1  # an entry of the heap is the iteration from which tokens are free, and how many
    ends: list[int] = []
    begin = np.zeros(len(remaining), dtype=np.int64)
    needs_iterations = remaining > 0
    first = []
    now = used = 0
    for length, reserved in zip(remaining[needs_iterations].tolist(), max_tokens[needs_iterations].tolist(), strict=True):
        while ends and (used + reserved > capacity or len(ends) >= slots):
            end = heapq.heappop(ends)
            now = end // unit
            used -= end % unit
        heapq.heappush(ends, (now + length) * unit + reserved)
        used += reserved
        first.append(now)
    begin[needs_iterations] = first
    return Residency.at_once(np.arange(len(remaining)), begin, begin + remaining, context, prefill)


def _joins(lengths: IntArray, slots: int) -> IntArray:
    """Return the (n,) iterations in which responses that last ``lengths`` join."""
    at_once = min(slots, len(lengths))
    free = sorted(lengths[:at_once].tolist())  # a heap, by the iteration from which each slot is free
    first = [0] * at_once
    for length in lengths[at_once:].tolist():
        first.append(heapq.heapreplace(free, free[0] + length))
    return np.array(first, dtype=np.int64)


def _joins_by_run(lengths: IntArray, runs: IntArray, slots: int) -> IntArray:
    """Return ``_joins`` for neighbours of equal length, which are scheduled together from each of ``runs`` to the next."""
    free_at, free = [0], {0: slots}  # a heap of the iterations from which slots are free, and how many are
    joins, counts = [], []
    for length, remaining in zip(lengths[runs].tolist(), np.diff(runs, append=len(lengths)).tolist(), strict=True):
        while remaining:
            now = free_at[0]
            count = free[now]
            if count > remaining:
                free[now] = count - remaining
                count = remaining
            else:
                heapq.heappop(free_at)
                del free[now]
            joins.append(now)
            counts.append(count)
            remaining -= count
            now += length
            if now in free:
                free[now] += count
            else:
                free[now] = count
                heapq.heappush(free_at, now)
    return np.repeat(np.array(joins, dtype=np.int64), counts)


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


def timeline(
    remaining: IntArray,
    context: IntArray,
    max_tokens: IntArray,
    cached_tokens: IntArray,
    latency: LatencyModel,
    admission: Admission,
    running: int = 0,
    passes: PassTokens | None = None,
) -> Timeline:
    """Schedule the responses and charge every iteration with its time. Arguments are those of ``schedule``.

    With separate prefill, the missing tokens of newly admitted responses are prefilled in one call, or in none if everything
    is cached. Then all responses decode one token. With mixed prefill an iteration feeds both. Each newly admitted response
    takes ``join_s``.
    """
    budget = latency.token_budget
    residency = schedule(remaining, context, max_tokens, cached_tokens, admission, running, budget, passes)
    batch, kv, prompts = residency.per_iteration(None if passes is None else passes.growth)
    decoded: IntArray | FloatArray = batch if passes is None else passes.fed_per_iteration(residency, latency)
    if latency.mixes:
        tokens, seconds = prompts, latency.iteration_s(decoded, kv, prompts)
        prefill_s = seconds * prompts / np.maximum(decoded + prompts, 1)
    else:
        computes = residency.last_chunks > 0
        tokens = prompts + np.bincount(residency.first[computes], minlength=len(batch))
        prefill_s = np.where(tokens > 0, latency.prefill_s(tokens), 0.0)
        seconds = latency.iteration_s(decoded, kv) + prefill_s
    if latency.join_s:
        joins = (residency.last > residency.first) & ((residency.first > 0) | (residency.response >= running))
        seconds += latency.join_s * np.bincount(residency.first[joins], minlength=len(batch))
    if latency.mixes and not batch.all():
        prefill_s = np.where(batch > 0, prefill_s, seconds)
    boundary_s = np.concatenate([[0.0], seconds.cumsum()])
    last = np.zeros(len(remaining), np.int64)
    np.maximum.at(last, residency.response, residency.last)
    return Timeline(residency, boundary_s, prefill_s, tokens, batch, kv, boundary_s[last])


def busy_s(
    remaining: IntArray,
    context: IntArray,
    max_tokens: IntArray,
    cached_tokens: IntArray,
    latency: LatencyModel,
    admission: Admission,
    passes: PassTokens | None = None,
) -> float:
    """Return ``timeline(...).busy_s``. With an affine latency model no iteration is computed by itself. Its time is a sum over
    its responses, so the total is base time times iterations plus the loads, whatever the order of admission."""
    if latency.table is not None:
        return timeline(remaining, context, max_tokens, cached_tokens, latency, admission, passes=passes).busy_s
    budget = latency.token_budget
    r = schedule(remaining, context, max_tokens, cached_tokens, admission, token_budget=budget, passes=passes)
    stay = (r.last - r.ready).astype(float)
    if passes is None:
        fed, growing = float(stay.sum()), (stay * (stay - 1)).sum()
    else:
        fed, growing = float(dot(stay, passes.fed[r.response])), dot(stay * (stay - 1), passes.growth[r.response])
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

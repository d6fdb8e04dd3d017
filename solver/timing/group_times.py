"""Computes exact times of many groups of responses at once, without building a plan from them.

Inputs: a workload, the admission rule and one affine latency model. A group that fits into the batch at once takes ``base *
longest + sum of loads``, as an iteration's time is a sum over its responses. These are a few numpy calls for all groups
together. Groups that refill their slots go through ``solver.timing.batching``, so the numbers are those of
``solver.evaluate``.

**Lower bound of a group's time.** No iteration decodes more responses than there are slots, or than fit into memory if each
reserves as little as the smallest. So a group runs at least (sum of iterations) / that number. Nor do the responses of an
iteration count for more KV tokens than the memory has, or than one response alone takes. A batch of one never overflows. A
response counts, in every iteration that it is in, with its reservation or its context. So a group also runs at least (sum of
these over all iterations of all responses) / those KV tokens. Evicting and recomputing responses only adds.

**Mixed prefill.** No iteration feeds more than the budget, so a group also runs at least (sum of fed tokens) / budget. The i-th
response of a group that joins at once (counted from 0) is never behind more than i responses that decode. So it has its first
token at the latest in iteration ``ceil(F_i / (budget - i)) - 1``, F_i the tokens that it and those before it have missing.
Where no response can end after the group's longest would, if it had no prompt, the group takes exactly the lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray, Workload
from solver.timing.batch import Batch, peak_tokens
from solver.timing.evaluate import cached_tokens
from solver.timing.timeline import busy_s


def _running(values: NDArray[np.generic]) -> FloatArray:
    """Return (S, n+1) running sums along the last axis, starting with 0."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


class KnownTimes:
    """Exact seconds of groups that were timed before, by their responses in order of admission."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, bytes], float] = {}

    def get(self, responses: IntArray, case: int = 0) -> float | None:
        """Return the seconds of the group for a set of lengths; None if it was not timed yet."""
        return self._seconds.get(self._key(responses, case))

    def keep(self, responses: IntArray, case: int, seconds: float) -> float:
        """Keep the seconds of the group and return them."""
        self._seconds[self._key(responses, case)] = seconds
        return seconds

    @staticmethod
    def _key(responses: IntArray, case: int) -> tuple[int, bytes]:
        return case, blake2b(responses.tobytes(), digest_size=16).digest()


@dataclass(frozen=True, eq=False)
class GroupTimes:
    """Times of contiguous groups of responses in one order, for every set of lengths of the workload.

    Attributes:
        cases: the S workloads (scenarios, or one); order: (R,) responses in order of admission.
        length: (S, R) iterations in that order; load: (S, R+1) running sums of loads, without prefill.
        tokens: (S, R+1) running sums of prompt tokens to prefill (unless prompts are shared).
        missing: (S, R+1) running sums of the tokens of contexts, at least 1 of a response that needs an iteration.
        held: (S, R+1) running sums of the KV tokens that admission counts at most; occupied: (S, R+1) running sums of the KV
            tokens that it counts over all iterations. memory: (S,) the most that it counts in one iteration.
        known: exact seconds of groups that were timed before, for the same workload in any order; None keeps none.
    """

    cases: tuple[Workload, ...]
    latency: LatencyModel
    admission: Admission
    order: IntArray
    shares_prompts: bool
    length: IntArray
    load: FloatArray
    tokens: FloatArray
    missing: FloatArray
    held: FloatArray
    occupied: FloatArray
    memory: FloatArray
    known: KnownTimes | None = None

    @classmethod
    def of(
        cls,
        workload: Workload,
        latency: LatencyModel,
        admission: Admission,
        order: IntArray,
        shares_prompts: bool = False,
        known: KnownTimes | None = None,
    ) -> GroupTimes:
        """Return the running sums for ``workload`` in ``order`` under the affine fit of ``latency``."""
        cases = workload.cases()
        remaining = np.stack([case.iterations[order] for case in cases])
        context = workload.context_tokens[order]
        n = remaining.astype(float)
        fed_steps, kv_steps = (np.stack([getattr(case, name)[order] for case in cases]) for name in ("fed_steps", "kv_steps"))
        load = latency.per_response_s * fed_steps + latency.per_kv_token_s * kv_steps + latency.join_s * (n > 0)
        reserved = workload.reserved_tokens[order] + np.zeros_like(n)
        reserves = admission.rule == "reserve"
        held, occupied = (
            (reserved, reserved * n)
            if reserves
            else (context + np.stack([case.remaining_tokens[order] for case in cases]), kv_steps)
        )
        tokens = np.where(remaining > 0, latency.charged_tokens(context), 0)
        missing = np.where(remaining > 0, np.maximum(context, 1), 0)
        memory = np.maximum(admission.kv_capacity_tokens, held.max(axis=1, initial=0.0))
        return cls(
            cases, latency.affine, admission, order, shares_prompts, remaining, _running(load), _running(tokens),
            _running(missing), _running(held), _running(occupied), memory, known,
        )  # fmt: skip

    def busy_s(self, edges: IntArray) -> FloatArray:
        """Return the (S, G) seconds from when an actor can decode until it is done, for groups of consecutive
        responses of ``order``.

        Args:
            edges: (G+1,) rising, within 0 to R; group g is ``order[edges[g]:edges[g + 1]]``, and none is empty.
        """
        seconds, refills = self.least_s(edges)
        for case in np.flatnonzero(refills.any(axis=1)):
            seconds[case] = self.exact_row(edges, int(case), seconds[case], refills[case])
        return seconds

    def least_s(self, edges: IntArray) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Return the (S, G) lower bound of each group's seconds, and whether the group may take more. It may where it refills,
        or its prompts take several iterations."""
        first, last, end = edges[:-1], edges[1:], edges[-1]
        length = self.length[:, :end]
        iterations = np.maximum.reduceat(length, first, axis=1).astype(float)
        refills = (last - first)[None, :] > self.admission.max_batch
        refills = refills | (self.held[:, last] - self.held[:, first] > self.admission.kv_capacity_tokens)
        if refills.any():
            slots: IntArray | int = self.admission.max_batch
            if self.admission.rule == "reserve":
                reserved = self.cases[0].reserved_tokens[self.order[:end]]
                fit = self.admission.kv_capacity_tokens // np.maximum(np.minimum.reduceat(reserved, first), 1)
                slots = np.clip(fit, 1, self.admission.max_batch)
            by_slots = np.add.reduceat(length, first, axis=1) / slots
            by_memory = (self.occupied[:, last] - self.occupied[:, first]) / self.memory[:, None]
            min_iterations = np.maximum(np.maximum(by_slots, by_memory * (1 - 1e-12)), iterations)  # running sums are rounded
            iterations = np.where(refills, min_iterations, iterations)
        tokens = self._prefill_tokens(edges)
        if self.latency.token_budget is not None:
            refills = refills | (self._latest_end(edges, self.latency.token_budget) > iterations)
            fed = np.add.reduceat(length, first, axis=1) + tokens
            iterations = np.maximum(iterations, fed * (1 - 1e-12) / self.latency.token_budget)
        seconds: FloatArray = (
            self.latency.base_s * iterations
            + self.load[:, last]
            - self.load[:, first]
            + np.where(tokens > 0, self.latency.prefill_s(tokens), 0.0)
        )
        return seconds, refills

    def _latest_end(self, edges: IntArray, budget: int) -> FloatArray:
        """Return (S, G) the latest iteration at which a response of each group ends if all fit at once (module docstring).

        A prompt that is shared counts for each of its responses, which makes none earlier."""
        sizes = np.diff(edges)
        begin, end = int(edges[0]), int(edges[-1])
        before = np.arange(begin, end) - np.repeat(edges[:-1], sizes)  # responses of its group before each
        fed = self.missing[:, begin + 1 : end + 1] - np.repeat(self.missing[:, edges[:-1]], sizes, axis=1)
        ready = np.ceil(fed / np.maximum(budget - before, 1)) - 1
        length = self.length[:, begin:end]
        return np.asarray(np.maximum.reduceat(np.where(length > 0, ready + length, 0.0), edges[:-1] - begin, axis=1))

    def exact_row(self, edges: IntArray, case: int, least_s: FloatArray, refills: NDArray[np.bool_]) -> FloatArray:
        """Return the (G,) exact seconds of the groups for one set of lengths, given lower bounds and which groups refill."""
        seconds = least_s.copy()
        for g in np.flatnonzero(refills & ~self._fit(edges, case, refills)).tolist():
            seconds[g] = self.group_s(self.order[int(edges[g]) : int(edges[g + 1])], case)
        return seconds

    def _fit(self, edges: IntArray, case: int, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return (G,) which of the ``chosen`` groups fit at once after all, because short responses complete before long ones
        have grown. Such groups take exactly the lower bound. With mixed prefill short responses may join later, so none is
        sure to fit."""
        fit = np.zeros(len(chosen), dtype=bool)
        checked = np.flatnonzero(chosen & (np.diff(edges) <= self.admission.max_batch))
        if self.admission.rule == "reserve" or self.latency.mixes or not len(checked):
            return fit
        sizes = np.diff(edges)[checked]
        starts = np.cumsum([0, *sizes.tolist()])
        position = np.repeat(edges[checked] - starts[:-1], sizes) + np.arange(starts[-1])
        workload, responses = self.cases[case], self.order[position]
        growth = None if workload.passes is None else workload.tokens_per_pass[responses]
        peaks = peak_tokens(self.length[case, position], workload.context_tokens[responses], starts, growth)
        fit[checked] = peaks <= self.admission.kv_capacity_tokens
        return fit

    def _prefill_tokens(self, edges: IntArray) -> FloatArray:
        """Return the (S, G) prompt and generated tokens that each group is charged for; a shared prompt is computed by its
        first response."""
        if not self.shares_prompts:
            return np.asarray(self.tokens[:, edges[1:]] - self.tokens[:, edges[:-1]])
        group, chosen = np.repeat(np.arange(len(edges) - 1), np.diff(edges)), self.order[edges[0] : edges[-1]]
        owner, generated = self.cases[0].prompt_of[chosen], self.cases[0].generated_tokens[chosen]
        prompt = self.cases[0].prompt_tokens[owner]
        key = group * (int(owner.max()) + 1) + owner
        rows = []
        for length in self.length[:, edges[0] : edges[-1]]:
            needs_iterations = np.flatnonzero(length > 0)
            first_of_prompt = needs_iterations[np.unique(key[needs_iterations], return_index=True)[1]]
            missing = np.where(length > 0, generated, 0)
            missing[first_of_prompt] += prompt[first_of_prompt]
            rows.append(np.bincount(group, weights=self.latency.charged_tokens(missing), minlength=len(edges) - 1))
        return np.stack(rows)

    def group_s(self, responses: IntArray, case: int = 0) -> float:
        """Return the exact seconds of one group in this order of admission, from ``solver.timing.batching``."""
        if self.known is None:
            return self._timed_s(responses, case)
        seconds = self.known.get(responses, case)
        if seconds is None:
            seconds = self.known.keep(responses, case, self._timed_s(responses, case))
        return seconds

    def _timed_s(self, responses: IntArray, case: int) -> float:
        work = self.cases[case]
        cached = cached_tokens(work, responses, shares_prompts=self.shares_prompts)
        return busy_s(Batch.of(work, responses, cached, self.admission), self.latency)

"""Exact times of many groups of responses at once, without making a plan of them.

Knows workloads, admission and one affine latency model; nothing of clusters. A group that fits into the batch at once takes
``base * longest + sum of loads`` (an iteration's time is a sum over its responses), which is a few numpy calls for all groups
together. Groups that refill their slots go through ``solver.batching``, so the numbers are those of ``solver.evaluate``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.admission import Admission
from solver.batching import busy_s
from solver.evaluate import there_tokens
from solver.latency import LatencyModel
from solver.workload import FloatArray, IntArray, Workload


def _running(values: NDArray[np.generic]) -> FloatArray:
    """(S, n+1) running sums along the last axis, starting with 0."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


@dataclass(frozen=True, eq=False)
class Split:
    """Responses in groups: ``order[edges[g]:edges[g + 1]]`` is group g, in admission order."""

    order: IntArray
    edges: IntArray

    def groups(self) -> list[IntArray]:
        """The groups one by one."""
        return [self.order[a:b] for a, b in itertools.pairwise(self.edges.tolist())]


@dataclass(frozen=True, eq=False)
class GroupTimes:
    """Times of contiguous groups of responses in one order, for every set of lengths of the workload.

    Attributes:
        cases: the S workloads (scenarios, or one); order: (R,) responses in order of admission.
        length: (S, R) iterations in that order; load: (S, R+1) running sums of loads, but for prefill.
        tokens: (S, R+1) running sums of prompt tokens to prefill (unless prompts are shared).
        held: (S, R+1) running sums of the KV tokens that admission counts at most.
    """

    cases: tuple[Workload, ...]
    latency: LatencyModel
    admission: Admission
    order: IntArray
    shares_prompts: bool
    length: IntArray
    load: FloatArray
    tokens: FloatArray
    held: FloatArray

    @classmethod
    def of(
        cls, workload: Workload, latency: LatencyModel, admission: Admission, order: IntArray, shares_prompts: bool = False
    ) -> GroupTimes:
        """Sum the loads of ``workload`` in ``order`` under the affine fit of ``latency``."""
        cases = workload.cases()
        remaining = np.stack([case.remaining_tokens[order] for case in cases])
        context = workload.context_tokens[order]
        n = remaining.astype(float)
        load = latency.per_response_s * n + latency.per_kv_token_s * (context * n + n * (n - 1) / 2) + latency.join_s * (n > 0)
        held = workload.reserved_tokens[order] + np.zeros_like(n) if admission.rule == "reserve" else context + n
        tokens = np.where(remaining > 0, context, 0)
        return cls(
            cases, latency.affine, admission, order, shares_prompts, remaining, _running(load), _running(tokens), _running(held)
        )

    def busy_s(self, edges: IntArray, how: str = "exact") -> FloatArray:
        """(S, G) seconds from when an actor can decode until it is done, for groups ``order[edges[g]:edges[g + 1]]``.

        Args:
            edges: (G+1,) rising, from 0 to R; no group is empty.
            how: for groups that refill, ``exact`` or the ``least`` that they can take.
        """
        first, last = edges[:-1], edges[1:]
        longest = np.maximum.reduceat(self.length, first, axis=1).astype(float)
        iterations = longest
        refills = (last - first)[None, :] > self.admission.max_batch
        refills = refills | (self.held[:, last] - self.held[:, first] > self.admission.kv_capacity_tokens)
        if refills.any() and how != "exact":
            steps = np.add.reduceat(self.length, first, axis=1) / self.admission.max_batch
            iterations = np.where(refills, np.maximum(longest, steps), longest)
        tokens = self._prefill_tokens(edges)
        seconds: FloatArray = (
            self.latency.base_s * iterations
            + self.load[:, last]
            - self.load[:, first]
            + np.where(tokens > 0, self.latency.prefill_s(tokens), 0.0)
        )
        if how == "exact":
            for s, g in np.argwhere(np.broadcast_to(refills, seconds.shape)):
                seconds[s, g] = self._one(int(s), self.order[int(first[g]) : int(last[g])])
        return seconds

    def _prefill_tokens(self, edges: IntArray) -> FloatArray:
        """(S, G) prompt and generated tokens that each group computes; a shared prompt is computed by its first response."""
        if not self.shares_prompts:
            return np.asarray(self.tokens[:, edges[1:]] - self.tokens[:, edges[:-1]])
        group = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        owner, generated = self.cases[0].prompt_of[self.order], self.cases[0].generated_tokens[self.order]
        prompt = self.cases[0].prompt_tokens[owner]
        key = group * (int(owner.max()) + 1) + owner
        rows = []
        for length in self.length:
            works = np.flatnonzero(length > 0)
            once = works[np.unique(key[works], return_index=True)[1]]
            own = np.bincount(group[works], weights=generated[works], minlength=len(edges) - 1)
            rows.append(own + np.bincount(group[once], weights=prompt[once], minlength=len(edges) - 1))
        return np.stack(rows)

    def _one(self, case: int, responses: IntArray) -> float:
        """The group through ``solver.batching``."""
        work = self.cases[case]
        return busy_s(
            work.remaining_tokens[responses],
            work.context_tokens[responses],
            work.reserved_tokens[responses],
            there_tokens(work, responses, shares_prompts=self.shares_prompts),
            self.latency,
            self.admission,
        )

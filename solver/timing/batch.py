"""The responses of one actor as arrays: what each needs, and the slots and KV memory that they share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray, Workload
from solver.timing.residency import Residency


@dataclass(frozen=True, eq=False)
class PassTokens:
    """Tokens per pass of the responses of one actor, where drafts are verified: more than one. An iteration is a pass.

    Attributes:
        growth: (n,) tokens that a pass commits of each response, in the mean; its context grows by them.
        fed: (n,) tokens that it feeds: the last committed one and the drafted ones.
    """

    growth: FloatArray
    fed: FloatArray

    @classmethod
    def of(cls, workload: Workload, responses: IntArray) -> PassTokens | None:
        """Return the tokens per pass of the given responses; None where the workload has no drafts."""
        if workload.fed_per_pass is None:
            return None
        return cls(workload.tokens_per_pass[responses], workload.fed_per_pass[responses])

    def fed_per_iteration(self, residency: Residency, latency: LatencyModel) -> FloatArray:
        """Return the (I,) tokens that each iteration feeds of responses that decode. Where the latency model's table ends
        before them and those of prompts, fewer are drafted."""
        fed = residency.sum_per_iteration(self.fed[residency.response])
        if latency.table is None:
            return fed
        batch, _, prompts = residency.per_iteration()
        return np.asarray(np.minimum(fed, np.maximum(latency.table.batch[-1] - prompts, batch)))


@dataclass(frozen=True, eq=False)
class Batch:
    """Responses of one actor in order of admission, all there from iteration 0.

    Attributes:
        decode: (n,) iterations that each response needs.
        context: (n,) KV tokens at its next iteration.
        prefill: (n,) tokens of its context that it computes when it joins: those that are not cached. Its KV cache came along,
            its prompt's was received in part or whole, or an earlier response computes it. After an eviction a response
            computes its whole context.
        reserved: (n,) the most KV tokens that it can reach, which admission rule ``reserve`` sets aside.
        admission: slots, KV memory and the admission rule.
        running: the first so many are in the batch already.
        drafts: tokens per pass where drafts are verified; None where it is one.
    """

    decode: IntArray
    context: IntArray
    prefill: IntArray
    reserved: IntArray
    admission: Admission
    running: int = 0
    drafts: PassTokens | None = None

    @classmethod
    def of(cls, workload: Workload, responses: IntArray, cached: IntArray, admission: Admission) -> Batch:
        """Return the (n,) responses of a workload, of whose contexts (n,) ``cached`` KV tokens are there when they join."""
        context = workload.context_tokens[responses]
        return cls(
            workload.iterations[responses], context, context - cached, workload.reserved_tokens[responses], admission,
            drafts=PassTokens.of(workload, responses),
        )  # fmt: skip

    def __len__(self) -> int:
        """Number of responses n."""
        return len(self.decode)

    @property
    def growth(self) -> FloatArray | None:
        """Return the (n,) tokens by which each context grows per iteration; None where it is one."""
        return None if self.drafts is None else self.drafts.growth

    def fits_at_once(self) -> bool:
        """Return whether slots and memory hold all responses at once, until the last is complete."""
        capacity = self.admission.kv_capacity_tokens
        if len(self) > self.admission.max_batch:
            return False
        if self.admission.rule == "reserve":
            return int(self.reserved.sum()) <= capacity
        grown = self.decode if self.growth is None else self.growth * self.decode
        if (self.context + grown).sum() <= capacity:
            return True
        return bool(peak_tokens(self.decode, self.context, np.array([0, len(self)]), self.growth)[0] <= capacity)


def peak_tokens(
    decode: IntArray, context: IntArray, edges: IntArray, growth: FloatArray | None = None
) -> IntArray | FloatArray:
    """Return the (G,) peak KV tokens of each group ``edges[g]:edges[g + 1]`` if all its responses join at once. Memory grows
    until a response completes, so the peak is in some response's last iteration.

    Args:
        growth: (n,) tokens that each response grows by per iteration, 1 when None.
    """
    sizes = np.diff(edges)
    group = np.repeat(np.arange(len(sizes)), sizes)
    shortest_first = np.lexsort((decode, group))
    left = decode[shortest_first]
    context_before = np.concatenate([[0], np.cumsum(context[shortest_first])])
    context_from_here = np.repeat(context_before[edges[1:]], sizes) - context_before[:-1]
    if growth is None:
        grows: IntArray | FloatArray = np.repeat(edges[1:], sizes) - np.arange(len(left))  # one token of each not complete
    else:
        growth_before = np.concatenate([[0.0], np.cumsum(growth[shortest_first])])
        grows = np.repeat(growth_before[edges[1:]], sizes) - growth_before[:-1]
    held = np.where(left > 0, context_from_here + grows * (left - 1), 0)
    return np.asarray(np.maximum.reduceat(held, edges[:-1]))

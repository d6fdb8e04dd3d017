"""What a pass feeds and commits of each response where drafts are verified: more than one token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray, Workload
from solver.timing.residency import Residency


@dataclass(frozen=True, eq=False)
class PassTokens:
    """Tokens per pass of the responses of one actor; an iteration is a pass.

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

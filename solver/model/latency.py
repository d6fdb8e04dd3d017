"""Latency model of one actor: seconds of a decode iteration, a prefill, a start, a weight sync and a KV transfer.

An actor is of one GPU kind and size. rlhfless.latency reads profiles from files. A decode iteration of a batch of B responses
with K KV tokens in total takes ``step_s(B, K)``. This is read from a measured table if there is one, else from the affine fit
``base_s + per_response_s * B + per_kv_token_s * K``. The planner uses the affine fit (its bounds are proved for it); execution
is charged by the table. Every response that joins in an iteration adds ``join_s`` to it, whatever else the response needs. This
is a constant per response, so loads of responses still add up.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.html_tables import facts_table
from solver.model.workload import FloatArray, number_array

TIMES = (
    "base_s", "per_response_s", "per_kv_token_s", "join_s", "prefill_base_s", "prefill_per_token_s", "start_s", "sync_s",
    "transfer_base_s", "transfer_per_kv_token_s",
)  # fmt: skip
SIZES = ("kv_bytes_per_token", "weight_bytes")
ERRORS = ("fit_mean_error", "fit_max_error")


@dataclass(frozen=True, eq=False)
class StepTable:
    """Measured decode iterations on a grid, read by bilinear interpolation.

    Args:
        batch: (B,) increasing numbers of responses in the batch.
        context_tokens: (X,) increasing mean KV tokens per response.
        step_s: (B, X) seconds of one iteration.

    Outside the grid the nearest cell is continued linearly and never falls under the smallest measured time.
    """

    batch: FloatArray
    context_tokens: FloatArray
    step_s: FloatArray
    _lookup: Any = field(init=False, repr=False)
    _plain: Any = field(init=False, repr=False)  # the same as lists

    def __post_init__(self) -> None:
        batch, context, step = (
            number_array(name, getattr(self, name)).astype(float) for name in ("batch", "context_tokens", "step_s")
        )
        ends = (*batch.shape, *context.shape)
        if len(ends) != 2 or batch.ndim != 1 or min(ends) < 2 or step.shape != ends:
            raise PlanningError(
                f"a step table needs at least 2 x 2 points with step_s of shape (batch, context); got batch {batch.shape}, "
                f"context {context.shape}, step_s {step.shape}"
            )
        if not (np.all(np.isfinite(batch)) and np.all(np.isfinite(context)) and min(batch[0], context[0]) >= 0):
            raise PlanningError("batch and context_tokens of a step table must be finite and 0 or more")
        if np.any(np.diff(batch) <= 0) or np.any(np.diff(context) <= 0):
            raise PlanningError("batch and context_tokens of a step table must increase")
        if not np.all(np.isfinite(step)) or step.min() <= 0:
            raise PlanningError("step_s of a step table must be finite and above 0 seconds")
        for name, value in (("batch", batch), ("context_tokens", context), ("step_s", step)):
            object.__setattr__(self, name, value)
        # looked up for every few iterations of a simulated step: what can be worked out once is
        axes = tuple((axis[:-1], axis[1:-1], np.diff(axis)) for axis in (batch, context))
        object.__setattr__(self, "_lookup", (axes, step.ravel(), float(step.min())))
        object.__setattr__(self, "_plain", ([[x.tolist() for x in axis] for axis in axes], step.tolist()))

    def __call__(self, batch: ArrayLike, kv_tokens: ArrayLike) -> FloatArray:
        """Return the seconds of an iteration of ``batch`` responses with ``kv_tokens`` KV tokens in all; arrays broadcast."""
        return np.asarray(np.maximum(self.continued(batch, kv_tokens), self._lookup[2]))

    def continued(self, batch: ArrayLike, kv_tokens: ArrayLike) -> FloatArray:
        """Return the same without the floor at the smallest measured time: bilinear on every cell, also outside the grid."""
        size = np.asarray(batch, dtype=float)
        context = np.asarray(kv_tokens, dtype=float) / np.maximum(size, 1.0)
        ((sizes, inner_sizes, size_steps), (contexts, inner_contexts, context_steps)), t, _ = self._lookup
        i, j = inner_sizes.searchsorted(size, side="right"), inner_contexts.searchsorted(context, side="right")
        columns = len(self.context_tokens)
        u, v = (size - sizes[i]) / size_steps[i], (context - contexts[j]) / context_steps[j]
        at, w = i * columns + j, 1 - v  # one index into flat memory is faster than two
        low, high = w * t.take(at) + v * t.take(at + 1), w * t.take(at + columns) + v * t.take(at + columns + 1)
        return np.asarray((1 - u) * low + u * high)

    def one(self, batch: int, kv_tokens: int) -> float:
        """Return the seconds of one iteration, bit for bit those of ``__call__``. Faster than an array call for few
        iterations."""
        size, context = float(batch), kv_tokens / max(float(batch), 1.0)
        ((sizes, inner_sizes, size_steps), (contexts, inner_contexts, context_steps)), t = self._plain
        i, j = bisect.bisect_right(inner_sizes, size), bisect.bisect_right(inner_contexts, context)
        u, v = (size - sizes[i]) / size_steps[i], (context - contexts[j]) / context_steps[j]
        w, below, above = 1 - v, t[i], t[i + 1]
        low, high = w * below[j] + v * below[j + 1], w * above[j] + v * above[j + 1]
        value: float = (1 - u) * low + u * high
        least: float = self._lookup[2]
        return max(value, least)


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """Times of one actor (``gpus_per_actor`` GPUs of one kind) with one language model.

    Attributes:
        base_s, per_response_s, per_kv_token_s: the affine fit of a decode iteration (a, b and c of the theory).
        table: the measured table, or None when only the fit is known.
        prefill_base_s, prefill_per_token_s: a prefill call of n tokens takes base + n * per_token.
        join_s: host work per response that joins a batch, first time or again, in addition to prefill: admitting it, and
            removing it when it leaves. Charged when it joins. 0 where the host's work per response was not measured.
        start_s: cold start of an actor; sync_s: loading new weights.
        transfer_base_s, transfer_per_kv_token_s: moving the KV cache of one response to another actor.
        max_batch: most responses in a batch; kv_capacity_tokens: most KV tokens in memory.
        fit_mean_error, fit_max_error: relative errors of the affine fit against the table (0 without a table).
        kv_bytes_per_token, weight_bytes: of the language model, for transfers over a cluster's links; 0 when unknown.
    """

    name: str
    gpus_per_actor: int
    base_s: float
    per_response_s: float
    per_kv_token_s: float = 0.0
    table: StepTable | None = None
    prefill_base_s: float = 0.0
    prefill_per_token_s: float = 0.0
    join_s: float = 0.0
    start_s: float = 0.0
    sync_s: float = 0.0
    transfer_base_s: float = 0.0
    transfer_per_kv_token_s: float = 0.0
    max_batch: int = 256
    kv_capacity_tokens: int = 1 << 40
    kind: str = "gpu"
    fit_mean_error: float = 0.0
    fit_max_error: float = 0.0
    kv_bytes_per_token: float = 0.0
    weight_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gpus_per_actor", "max_batch", "kv_capacity_tokens"):
            value = getattr(self, name)
            if not is_whole(value, 1):
                raise PlanningError(
                    f"latency model {self.name!r}: {name} is {as_given(value)}; a whole number of at least 1 is needed"
                )
            object.__setattr__(self, name, int(value))
        if self.table is not None and not isinstance(self.table, StepTable):
            raise PlanningError(f"latency model {self.name!r}: table is {self.table!r}; a StepTable or None is needed")
        for names, what in ((TIMES, "time of 0 s"), (SIZES, "number of bytes of 0"), (ERRORS, "relative error of 0")):
            for name in names:
                if not is_number(getattr(self, name), 0):
                    value = getattr(self, name)
                    raise PlanningError(f"latency model {self.name!r}: {name} is {as_given(value)}; a {what} or more is needed")
        if self.base_s + self.per_response_s <= 0:
            raise PlanningError(f"latency model {self.name!r}: a decode iteration takes no time; base_s must be above 0")

    @property
    def affine(self) -> LatencyModel:
        """Return the same actor with the affine fit only: the planning model."""
        return replace(self, table=None)

    def step_s(self, batch: ArrayLike, kv_tokens: ArrayLike) -> FloatArray:
        """Return the seconds of one decode iteration; 0 for an empty batch. Arrays broadcast."""
        size = np.asarray(batch, dtype=float)
        if self.table is not None:
            value = self.table(size, kv_tokens)
        else:
            value = self.base_s + self.per_response_s * size + self.per_kv_token_s * np.asarray(kv_tokens, dtype=float)
        return np.where(size > 0, value, 0.0)

    def one_step_s(self, batch: int, kv_tokens: int) -> float:
        """Return ``step_s`` of one iteration, bit for bit, without the cost of an array call."""
        if not batch:
            return 0.0
        if self.table is not None:
            return self.table.one(batch, kv_tokens)
        return self.base_s + self.per_response_s * batch + self.per_kv_token_s * kv_tokens

    def prefill_s(self, tokens: ArrayLike, calls: ArrayLike = 1) -> FloatArray:
        """Return the seconds to prefill ``tokens`` context tokens in ``calls`` calls; each call has a cost even without tokens.

        Arrays broadcast.
        """
        return np.asarray(self.prefill_base_s * np.asarray(calls) + self.prefill_per_token_s * np.asarray(tokens))

    def transfer_s(self, kv_tokens: float) -> float:
        """Return the seconds to move the KV cache of one response of ``kv_tokens`` tokens to another actor."""
        return self.transfer_base_s + self.transfer_per_kv_token_s * kv_tokens

    def recompute_s(self, kv_tokens: float) -> float:
        """Return the seconds to recompute the KV cache of one response of ``kv_tokens`` tokens by prefill."""
        return self.prefill_base_s + self.prefill_per_token_s * kv_tokens

    def __repr__(self) -> str:
        table = "table and fit" if self.table is not None else "affine fit"
        return (
            f"LatencyModel({self.name!r}, {self.gpus_per_actor} x {self.kind}, {table}: {self.base_s * 1e3:.3g} ms "
            f"+ {self.per_response_s * 1e6:.3g} us/response + {self.per_kv_token_s * 1e9:.3g} ns/KV token, "
            f"{self.max_batch} slots, {self.kv_capacity_tokens:,} KV tokens)"
        )

    def _repr_html_(self) -> str:
        grid = "none: the affine fit is charged"
        if self.table is not None:
            grid = f"{len(self.table.batch)} batches x {len(self.table.context_tokens)} contexts"
        loads = f"{self.per_kv_token_s * 1e6:.3g} per 1,000 KV tokens"
        facts = [
            ("actor", f"{self.gpus_per_actor} x {self.kind}"),
            ("iteration (ms)", f"{self.base_s * 1e3:.3g} + {self.per_response_s * 1e3:.3g} per response + {loads}"),
            ("measured table", grid),
            ("fit error", f"mean {self.fit_mean_error:.1%}, most {self.fit_max_error:.1%}"),
            ("prefill (ms)", f"{self.prefill_base_s * 1e3:.3g} + {self.prefill_per_token_s * 1e6:.3g} per 1,000 tokens"),
            ("start, sync (s)", f"{self.start_s:.3g}, {self.sync_s:.3g}"),
            ("slots, KV tokens", f"{self.max_batch:,}, {self.kv_capacity_tokens:,}"),
        ]
        return facts_table(f"Latency model {self.name}", facts)

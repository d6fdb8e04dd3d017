"""Latency model of one actor: seconds of a decode iteration, a prefill, a start, a weight sync and a KV transfer.

An actor is of one GPU kind and size. rlhfless.latency reads profiles from files. In an iteration B responses get a token and
hold K KV tokens, and P more tokens of prompts are fed. It takes ``iteration_s(B, K, P)``. It feeds F = B + P tokens. Its time
is read at (F, K) from a measured table if there is one, else from the affine fit ``base_s + per_response_s * B +
prefill_per_token_s * P + per_kv_token_s * K``. The planner uses the affine fit (its bounds are proved for it); execution is
charged by the table. Every response that joins in an iteration adds ``join_s`` to it, whatever else the response needs. This is
a constant per response, so loads of responses still add up.

**Prefill.** With ``prefill="mixed"`` (vLLM, SGLang) prompts are fed in the iterations that decode, in chunks, so that no
iteration feeds more than ``token_budget`` tokens. ``solver.timing.mixed_prefill`` has the rule. With ``prefill="separate"``
(the torch engine) an iteration begins with a prefill call of its own for the responses that join, and P is 0.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.html_tables import facts_table
from solver.model.number_arrays import number_array
from solver.model.workload import FloatArray

TIMES = (
    "base_s", "per_response_s", "per_kv_token_s", "join_s", "prefill_base_s", "prefill_per_token_s", "start_s", "sync_s",
    "transfer_base_s", "transfer_per_kv_token_s",
)  # fmt: skip
SIZES = ("kv_bytes_per_token", "weight_bytes")
PREFILLS = ("separate", "mixed")
ERRORS = ("fit_mean_error", "fit_max_error")
ROUNDING = 1e-9  # relative, by which a mean context may be above the longest context


@dataclass(frozen=True, eq=False)
class IterationTable:
    """Measured decode iterations on a grid, read by bilinear interpolation.

    Args:
        batch: (B,) increasing numbers of fed tokens: one per response of the batch, and in mixed iterations those of prompts.
        context_tokens: (X,) increasing KV tokens per fed token: the mean context of a batch that decodes.
        iteration_s: (B, X) seconds of one iteration.

    An iteration with more fed tokens, or more KV tokens per fed token, than the grid has is refused (a PlanningError). One with
    fewer fed tokens takes the time of the first row, which is an upper bound. Below the first column, the first cell is
    continued linearly to no KV tokens, as reading a KV cache takes time in proportion to it. The time is never below the
    smallest measured one.
    """

    batch: FloatArray
    context_tokens: FloatArray
    iteration_s: FloatArray
    _lookup: Any = field(init=False, repr=False)
    _plain: Any = field(init=False, repr=False)  # the same as lists
    _last: Any = field(init=False, repr=False)  # the last row and column

    def __post_init__(self) -> None:
        batch, context, seconds = (
            number_array(name, getattr(self, name)).astype(float) for name in ("batch", "context_tokens", "iteration_s")
        )
        ends = (*batch.shape, *context.shape)
        if len(ends) != 2 or batch.ndim != 1 or min(ends) < 2 or seconds.shape != ends:
            raise PlanningError(
                f"an iteration table needs at least 2 x 2 points, and seconds of shape (batch, context); got batch "
                f"{batch.shape}, context {context.shape}, seconds {seconds.shape}"
            )
        if not (np.all(np.isfinite(batch)) and np.all(np.isfinite(context)) and min(batch[0], context[0]) >= 0):
            raise PlanningError("batch and context_tokens of an iteration table must be finite and 0 or more")
        if np.any(np.diff(batch) <= 0) or np.any(np.diff(context) <= 0):
            raise PlanningError("batch and context_tokens of an iteration table must increase")
        if not np.all(np.isfinite(seconds)) or seconds.min() <= 0:
            raise PlanningError("seconds of an iteration table must be finite and above 0")
        for name, value in (("batch", batch), ("context_tokens", context), ("iteration_s", seconds)):
            object.__setattr__(self, name, value)
        # read for every few iterations of a simulated step, so it is prepared once
        axes = tuple((axis[:-1], axis[1:-1], np.diff(axis)) for axis in (batch, context))
        object.__setattr__(self, "_lookup", (axes, seconds.ravel(), float(seconds.min())))
        object.__setattr__(self, "_last", (float(batch[-1]), float(context[-1])))
        object.__setattr__(self, "_plain", ([[x.tolist() for x in axis] for axis in axes], seconds.tolist()))

    def __call__(self, batch: ArrayLike, kv_tokens: ArrayLike) -> FloatArray:
        """Return the seconds of an iteration of ``batch`` fed tokens with ``kv_tokens`` KV tokens in all; arrays broadcast."""
        return np.asarray(np.maximum(self.continued(batch, kv_tokens), self._lookup[2]))

    def continued(self, batch: ArrayLike, kv_tokens: ArrayLike) -> FloatArray:
        """Return the same without the floor at the smallest measured time: bilinear on every cell, the first down to no KV
        tokens."""
        fed = np.asarray(batch, dtype=float)
        context = np.asarray(kv_tokens, dtype=float) / np.maximum(fed, 1.0)
        ((sizes, inner_sizes, size_steps), (contexts, inner_contexts, context_steps)), t, _ = self._lookup
        most, longest, (last_size, last_context) = fed.max(initial=0.0), context.max(initial=0.0), self._last
        if most > last_size or longest > last_context:
            self._refuse_beyond(float(most), float(longest))
        size = np.maximum(fed, sizes[0])
        i, j = inner_sizes.searchsorted(size, side="right"), inner_contexts.searchsorted(context, side="right")
        columns = len(self.context_tokens)
        u, v = (size - sizes.take(i)) / size_steps.take(i), (context - contexts.take(j)) / context_steps.take(j)
        cell, left_weight = i * columns + j, 1 - v  # one index into flat memory is faster than two

        def between(first: int) -> FloatArray:
            seconds = t[first:].take(cell)
            seconds *= left_weight  # in place: arrays of an actor's iterations are large
            right = t[first + 1 :].take(cell)
            right *= v
            seconds += right
            return seconds

        low, high = between(0), between(columns)
        low *= 1 - u
        high *= u
        low += high
        return np.asarray(low)

    def _refuse_beyond(self, fed_tokens: float, context_tokens: float) -> None:
        """Refuse an iteration beyond the last row or column. One that is beyond by rounding only is continued."""
        for unit, value, axis in (
            ("fed tokens", fed_tokens, self.batch), ("KV tokens per fed token", context_tokens, self.context_tokens)
        ):  # fmt: skip
            if value > axis[-1] * (1 + ROUNDING):
                raise PlanningError(
                    f"an iteration has {value:,.0f} {unit}, but the iteration table ends at {axis[-1]:,.0f}; a profile "
                    "measured up to there is needed"
                )

    def one(self, batch: int, kv_tokens: int) -> float:
        """Return the seconds of one iteration, bit for bit those of ``__call__``. Faster than an array call for few
        iterations."""
        size, context = float(batch), kv_tokens / max(float(batch), 1.0)
        ((sizes, inner_sizes, size_steps), (contexts, inner_contexts, context_steps)), t = self._plain
        last_size, last_context = self._last
        if size > last_size or context > last_context:
            self._refuse_beyond(size, context)
        size = max(size, sizes[0])
        i, j = bisect.bisect_right(inner_sizes, size), bisect.bisect_right(inner_contexts, context)
        u, v = (size - sizes[i]) / size_steps[i], (context - contexts[j]) / context_steps[j]
        w, below, above = 1 - v, t[i], t[i + 1]
        low, high = w * below[j] + v * below[j + 1], w * above[j] + v * above[j + 1]
        value: float = (1 - u) * low + u * high
        floor_s: float = self._lookup[2]
        return max(value, floor_s)

    def added_up_s(self, from_s: float, batch: int, kv_tokens: int, count: int) -> list[float]:
        """Return ``from_s`` plus the seconds of 1 to ``count`` iterations whose responses grow by one token each, bit for bit
        the sums of ``one``."""
        fed = max(float(batch), 1.0)
        ((sizes, inner_sizes, size_steps), (contexts, inner_contexts, context_steps)), t = self._plain
        if fed > self._last[0] or (kv_tokens + (count - 1) * batch) / fed > self._last[1]:
            self._refuse_beyond(fed, (kv_tokens + (count - 1) * batch) / fed)
        size, floor_s = max(float(batch), sizes[0]), self._lookup[2]
        i = bisect.bisect_right(inner_sizes, size)
        u, below, above = (size - sizes[i]) / size_steps[i], t[i], t[i + 1]
        rest, until, sums = 1 - u, -math.inf, []
        for kv in range(kv_tokens, kv_tokens + count * batch, batch):
            context = kv / fed
            if context >= until:  # the next cell
                j = bisect.bisect_right(inner_contexts, context)
                until = inner_contexts[j] if j < len(inner_contexts) else math.inf
                from_tokens, step, a, b, c, d = contexts[j], context_steps[j], below[j], below[j + 1], above[j], above[j + 1]
            v = (context - from_tokens) / step
            w = 1 - v
            value = rest * (w * a + v * b) + u * (w * c + v * d)
            from_s += value if value > floor_s else floor_s
            sums.append(from_s)
        return sums


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """Times of one actor (``gpus_per_actor`` GPUs of one kind) with one language model.

    Attributes:
        base_s, per_response_s, per_kv_token_s: the affine fit of a decode iteration (a, b and c of the theory).
        table: the measured table, or None when only the fit is known.
        prefill: ``separate`` or ``mixed``. token_budget: the most tokens that a mixed iteration feeds, at least ``max_batch``;
            None where prefill is separate.
        prefill_base_s, prefill_per_token_s: a prefill call of n tokens takes base + n * per_token. In a mixed iteration each
            further token of a prompt adds per_token; there is no call, so base is 0.
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
    table: IterationTable | None = None
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
    prefill: str = "separate"
    token_budget: int | None = None

    def __post_init__(self) -> None:
        for name in ("gpus_per_actor", "max_batch", "kv_capacity_tokens"):
            value = getattr(self, name)
            if not is_whole(value, 1):
                raise PlanningError(
                    f"latency model {self.name!r}: {name} is {as_given(value)}; a whole number of at least 1 is needed"
                )
            object.__setattr__(self, name, int(value))
        if self.table is not None and not isinstance(self.table, IterationTable):
            raise PlanningError(f"latency model {self.name!r}: table is {self.table!r}; a IterationTable or None is needed")
        for names, what in ((TIMES, "time of 0 s"), (SIZES, "number of bytes of 0"), (ERRORS, "relative error of 0")):
            for name in names:
                if not is_number(getattr(self, name), 0):
                    value = getattr(self, name)
                    raise PlanningError(f"latency model {self.name!r}: {name} is {as_given(value)}; a {what} or more is needed")
        if self.base_s + self.per_response_s <= 0:
            raise PlanningError(f"latency model {self.name!r}: a decode iteration takes no time; base_s must be above 0")
        self._check_prefill()
        self._check_table()

    def _check_table(self) -> None:
        """Refuse a table that ends before the most tokens that an iteration may feed."""
        if self.table is None or self.table.batch[-1] >= (most := self.token_budget or self.max_batch):
            return
        what = "token_budget" if self.mixes else "max_batch"
        raise PlanningError(
            f"latency model {self.name!r}: {what} is {most}, but the iteration table ends at {self.table.batch[-1]:.0f} "
            f"fed tokens; a table up to {most}, or a smaller {what}, is needed"
        )

    def _check_prefill(self) -> None:
        if self.prefill not in PREFILLS:
            raise PlanningError(
                f"latency model {self.name!r}: prefill is {as_given(self.prefill)}; choose one of {', '.join(PREFILLS)}"
            )
        budget, name = self.token_budget, f"latency model {self.name!r}: token_budget is {as_given(self.token_budget)}"
        if not self.mixes:
            if budget is not None:
                raise PlanningError(f"{name}, but prefill is separate; None, or prefill='mixed', is needed")
            return
        if budget is None or not is_whole(budget, self.max_batch):
            raise PlanningError(f"{name}; a whole number of at least the {self.max_batch} slots is needed for mixed prefill")
        object.__setattr__(self, "token_budget", int(budget))
        if self.prefill_base_s:
            raise PlanningError(
                f"latency model {self.name!r}: prefill_base_s is {as_given(self.prefill_base_s)}; mixed prefill makes no "
                "calls, so 0 is needed (with_mixed_prefill sets it)"
            )

    @property
    def mixes(self) -> bool:
        """Whether prompts are fed in iterations that decode (``prefill="mixed"``)."""
        return self.prefill == "mixed"

    def with_mixed_prefill(self, token_budget: int) -> LatencyModel:
        """Return the same actor with mixed prefill: prompt tokens take their time, calls take none."""
        return replace(self, prefill="mixed", token_budget=token_budget, prefill_base_s=0.0)

    def charged_tokens(self, prefill_tokens: ArrayLike) -> NDArray[Any]:
        """Return the tokens that ``prefill_per_token_s`` is charged for where ``prefill_tokens`` of a context are not cached.

        Separate prefill is charged for all of them. A mixed iteration feeds the last one as a token that is decoded.
        """
        missing = np.asarray(prefill_tokens)
        return np.maximum(missing - 1, 0) if self.mixes else missing

    def feeding_iterations(self, tokens: float) -> float:
        """Return an upper bound on the iterations of an actor, beyond those of its tokens, that feed ``tokens`` of prompts
        beside a full batch: 0 with separate prefill."""
        return 0.0 if self.token_budget is None else tokens / (self.token_budget - self.max_batch + 1) + 1

    @property
    def affine(self) -> LatencyModel:
        """Return the same actor with the affine fit only: the planning model."""
        return replace(self, table=None)

    def iteration_s(self, batch: ArrayLike, kv_tokens: ArrayLike, prompt_tokens: ArrayLike = 0) -> FloatArray:
        """Return the seconds of one iteration; 0 for one that feeds nothing. Arrays broadcast.

        Args:
            batch: responses that get a token; kv_tokens: KV tokens that they hold.
            prompt_tokens: further tokens of prompts that a mixed iteration feeds.

        Raises:
            PlanningError: an iteration lies beyond the table.
        """
        size, prompts = np.asarray(batch, dtype=float), np.asarray(prompt_tokens, dtype=float)
        fed = size + prompts
        if self.table is not None:
            value = self.table(fed, kv_tokens)
        else:
            kv_s = self.per_kv_token_s * np.asarray(kv_tokens, dtype=float)
            value = self.base_s + self.per_response_s * size + kv_s + self.prefill_per_token_s * prompts
        return np.asarray(value) if fed.all() else np.where(fed > 0, value, 0.0)

    def one_iteration_s(self, batch: int, kv_tokens: int, prompt_tokens: int = 0) -> float:
        """Return ``iteration_s`` of one iteration, bit for bit, without the cost of an array call."""
        fed = batch + prompt_tokens
        if not fed:
            return 0.0
        if self.table is not None:
            return self.table.one(fed, kv_tokens)
        kv_s = self.per_kv_token_s * kv_tokens
        return self.base_s + self.per_response_s * batch + kv_s + self.prefill_per_token_s * prompt_tokens

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
            f"{self.max_batch} slots, {self.kv_capacity_tokens:,} KV tokens"
            + (f", mixed prefill, {self.token_budget:,} tokens per iteration)" if self.mixes else ")")
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
            ("prefill", self.prefill + (f", at most {self.token_budget:,} fed tokens per iteration" if self.mixes else "")),
            ("prefill (ms)", f"{self.prefill_base_s * 1e3:.3g} + {self.prefill_per_token_s * 1e6:.3g} per 1,000 tokens"),
            ("start, sync (s)", f"{self.start_s:.3g}, {self.sync_s:.3g}"),
            ("slots, KV tokens", f"{self.max_batch:,}, {self.kv_capacity_tokens:,}"),
        ]
        return facts_table(f"Latency model {self.name}", facts)

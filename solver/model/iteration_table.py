"""Defines ``IterationTable``: measured seconds of decode iterations on a grid, and how they are read between its points."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError
from solver.model.number_arrays import number_array
from solver.model.workload import FloatArray

MANY = 128  # iterations that are read faster as an array than one by one
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
            seconds: FloatArray = t[first:].take(cell)
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
        if count >= MANY:
            seconds = self(batch, kv_tokens + batch * np.arange(count))
            seconds[0] += from_s
            added_up_s: list[float] = np.add.accumulate(seconds).tolist()
            return added_up_s
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

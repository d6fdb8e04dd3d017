"""Latency model of one actor: seconds of a decode iteration, a prefill, a start, a weight sync and a KV transfer.

An actor is of one GPU kind and size. rlhfless.latency reads profiles from files. In an iteration B responses get a token and
hold K KV tokens, and P more tokens of prompts are fed. It takes ``iteration_s(B, K, P)``. It feeds F = B + P tokens. Its time
is read at (F, K) from a measured table if there is one, else from the affine fit ``base_s + per_response_s * B +
prefill_per_token_s * P + per_kv_token_s * K``. The planner uses the affine fit (its bounds are proved for it); execution is
charged by the table. Every response that joins in an iteration adds ``join_s`` to it, whatever else the response needs. This is
a constant per response, so loads of responses still add up.

**Prefill.** With ``prefill="mixed"`` (vLLM, SGLang) prompts are fed in the iterations that decode, in chunks, so that no
iteration feeds more than ``token_budget`` tokens. ``solver.timing.batching`` has the rule. With ``prefill="separate"``
(the torch engine) an iteration begins with a prefill call of its own for the responses that join, and P is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.html_tables import facts_table
from solver.model.iteration_table import IterationTable
from solver.model.workload import FloatArray

TIMES = (
    "base_s", "per_response_s", "per_kv_token_s", "join_s", "prefill_base_s", "prefill_per_token_s", "start_s", "sync_s",
    "transfer_base_s", "transfer_per_kv_token_s",
)  # fmt: skip
SIZES = ("kv_bytes_per_token", "weight_bytes")
PREFILLS = ("separate", "mixed")
ERRORS = ("fit_mean_error", "fit_max_error")


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """Latency model: the seconds that one actor (``gpus_per_actor`` GPUs of one kind) takes with one language model.

    Attributes:
        base_s, per_response_s, per_kv_token_s: linear fit of the seconds of a decode iteration: base_s + per_response_s * batch
            + per_kv_token_s * KV tokens (a, b and c in ``docs/planning.md``).
        table: the measured table, or None if only the fit is known.
        prefill: ``separate`` (calls of their own) or ``mixed`` (chunked prefill within decode iterations).
        token_budget: largest number of tokens in a mixed iteration, at least ``max_batch``; None with separate prefill.
        prefill_base_s, prefill_per_token_s: a prefill call of n tokens takes base + n * per_token. In a mixed iteration each
            further token of a prompt adds per_token; there is no call, so base is 0.
        join_s: host seconds per response that joins a batch, in addition to prefill, for admitting and later removing it;
            charged when it joins; 0 if not measured.
        start_s: seconds of an actor's cold start.
        sync_s: seconds of loading new weights.
        transfer_base_s, transfer_per_kv_token_s: seconds of moving the KV cache of one response to another actor, per move and
            per token.
        max_batch: largest number of responses in a batch. kv_capacity_tokens: largest number of KV tokens in memory.
        fit_mean_error, fit_max_error: relative errors of the linear fit against the table (0 without a table).
        kv_bytes_per_token, weight_bytes: sizes of the language model, for transfers over a cluster's links; 0 if unknown.
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
        """Whether prompts are prefilled within decode iterations (``prefill="mixed"``)."""
        return self.prefill == "mixed"

    def with_mixed_prefill(self, token_budget: int) -> LatencyModel:
        """Return the same model with mixed prefill: prompt tokens take time, but there are no separate calls."""
        return replace(self, prefill="mixed", token_budget=token_budget, prefill_base_s=0.0)

    def charged_tokens(self, prefill_tokens: ArrayLike) -> NDArray[Any]:
        """Return how many of ``prefill_tokens`` uncached context tokens are charged with ``prefill_per_token_s``.

        With separate prefill all are. With mixed prefill the last one is charged as a decoded token.
        """
        missing = np.asarray(prefill_tokens)
        return np.maximum(missing - 1, 0) if self.mixes else missing

    def feeding_iterations(self, tokens: float) -> float:
        """Return an upper bound on the extra iterations of an actor for ``tokens`` prompt tokens with a full batch; 0 with
        separate prefill.
        """
        return 0.0 if self.token_budget is None else tokens / (self.token_budget - self.max_batch + 1) + 1

    @property
    def affine(self) -> LatencyModel:
        """The same model with only the linear fit; plans are made with it."""
        return replace(self, table=None)

    def iteration_s(self, batch: ArrayLike, kv_tokens: ArrayLike, prompt_tokens: ArrayLike = 0) -> FloatArray:
        """Return the seconds of one iteration; 0 for an empty one. Arrays broadcast.

        Args:
            batch: number of responses that get a token.
            kv_tokens: their KV tokens.
            prompt_tokens: prompt tokens that a mixed iteration also processes.

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
        """Return the seconds to prefill ``tokens`` context tokens in ``calls`` calls; arrays broadcast. A call without tokens
        also takes time.
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

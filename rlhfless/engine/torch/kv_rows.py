"""Assigns rows of an actor's KV cache to responses, and fills the row of each admitted response.

Rows in use are always the first ones. An admitted response's row is filled with the KV state that came with it. Otherwise it
gets a prompt that another response of the actor has computed. The rest is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rlhfless.engine.common.engine_drafts import PassDrafts
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.torch.decode_run import DecodeRun
from rlhfless.engine.torch.drafted_run import DraftedRun
from rlhfless.engine.torch.gumbel_noise import GumbelNoise
from rlhfless.engine.torch.kv_cache import free_storage
from rlhfless.engine.torch.lookahead import BatchChange
from rlhfless.engine.torch.prefill import Segment, prefill
from rlhfless.engine.torch.row_model import RowModel


class KVRows:
    """Rows of one actor with ``slots`` slots; works in inference mode only.

    Args:
        sampling: how tokens are sampled.
        drafts: the engine's drafts; None where it has none.

    Attributes:
        of: the response of each row in use; never changed in place.
        noise: by which their next tokens are sampled; None where nothing is sampled at random.
    """

    def __init__(self, model: RowModel, slots: int, sampling: Sampling, drafts: PassDrafts | None = None) -> None:
        self.model, self.slots, self.sampling, self._drafts = model, slots, sampling, drafts
        self.of: list[SequenceState] = []
        self.cache = model.new_cache(keeps_ids=sampling.penalises)
        max_rows = model.padded(slots, slots)
        self.noise: GumbelNoise | None = None
        if sampling.temperature > 0:
            self.noise = GumbelNoise(max_rows, model.vocabulary, model.device)
        self._shared: dict[int, Tensor] = {}  # KV state of prompts that responses in the queue will share
        self._computing: dict[int, Tensor] = {}  # the same of the last iteration that was run

    def cached_tokens(self, admitted: Iterable[SequenceState]) -> dict[SequenceState, int]:
        """Return the cached tokens of each admitted response's context: all, a received prefix, or a shared prompt."""
        prompts, cached_tokens = set(self._shared), {}
        for s in admitted:
            prompt = s.request.prompt
            if s.kv is not None:
                cached_tokens[s] = s.context_tokens
            elif s.shares and prompt in prompts:
                cached_tokens[s] = s.request.prompt_tokens
            else:
                cached_tokens[s] = s.cached_tokens
                if s.shares and prompt is not None:
                    prompts.add(prompt)
        return cached_tokens

    def reserve(self, rows: int) -> None:
        """Allocate and touch memory for ``rows`` responses now, not when the first of them decode."""
        self.cache.reserve_rows(self.model.padded(min(rows, self.slots), self.slots), self.model.padded(self.slots, self.slots))

    def make(self, change: BatchChange, drafted: bool) -> DecodeRun | DraftedRun:
        """Return the run of a new batch, with the KV state that came with its admitted responses.

        ``drafted``: whether its first pass has drafts.

        Writes no cell that belongs to a committed token: the batch may still be dropped.
        """
        if change.evicted:
            self.of = list(self.of)
        for s in change.evicted:  # out of the batch, but whole until the new one is committed
            row, last = self.of.index(s), len(self.of) - 1 - change.evicted.index(s)
            self.cache.swap(row, last)
            self.of[row], self.of[last] = self.of[last], s
            if self.noise is not None:
                self.noise.swap(row, last)
        change.rows = [*self.of[: len(self.of) - len(change.evicted)], *change.admitted]
        admitted = change.admitted
        if self.model.padded(len(change.rows), self.slots) > self.cache.rows:
            self.reserve(len(change.rows))
        if self.noise is not None and admitted:
            begin = len(change.rows) - len(admitted)
            self.noise.join(begin, [s.request.seed for s in admitted])
        for row, s in self._new(change):
            self.cache.put_ids(row, s.tokens(0, s.context_tokens))
            if s.kv is not None:
                self.cache.put(row, s.kv)
            elif received := self._received(s, change):
                s.request.prefix_kv.put(self.cache, row, received)
        return self.run_of(change.rows, drafted)

    def run_of(self, rows: list[SequenceState], drafted: bool) -> DecodeRun | DraftedRun:
        """Return a run of responses, whose tokens are on the host, in their rows, with or without drafts."""
        if drafted:
            assert self._drafts is not None
            return DraftedRun(rows, self.model, self.slots, self.noise, self._drafts)
        padded = self.model.padded(len(rows), self.slots)
        return DecodeRun(rows, padded, self.cache.spare, self.noise, self.model.device)

    def compute(self, change: BatchChange, queue: Iterable[SequenceState]) -> None:
        """Compute the uncached tokens of the admitted responses; prompts that others in ``queue`` share are computed once."""
        wanted = Counter(s.request.prompt for s in queue if s.shares) if any(s.shares for s in change.admitted) else {}
        shared: dict[int, Any] = {}
        change.shared = self._computing = shared
        sharing = [(row, s) for row, s in self._new(change) if self._shares(s, change)]
        alone = [(row, s) for row, s in self._new(change) if s.kv is None and not self._shares(s, change)]
        prefill(self.model, self.cache, [_segment(self.model, row, self._received(s, change), s) for row, s in alone])
        for row, s in alone:
            prompt = s.request.prompt
            if s.shares and prompt is not None and wanted[prompt] > 1:
                shared[prompt] = self.cache.take(row, s.request.prompt_tokens - 1)
        uncached: list[Segment] = []
        for row, s in sharing:
            prompt = s.request.prompt
            assert prompt is not None
            kv = shared[prompt] if prompt in shared else self._shared[prompt]
            self.cache.put(row, kv)
            uncached.append(_segment(self.model, row, kv.shape[3], s))
        prefill(self.model, self.cache, uncached)

    def commit(self, change: BatchChange, queue: Iterable[SequenceState]) -> None:
        """Commit the new batch: its rows become the current rows.

        If responses joined, the KV states of shared prompts that no response in ``queue`` needs are dropped. ``queue`` holds
        the responses that still wait for admission.
        """
        self.of = change.rows
        if change.admitted:
            self._shared |= change.shared
            self.forget_prompts(queue)

    def free(self, s: SequenceState) -> None:
        """Free a row: the last row in use moves into its place."""
        self.of = list(self.of)
        row, last = self.of.index(s), self.of.pop()
        if last is not s:
            self.cache.move(len(self.of), row, last.context_tokens)
            self.of[row] = last
            if self.noise is not None:
                self.noise.move(len(self.of), row)

    def kv_of(self, s: SequenceState) -> Any:
        """Return a copy of the response's KV state, or the state that came with it."""
        return self.cache.take(self.of.index(s), s.context_tokens - 1) if s in self.of else s.kv

    def forget_prompts(self, queue: Iterable[SequenceState] = ()) -> None:
        """Drop the KV state of prompts that no response in ``queue`` waits for; there must be no computed, uncommitted
        iteration.
        """
        self._computing = {}
        if self._shared:
            wanted = {s.request.prompt for s in queue if s.shares}
            self._shared = {prompt: kv for prompt, kv in self._shared.items() if prompt in wanted}

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the cache, and of prompts that are kept to be shared."""
        kept = {id(kv): kv for kvs in (self._shared, self._computing) for kv in kvs.values()}
        return sum(t.untyped_storage().nbytes() for t in (*self.cache.storage, *kept.values()))

    def close(self) -> None:
        """Free all memory, even if other objects refer to it. Idempotent."""
        self.cache.free()
        free_storage(*self._shared.values(), *self._computing.values())
        self._shared.clear()
        self._computing.clear()
        self.of = []
        if self.noise is not None:
            self.noise.free()

    def _new(self, change: BatchChange) -> list[tuple[int, SequenceState]]:
        return list(enumerate(change.admitted, len(change.rows) - len(change.admitted)))

    def _shares(self, s: SequenceState, change: BatchChange) -> bool:
        """Return whether its prompt is (or will be by then) computed for another response."""
        return s.kv is None and change.cached_tokens[s] > s.cached_tokens

    def _received(self, s: SequenceState, change: BatchChange) -> int:
        """Return how many cells are filled by the KV state that came with the response."""
        if s.kv is not None or s.request.prefix_kv is None or self._shares(s, change):
            return 0
        return min(change.cached_tokens[s], s.context_tokens - 1, int(s.request.prefix_kv.tokens))


def _segment(model: RowModel, row: int, cached: int, s: SequenceState) -> Segment:
    """Return the rest of a response's context, but for its last token."""
    return Segment(row, cached, torch.from_numpy(s.tokens(cached, s.context_tokens - 1)).to(model.device))

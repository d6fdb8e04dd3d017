"""Passes of one unchanged batch with drafts: every pass verifies what was drafted, and its tokens are on the host at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import isnan
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlhfless.engine.common.engine_drafts import Drafts, PassDrafts
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.torch.decode_step import DecodeStep, SampledTokens
from rlhfless.engine.torch.fed_places import FedPlaces, rounded
from rlhfless.engine.torch.gumbel_noise import GumbelNoise
from rlhfless.engine.torch.kv_cache import KVCache
from rlhfless.engine.torch.prefill import CPU_PASS_TOKENS
from rlhfless.engine.torch.row_model import RowModel
from rlhfless.engine.torch.verify import Inputs


class Verified(NamedTuple):
    """What a pass sampled, row after row: the tokens after the last one of a response and after each drafted one, in order.

    ``ends`` says where each row ends.
    """

    ids: list[int]
    logprobs: list[float]
    ends: list[int]


class DraftedRun:
    """A batch in order of its cache rows, decoded with drafts; works in inference mode only.

    Args:
        slots: of the actor. noise: None where nothing is sampled at random.
        source: of the drafts, which also says how many of the sampled tokens are kept.

    Attributes:
        drafts: what its next pass verifies; set before the pass is run.
        committed: what the last committed pass drafted for each response, and the tokens that it committed.
        kv_tokens: of the batch at its next pass. longest: KV tokens of its longest context at its first pass.
        padding: rows that are fed beside the batch where nothing is drafted.
        steps_until_change: passes that are known not to change the batch before their end. tokens_on_device: always 0.
        may_stop_early: whether any response may stop before its length limit, at an end token.
    """

    steps_until_change, tokens_on_device, may_stop_early = 1, 0, True

    def __init__(
        self, rows: list[SequenceState], model: RowModel, slots: int, noise: GumbelNoise | None, source: PassDrafts
    ) -> None:
        self.rows, self._model, self._slots, self._noise, self._source = rows, model, slots, noise, source
        self.padding = model.padded(len(rows), slots) - len(rows)
        contexts = [s.context_tokens for s in rows]
        self.kv_tokens, self.longest = sum(contexts), max(contexts)
        self._counts = np.array([s.count for s in rows])
        self._first = np.array([s.prompt_tokens - 1 for s in rows])
        self._forced = np.array([s.forced for s in rows]) if any(s.forced for s in rows) else None
        self.drafts: Drafts = {}
        self.committed: Mapping[SequenceState, tuple[int, list[int]]] = {}

    def prepare(self, step: DecodeStep, kv: KVCache) -> float:
        """Prepare the shape of its next pass; returns the seconds that it took."""
        if self._model.bit_stable:  # on the CPU no shape is prepared
            return step.prepare(kv, len(self.rows) + self.padding, self.longest)
        return step.prepare(kv, len(self.rows) + self.padding, self._width, self._columns)

    def run(self, step: DecodeStep, kv: KVCache, count: int, stop_ids: AbstractSet[int]) -> list[Verified]:
        """Compute one pass, whatever ``count``; only cells of the cache that belong to no token yet change.

        Raises:
            FloatingPointError: logits were not numbers; names the response.
        """
        fed: list[int] = []
        lengths = []
        for s in self.rows:
            draft = self.drafts[s]
            fed.append(s.last_token)
            fed += draft
            lengths.append(len(draft))
        places = FedPlaces.of(tuple(lengths), max(CPU_PASS_TOKENS, self._slots))
        rows, columns, device = places.rows, places.columns, self._model.device
        inputs = Inputs(
            torch.from_numpy(np.array(fed)[places.order]).to(device),
            torch.from_numpy((self._first + self._counts)[rows] + columns).to(device),
            None if self._noise is None else self._noise.draw(self._counts, rows, columns),
            None if self._forced is None else torch.from_numpy(self._forced[rows]).to(device),
        )
        if self._model.bit_stable:
            return [self._on_host(step.verify(kv, inputs, places), places)]
        return [self._on_host(self._in_rectangle(step, kv, inputs, places), places)]

    def commit(self, drawn: Sequence[Verified], stop_ids: AbstractSet[int]) -> list[SequenceState]:
        """Commit the pass that was run; returns the responses that end with it, in order of rows."""
        ((ids, logprobs, row_ends),) = drawn
        committed, ends, begin = {}, [], 0
        kept_tokens = []
        for s, end in zip(self.rows, row_ends, strict=True):
            draft, sampled = self.drafts[s], ids[begin:end]
            kept = self._source.kept(s, draft, sampled) if draft else 1
            sampled = sampled[:kept]
            s.append(sampled, logprobs[begin : begin + kept])
            s.verified(len(draft), kept)
            committed[s] = len(draft), sampled
            kept_tokens.append(kept)
            if s.count >= s.stop_tokens or (sampled[-1] in stop_ids and not s.forced):
                ends.append(s)
            begin = end
        self._counts += kept_tokens
        self.kv_tokens += sum(kept_tokens)
        self.committed = committed
        return ends

    def copy_tokens_to_host(self) -> None:
        """Do nothing: tokens are on the host."""

    @property
    def _columns(self) -> int:
        """Return the columns of the rectangle of the next pass."""
        return rounded(max([len(self.drafts[s]) for s in self.rows]) + 1)

    @property
    def _width(self) -> int:
        """Return the cells that the next pass attends over."""
        return max([s.context_tokens + len(self.drafts[s]) for s in self.rows])

    def _in_rectangle(self, step: DecodeStep, kv: KVCache, inputs: Inputs, places: FedPlaces) -> SampledTokens:
        """Sample at these places in a rectangle of rows and columns, whose other places are padding."""
        columns, device = self._columns, self._model.device
        count = (len(self.rows) + self.padding) * columns
        at = torch.from_numpy(places.rows * columns + places.columns).to(device)

        def spread(values: Tensor | None, rest: int) -> Tensor | None:
            if values is None:
                return None
            return values.new_full((count, *values.shape[1:]), rest).index_copy_(0, at, values)

        tokens, positions = spread(inputs.tokens, 0), spread(inputs.positions, kv.spare)
        assert tokens is not None and positions is not None  # noqa: PT018
        rectangle = Inputs(tokens, positions, spread(inputs.noise, 1), spread(inputs.forced, 0), inputs.tokens)
        ids, logprobs = step(kv, rectangle, self._width, self.padding, columns)
        return SampledTokens(ids[at], logprobs[at])

    def _on_host(self, sampled: SampledTokens, places: FedPlaces) -> Verified:
        ids, logprobs = sampled.ids.tolist(), sampled.logprobs.tolist()
        if isnan(sum(logprobs)):
            row = next(row for row, logprob in zip(places.rows, logprobs, strict=True) if isnan(logprob))
            raise FloatingPointError(
                f"the model's logits for response {self.rows[row].request.response} are not finite; load finite weights, or "
                "decode in float32"
            )
        order = places.by_row
        return Verified([ids[k] for k in order], [logprobs[k] for k in order], places.ends)

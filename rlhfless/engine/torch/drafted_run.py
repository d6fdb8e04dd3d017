"""Passes of one unchanged batch with drafts: every pass verifies what was drafted, and its tokens are on the host at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlhfless.engine.common.engine_drafts import Drafts, PassDrafts
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.torch.decode_step import DecodeStep, SampledTokens
from rlhfless.engine.torch.gumbel_noise import TokenNoise, streams
from rlhfless.engine.torch.kv_cache import KVCache
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.verify import Inputs, Places, places_of, rounded


class Verified(NamedTuple):
    """What a pass sampled for one response: the tokens after its last one and after each drafted one, in order."""

    ids: list[int]
    logprobs: list[float]
    signals: dict[str, np.ndarray]


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
        certain: passes that are known not to change the batch before their end. tokens_on_device: always 0.
        ends_by_itself: whether any response may end sooner than by its length.
    """

    certain, tokens_on_device, ends_by_itself = 1, 0, True

    def __init__(
        self, rows: list[SequenceState], model: DecoderModel, slots: int, noise: TokenNoise | None, source: PassDrafts
    ) -> None:
        self.rows, self._model, self._slots, self._noise, self._source = rows, model, slots, noise, source
        self.padding = model.padded(len(rows), slots) - len(rows)
        contexts = [s.context_tokens for s in rows]
        self.kv_tokens, self.longest = sum(contexts), max(contexts)
        self._streams = streams([s.request.seed for s in rows])
        self._forced = np.array([s.forced for s in rows])
        self.drafts: Drafts = {}
        self.committed: Mapping[SequenceState, tuple[int, list[int]]] = {}

    def prepare(self, step: DecodeStep, kv: KVCache) -> float:
        """Prepare the shape of its next pass; returns the seconds that it took."""
        if self._model.bit_stable:
            return step.prepare(kv, len(self.rows) + self.padding, self._width)
        return step.prepare(kv, len(self.rows) + self.padding, self._width, self._columns)

    def run(self, step: DecodeStep, kv: KVCache, count: int, eos_id: int) -> list[list[Verified]]:
        """Compute one pass, whatever ``count``; only cells of the cache that belong to no token yet change.

        Raises:
            FloatingPointError: logits were not numbers; names the response.
        """
        drafts = [self.drafts[s] for s in self.rows]
        lengths = [len(draft) for draft in drafts]
        places = places_of(lengths)
        fed = np.zeros((len(drafts), max(lengths) + 1), np.int64)
        for row, (s, draft) in enumerate(zip(self.rows, drafts, strict=True)):
            fed[row, : len(draft) + 1] = [s.last_token, *draft]
        counts = np.array([s.count for s in self.rows])
        first = np.array([s.prompt_tokens for s in self.rows]) + counts - 1
        rows, columns = places.rows, places.columns
        device = self._model.device
        inputs = Inputs(
            torch.from_numpy(fed[rows, columns]).to(device),
            torch.from_numpy(first[rows] + columns).to(device),
            None if self._noise is None else self._noise(self._streams[rows], counts[rows] + columns),
            torch.from_numpy(self._forced[rows]).to(device) if self._forced.any() else None,
        )
        if self._model.bit_stable:
            sampled = step.verify(kv, inputs, places, self._slots)
        else:
            sampled = self._in_rectangle(step, kv, inputs, places)
        return [self._by_row(sampled, places, lengths)]

    def commit(self, drawn: Sequence[Sequence[Verified]], eos_id: int) -> list[SequenceState]:
        """Commit the pass that was run; returns the responses that end with it, in order of rows."""
        (verified,) = drawn
        committed, ends = {}, []
        for s, (ids, logprobs, signals) in zip(self.rows, verified, strict=True):
            draft = self.drafts[s]
            kept = self._source.kept(s, draft, ids)
            s.append(ids[:kept], logprobs[:kept], {name: values[:kept] for name, values in signals.items()})
            s.verified(len(draft), kept)
            committed[s] = len(draft), ids[:kept]
            if s.finish_reason(eos_id) is not None:
                ends.append(s)
        self.committed = committed
        self.kv_tokens += sum([len(ids) for _, ids in committed.values()])
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

    def _in_rectangle(self, step: DecodeStep, kv: KVCache, inputs: Inputs, places: Places) -> SampledTokens:
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
        ids, logprobs, signals = step(kv, rectangle, self._width, self.padding, columns)
        return SampledTokens(ids[at], logprobs[at], {name: values[at] for name, values in signals.items()})

    def _by_row(self, sampled: SampledTokens, places: Places, lengths: Sequence[int]) -> list[Verified]:
        """Return what was sampled on the host, by row."""
        order = np.argsort(places.rows, kind="stable")
        ends = np.cumsum([length + 1 for length in lengths]).tolist()
        logprobs = sampled.logprobs.cpu().numpy()[order]
        if np.isnan(logprobs.sum()):
            row = places.rows[order][np.isnan(logprobs).argmax()]
            raise FloatingPointError(
                f"the model's logits for response {self.rows[row].request.response} are not finite; load finite weights, or "
                "decode in float32"
            )
        ids = sampled.ids.cpu().numpy()[order].tolist()
        signals = {name: values.float().cpu().numpy()[order] for name, values in sampled.signals.items()}
        return [
            Verified(ids[a:b], logprobs[a:b].tolist(), {name: values[a:b] for name, values in signals.items()})
            for a, b in zip([0, *ends], ends, strict=False)
        ]

"""Iterations of one unchanged batch: the next input stays on the device, and sampled tokens are fetched only when needed.

While no response joins or leaves, an iteration costs the host no work per response. With forced lengths it needs no
synchronisation with the device but one in ``COPIED_EVERY`` iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cache

import numpy as np
import torch
from torch import Tensor

from rlhfless.engine.common.sequence import HostTokens, SequenceState
from rlhfless.engine.torch.decode_step import DecodeStep, SampledTokens
from rlhfless.engine.torch.gumbel_noise import GumbelNoise
from rlhfless.engine.torch.kv_cache import KVCache
from rlhfless.engine.torch.verify import Inputs

COPIED_EVERY = 64  # so that logits that are no numbers are noticed, and little waits on the device


@cache
def _iterations(device: torch.device) -> Tensor:
    """Return (COPIED_EVERY, 1) 0, 1, 2, ..."""
    return torch.arange(COPIED_EVERY, device=device)[:, None]


class DecodeRun:
    """A batch in order of its cache rows; works in inference mode only.

    Args:
        padded: rows to feed; those beyond the batch are at the cell ``spare``.
        noise: of the same rows; None where nothing is sampled at random.

    Attributes:
        steps: committed iterations.
        kv_tokens: of the batch at its next iteration.
        longest: KV tokens of its longest context at its first iteration.
        may_stop_early: whether any response may stop before its length limit, at an end token.
    """

    def __init__(
        self, rows: list[SequenceState], padded: int, spare: int, noise: GumbelNoise | None, device: torch.device
    ) -> None:
        self.rows, self.padding, self.steps = rows, padded - len(rows), 0
        fed = np.zeros((4, padded), np.int64)  # tokens, positions, what is added to positions, whether lengths are forced
        fed[1, len(rows) :] = spare
        contexts = [s.prompt_tokens + s.count for s in rows]
        fed[:, : len(rows)] = (
            [s.last_token for s in rows], [context - 1 for context in contexts], [1] * len(rows), [s.forced for s in rows],
        )  # fmt: skip
        self.kv_tokens, self.longest = sum(contexts), max(contexts)
        left = [s.stop_tokens - s.count for s in rows]  # iterations until its length ends each
        self._next_end, self._left = min(left), left
        self._tokens, self._positions, self._moves, forced = torch.from_numpy(fed).to(device).unbind()
        self._forced = forced.bool() if any(s.forced for s in rows) else None
        self._free = [row for row, s in enumerate(rows) if not s.forced]
        self.may_stop_early = bool(self._free)
        self._noise, self._first = noise, np.array([s.count for s in rows], np.int64)
        self._pending: list[SampledTokens] = []

    @property
    def tokens_on_device(self) -> int:
        """Return the number of committed tokens of each response that are still on the device."""
        return len(self._pending)

    @property
    def steps_until_change(self) -> int:
        """Return the iterations until, at the earliest, a length ends a response or tokens are copied to the host."""
        return min(self._next_end - self.steps, COPIED_EVERY - len(self._pending))

    @property
    def width(self) -> int:
        """Return the number of cells that its next iteration attends over."""
        return self.longest + self.steps

    def prepare(self, step: DecodeStep, kv: KVCache) -> float:
        """Prepare the shape of its next iteration; returns the seconds that it took."""
        return step.prepare(kv, len(self.rows) + self.padding, self.width)

    def run(self, step: DecodeStep, kv: KVCache, count: int, stop_ids: AbstractSet[int]) -> list[SampledTokens]:
        """Compute at most ``count`` iterations, at least one, until a response ends.

        ``count`` must not exceed ``steps_until_change``; nothing here checks it. Only cells of the cache that belong to no
        token yet change, so the iterations may still be dropped.
        """
        rows, width, padding = len(self.rows) + self.padding, self.width, self.padding
        noises: Sequence[Tensor | None] = [None] * count
        if self._noise is not None:
            noises = self._noise.even(self._first + self.steps, count, rows)
            count = len(noises)
        places: Sequence[Tensor] = (self._positions,)
        if count > 1:
            places = torch.addcmul(self._positions, self._moves, _iterations(self._moves.device)[:count]).unbind()
        tokens, forced, free = self._tokens, self._forced, self._free
        drawn: list[SampledTokens] = []
        for k, (noise, positions) in enumerate(zip(noises, places, strict=True)):
            sampled = step(kv, Inputs(tokens, positions, noise, forced), width + k, padding)
            drawn.append(sampled)
            tokens = sampled.ids
            if free and count > 1 and self._ending(sampled, stop_ids):
                break
        return drawn

    def commit(self, drawn: Sequence[SampledTokens], stop_ids: AbstractSet[int]) -> list[SequenceState]:
        """Commit the next iterations with these sampled tokens; returns the responses that end with the last of them, in order
        of rows.
        """
        count = len(drawn)
        self._pending += drawn
        self._tokens = drawn[-1].ids
        self._positions = self._positions.add(self._moves, alpha=count)
        self.steps += count
        self.kv_tokens += len(self.rows) * count
        ends = self._ending(drawn[-1], stop_ids) if self._free else []
        if self.steps == self._next_end:
            ends = sorted({*ends, *(row for row, left in enumerate(self._left) if left == self.steps)})
        if len(self._pending) >= COPIED_EVERY:
            self.copy_tokens_to_host()
        return [self.rows[row] for row in ends]

    def _ending(self, drawn: SampledTokens, stop_ids: AbstractSet[int]) -> list[int]:
        """Return the rows whose response ends by one of these tokens."""
        ids = drawn.ids.tolist()
        return [] if stop_ids.isdisjoint(ids) else [row for row in self._free if ids[row] in stop_ids]

    def copy_tokens_to_host(self) -> None:
        """Copy the sampled tokens to the host and append them to the responses.

        Raises:
            FloatingPointError: logits were not numbers; names the response.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        ids, logprobs = torch.stack([d.ids for d in pending], 1), torch.stack([d.logprobs for d in pending], 1)
        host_ids, host_logprobs = ids.cpu().numpy(), logprobs.cpu().numpy()
        copied, count = HostTokens(host_ids, host_logprobs), len(pending)
        for row, (s, last) in enumerate(zip(self.rows, host_ids[:, -1].tolist(), strict=False)):  # beyond them is padding
            s.parts.append((copied, row))
            s.count += count
            s.passes += count
            s.last_token = last
        if np.isnan(host_logprobs.sum()) and (bad := np.isnan(host_logprobs[: len(self.rows)]).any(1)).any():
            raise FloatingPointError(
                f"the model's logits for response {self.rows[int(bad.argmax())].request.response} are not finite; load finite "
                "weights, or decode in float32"
            )

"""Iterations of one unchanged batch: what they feed next stays on the device, what they drew is fetched when it is needed.

Knows the rows of a batch and tensors; nothing of the model, the clock or the queue. As long as nobody joins or leaves, an
iteration costs the host no work per response, and with forced lengths no synchronisation with the device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlhfless.engine.torch_state import ActiveResponse
from rlhfless.engine.torch_step import Drawn, Inputs

DRAWS = 64  # random numbers are brought to the device for this many iterations at once


class Stretch:
    """A batch in order of its cache rows.

    Args:
        padded: rows to feed; those beyond the batch stand at the cell ``spare``.

    Attributes:
        steps: committed iterations.
        kv_tokens: that the batch holds at its next iteration.
        longest: KV tokens of its longest context at its first iteration.
    """

    def __init__(self, rows: list[ActiveResponse], padded: int, spare: int, device: torch.device) -> None:
        self.rows = rows
        self.steps = 0
        self.padding = padded - len(rows)
        count = len(rows)
        contexts = [s.context_tokens for s in rows]
        self.kv_tokens = sum(contexts)
        self.longest = max(contexts)
        self._left = min(s.stop_tokens - len(s.ids) for s in rows)  # iterations until a length ends the first
        self._device = device
        tokens, positions = np.zeros(padded, np.int64), np.full(padded, spare, np.int64)
        tokens[:count] = [s.last_token for s in rows]
        positions[:count] = [context - 1 for context in contexts]
        forced = np.zeros(padded, np.bool_)
        forced[:count] = [s.forced for s in rows]
        moves = np.zeros(padded, np.int64)
        moves[:count] = 1
        self._tokens, self._positions, self._moves = self._on_device(tokens), self._on_device(positions), self._on_device(moves)
        self._forced = self._on_device(forced) if forced.any() else None
        self._may_stop = bool((~forced[:count]).any())
        self._uniforms = torch.empty(0)
        self._pending: list[Drawn] = []
        self._settled = 0

    def inputs(self) -> tuple[Inputs, int]:
        """What the next iteration feeds, and the cells that it attends over."""
        at = self.steps % DRAWS
        if at == 0:
            self._draw_ahead()
        return Inputs(self._tokens, self._positions, self._uniforms[at], self._forced), self.longest + self.steps

    def _draw_ahead(self) -> None:
        """Random numbers of the next iterations; numbers of tokens that a response cannot have are never used."""
        ahead = min(DRAWS, self._left - self.steps)
        block = np.zeros((len(self.rows) + self.padding, ahead))
        for row, s in enumerate(self.rows):
            begin = len(s.ids) + self.steps - self._settled
            block[row] = s.uniforms[begin : begin + ahead]
        self._uniforms = self._on_device(np.ascontiguousarray(block.T))

    @torch.inference_mode()
    def commit(self, drawn: Drawn, eos_id: int) -> bool:
        """The next iteration drew this; returns whether somebody's response ends with it."""
        self._pending.append(drawn)
        self._tokens = drawn.ids
        self._positions += self._moves
        self.steps += 1
        self.kv_tokens += len(self.rows)
        if self.steps == self._left:
            return True
        if not self._may_stop:
            return False
        ends = (drawn.ids == eos_id) | drawn.logprobs.isnan()  # logits that are no numbers end everything
        if self._forced is not None:
            ends &= ~self._forced
        return bool(ends[: len(self.rows)].any())

    @torch.inference_mode()
    def settle(self) -> None:
        """Bring what was drawn to the host and append it to the responses.

        Raises:
            FloatingPointError: logits were not numbers; names the response.
        """
        if not self._pending:
            return
        count = len(self.rows)
        ids = torch.stack([d.ids[:count] for d in self._pending], 1).tolist()
        logprobs = torch.stack([d.logprobs[:count] for d in self._pending], 1)
        bad = logprobs.isnan().any(1)
        found = {
            name: torch.stack([d.signals[name][:count] for d in self._pending], 1).float().cpu().numpy()
            for name in self._pending[0].signals
        }
        for row, (s, own_ids, own_logprobs) in enumerate(zip(self.rows, ids, logprobs.tolist(), strict=True)):
            s.ids += own_ids
            s.logprobs += own_logprobs
            for name, values in found.items():
                s.signals.setdefault(name, []).extend(values[row])
        self._settled, self._pending = self.steps, []
        if bad.any():
            one = self.rows[int(bad.nonzero()[0, 0])]
            raise FloatingPointError(
                f"the model's logits for response {one.request.response} are not numbers; its weights or the precision are to "
                "blame: load finite weights, or decode in float32"
            )

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

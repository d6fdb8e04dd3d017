"""Iterations of one unchanged batch: what they feed next stays on the device, what they drew is fetched when it is needed.

Knows the rows of a batch and tensors; nothing of the model, the clock or the queue. As long as nobody joins or leaves, an
iteration costs the host no work per response, and with forced lengths no synchronisation with the device but one in
``SETTLED_EVERY`` iterations.
"""

from __future__ import annotations

import numpy as np
import torch

from rlhfless.engine.torch_noise import NoiseAhead
from rlhfless.engine.torch_state import ActiveResponse
from rlhfless.engine.torch_step import Drawn, Inputs

SETTLED_EVERY = 64  # so that logits that are no numbers are noticed, and little waits on the device


class Stretch:
    """A batch in order of its cache rows; works in inference mode only.

    Args:
        padded: rows to feed; those beyond the batch stand at the cell ``spare``.
        noise: of the same rows; None where nothing is drawn by chance.

    Attributes:
        steps: committed iterations.
        kv_tokens: that the batch holds at its next iteration.
        longest: KV tokens of its longest context at its first iteration.
    """

    def __init__(
        self, rows: list[ActiveResponse], padded: int, spare: int, noise: NoiseAhead | None, device: torch.device
    ) -> None:
        self.rows, self.padding, self.steps = rows, padded - len(rows), 0
        fed = np.zeros((4, padded), np.int64)  # tokens, positions, what is added to positions, whether lengths are forced
        fed[1, len(rows) :] = spare
        contexts = [s.context_tokens for s in rows]
        fed[:, : len(rows)] = (
            [s.last_token for s in rows], [context - 1 for context in contexts], [1] * len(rows), [s.forced for s in rows],
        )  # fmt: skip
        self.kv_tokens, self.longest = sum(contexts), max(contexts)
        left = [s.stop_tokens - s.count for s in rows]  # iterations until its length ends each
        self._next_end, self._left = min(left), left
        self._tokens, self._positions, self._moves, forced = torch.from_numpy(fed).to(device).unbind()
        self._forced = forced.bool() if any(s.forced for s in rows) else None
        self._free = [row for row, s in enumerate(rows) if not s.forced]
        self._noise = noise
        self._pending: list[Drawn] = []

    @property
    def unsettled(self) -> int:
        """Committed tokens of each response that it does not have yet."""
        return len(self._pending)

    def inputs(self) -> tuple[Inputs, int]:
        """What the next iteration feeds, and the cells that it attends over."""
        used = len(self.rows)
        noise = None if self._noise is None else self._noise.next(used + self.padding, used)
        return Inputs(self._tokens, self._positions, noise, self._forced), self.longest + self.steps

    def commit(self, drawn: Drawn, eos_id: int) -> list[ActiveResponse]:
        """The next iteration drew this; returns those whose response ends with it, in order of rows."""
        self._pending.append(drawn)
        self._tokens = drawn.ids
        self._positions += self._moves
        self.steps += 1
        self.kv_tokens += len(self.rows)
        if self._noise is not None:
            self._noise.commit()
        ends: list[int] = []
        if self.steps == self._next_end:
            ends = [row for row, left in enumerate(self._left) if left == self.steps]
        if self._free and eos_id in (ids := drawn.ids.tolist()):
            ends = sorted({*ends, *(row for row in self._free if ids[row] == eos_id)})
        if len(self._pending) == SETTLED_EVERY:
            self.settle()
        return [self.rows[row] for row in ends]

    def settle(self) -> None:
        """Bring what was drawn to the host and append it to the responses.

        Raises:
            FloatingPointError: logits were not numbers; names the response.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        ids, logprobs = torch.stack([d.ids for d in pending], 1), torch.stack([d.logprobs for d in pending], 1)
        own_ids, own_logprobs = ids.cpu().numpy(), logprobs.cpu().numpy()
        found = {name: torch.stack([d.signals[name] for d in pending], 1).float().cpu().numpy() for name in pending[0].signals}
        for row, s in enumerate(self.rows):
            s.extend(own_ids[row], own_logprobs[row])
            for name, values in found.items():
                s.signals.setdefault(name, []).extend(values[row])
        if (bad := np.isnan(own_logprobs[: len(self.rows)]).any(1)).any():
            raise FloatingPointError(
                f"the model's logits for response {self.rows[int(bad.argmax())].request.response} are not numbers; its weights "
                "or the precision are to blame: load finite weights, or decode in float32"
            )
